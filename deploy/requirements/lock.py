"""The image's requirements with the hashes of their files.

    python lock.py select PYPROJECT LOCK [EXTRA,...]   # the part of service.txt that is needed
    python lock.py only LOCK NAME                      # one package
    python lock.py update                              # anew, after a change of constraints.txt

service.txt: all but torch, with every optional part of an image. torch.txt: torch, from the
index where pip looks by itself; cuda.txt: what it needs beside. cpu.txt: torch as built for the CPU
alone, of the builds that lie on this machine or are in the file already. build.txt: what builds the
image. `update` needs pip-tools.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
EXTRAS = ("fast", "otel", "plots", "parquet", "console", "frames", "train")
BUILD = ("cyclonedx-bom", "hatchling")
OLDER = ("async-timeout",)  # redis needs it on Python before 3.11.3
_block = re.compile(r"^([A-Za-z0-9._-]+)==\S+.*\n(?:[ #].*\n)*", re.MULTILINE)
_dependent = re.compile(r"^ +#(?: via)? +([A-Za-z0-9._-]+)$", re.MULTILINE)
_file = re.compile(r"^ +#.*(?:names\.in|constraints\.txt|pyproject\.toml).*\n", re.MULTILINE)
_hash = re.compile(r"--hash=(\S+)")


def normalized(requirement):
    """Return the name of a requirement as indexes spell it."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def blocks_of(lock):
    """Return the text of each package by its name."""
    return {normalized(found[1]): found[0] for found in _block.finditer(lock)}


def select(lock, roots):
    """Return the text of the named packages and of all that they need."""
    blocks = blocks_of(lock)
    dependents = {name: set(_dependent.findall(text)) for name, text in blocks.items()}
    chosen = set(roots)
    while True:
        more = {name for name in blocks.keys() - chosen if dependents[name] & chosen}
        if not more:
            return "".join(text for name, text in blocks.items() if name in chosen)
        chosen |= more


def roots_of(pyproject, extras):
    """Return the names of what the project and some of its optional parts require."""
    project = tomllib.loads(pyproject)["project"]
    optional = project["optional-dependencies"]
    return {normalized(r) for r in sum((optional[e] for e in extras), project["dependencies"])}


def update():
    """Write the files anew."""
    extras = [word for extra in EXTRAS for word in ("--extra", extra)]
    service = blocks_of(_compiled(str(ROOT / "pyproject.toml"), *extras))
    older = blocks_of(_compiled(names=OLDER))
    for name in OLDER:
        service[name] = older[name].rstrip("\n") + "\n    # via redis\n"
    (HERE / "build.txt").write_text(_compiled(names=BUILD))
    # Not a build of torch that lies on this machine.
    elsewhere = {"PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": os.devnull}
    torch = blocks_of(_compiled(names=("torch",), environment=elsewhere))
    (HERE / "torch.txt").write_text(_pinned(torch["torch"], torch["torch"]))
    (HERE / "cpu.txt").write_text(_pinned(torch["torch"], service.pop("torch"), _known("cpu.txt")))
    _write("service.txt", service)
    _write("cuda.txt", {n: text for n, text in torch.items() if n != "torch" and n not in service})


def _known(name):
    path = HERE / name
    return path.read_text() if path.exists() else ""


def _pinned(block, *texts):
    """Return a package with the hashes of those texts that are of its version."""
    pin = block.split()[0]
    of_it = (text for text in texts if text.startswith((f"{pin} ", f"{pin}+")))
    hashes = sorted({each for text in of_it for each in _hash.findall(text)})
    return " \\\n    ".join([pin, *(f"--hash={each}" for each in hashes)]) + "\n"


def _write(name, blocks):
    (HERE / name).write_text("".join(blocks[each] for each in sorted(blocks)))


def _compiled(*given, names=(), environment=None):
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "made.txt"
        if names:
            source = Path(folder) / "names.in"
            source.write_text("\n".join(names) + "\n")
            given = (str(source),)
        command = ["pip-compile", "--quiet", "--generate-hashes", "--allow-unsafe"]
        command += ["--strip-extras", "--no-header", "--no-emit-index-url", "--no-emit-options"]
        command += ["--no-emit-find-links", "--no-emit-trusted-host"]
        command += ["--constraint", "constraints.txt", "--output-file", str(made), *given]
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, **(environment or {})})
        # Comments name the packages that need one, and no files.
        text = _file.sub("", made.read_text())
        return re.sub(r"^    # via\n(?!    #)", "", text, flags=re.MULTILINE)


def main():
    """Run from a command line."""
    match sys.argv[1:]:
        case ["update"]:
            update()
        case ["only", lock, name]:
            sys.stdout.write(blocks_of(Path(lock).read_text())[name])
        case ["select", pyproject, lock, *rest]:
            extras = [extra for extra in "".join(rest).split(",") if extra]
            roots = roots_of(Path(pyproject).read_text(), extras)
            sys.stdout.write(select(Path(lock).read_text(), roots))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
