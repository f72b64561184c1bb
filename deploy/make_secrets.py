"""Make a random password in each named file of a folder; one that is there stays as it is.

    python make_secrets.py FOLDER NAME...

For a folder that only the containers which need it have: every user in them may read it.
"""

import os
import secrets
import sys
from pathlib import Path

BYTES = 32


def make(folder, names):
    """Write what is missing, whole or not at all; return what was made."""
    made = []
    for name in names:
        path = Path(folder) / name
        if path.exists():
            continue
        part = path.with_name(f".{name}.part")
        part.write_text(secrets.token_urlsafe(BYTES))
        part.chmod(0o444)
        os.replace(part, path)
        made.append(name)
    return made


def main():
    """Run from a command line."""
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    for name in make(sys.argv[1], sys.argv[2:]):
        print(f"made {name}")


if __name__ == "__main__":
    main()
