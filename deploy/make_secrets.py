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
        # Of this run alone: one that was killed here leaves a file that nobody may write to.
        part = path.with_name(f".{name}.{secrets.token_hex(8)}.part")
        try:
            part.write_text(secrets.token_urlsafe(BYTES))
            part.chmod(0o444)
            os.link(part, path)  # not over one that another run has made meanwhile
            made.append(name)
        except FileExistsError:
            pass
        finally:
            part.unlink(missing_ok=True)
    return made


def main():
    """Run from a command line."""
    folder, *names = sys.argv[1:] or [""]
    if not names or any(name in ("", "..") or Path(name).name != name for name in names):
        sys.exit(__doc__)
    try:
        made = make(folder, names)
    except OSError as error:
        sys.exit(f"make_secrets: {error}")
    for name in made:
        print(f"created {name}")


if __name__ == "__main__":
    main()
