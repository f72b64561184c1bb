"""Pages of documentation as a reader runs them: block by block, in order.

`sh` blocks are run by bash with `moca` in the path, `python` blocks share one namespace. A block
that begins with `moca serve` starts the service anew with these options. What a block prints is
compared with the `text` block behind it, if there is one; `python -m tests.e2e.docs.pages PAGE...`
writes it there.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from socketserver import BaseServer

from moca_client import Client
from tests.e2e.deployment import Processes, wait_ready
from tests.ports import free_port

BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ADDRESS, RECEIVER = "127.0.0.1:8000", "127.0.0.1:9000"


class Reader:
    """Runs the blocks of a page in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = {ADDRESS: free_port(), RECEIVER: free_port()}
        self.names: dict = {}
        self.processes = Processes(
            folder,
            {
                "MOCA_PORT": str(self.ports[ADDRESS]),
                "MOCA_URL": f"http://127.0.0.1:{self.ports[ADDRESS]}",
                "MOCA_PARTITIONS": "8",
                "MOCA_DATA_DIR": str(folder / "data"),
                "PYTHONPATH": str(Path(__file__).parents[3]),
                "COLUMNS": "100",
                "PATH": f"{_moca(folder)}:{os.environ['PATH']}",
            },
        )

    def run(self, kind: str, code: str) -> str:
        """Run a block and return its output."""
        for address, port in self.ports.items():
            code = code.replace(address, f"127.0.0.1:{port}").replace(
                address.replace("127.0.0.1", "localhost"), f"127.0.0.1:{port}"
            )
            code = code.replace(f'"127.0.0.1", {address[-4:]}', f'"127.0.0.1", {port}')
        if kind == "python":
            return self._python(code)
        if code.startswith("moca serve"):
            return self._serve(shlex.split(code)[1:])
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", code],
            cwd=self.folder,
            env=self.processes.environment,
            text=True,
            capture_output=True,
        )
        assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def _python(self, code: str) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self.folder):
            exec(compile(code, "page", "exec"), self.names)
        return printed.getvalue()

    def _serve(self, words: list[str]) -> str:
        self.processes.stop_all()
        with contextlib.chdir(self.folder):
            self.processes.start("serve", *words)
        wait_ready(self.processes.environment["MOCA_URL"])
        return ""

    def close(self) -> None:
        """Stop everything."""
        for each in self.names.values():
            if isinstance(each, BaseServer):
                each.shutdown()
                each.server_close()
            elif isinstance(each, Client):
                each.close()
        self.processes.stop_all()


def _moca(folder: Path) -> Path:
    """Return a folder with the command."""
    made = folder / "bin"
    made.mkdir()
    command = made / "moca"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m service.commands.main "$@"\n')
    command.chmod(0o755)
    return made


def blocks(page: Path):
    """Yield the blocks of code: kind, code, expected output or None."""
    parts = [(match[1], match[2]) for match in BLOCK.finditer(page.read_text())]
    for (kind, code), (next_kind, text) in zip(parts, [*parts[1:], ("", "")], strict=True):
        if kind != "text":
            yield kind, code, text if next_kind == "text" else None


def play(page: Path, folder: Path):
    """Run a page; yield the expected and the actual output of each block."""
    reader = Reader(folder)
    try:
        for kind, code, said in blocks(page):
            yield said, reader.run(kind, code)
    finally:
        reader.close()


def rewrite(page: Path) -> None:
    """Write the output of the blocks into their `text` blocks."""
    with tempfile.TemporaryDirectory() as folder:
        printed = [got for said, got in play(page, Path(folder)) if said is not None]
    following = iter(printed)
    text = BLOCK.sub(
        lambda match: match[0] if match[1] != "text" else f"```text\n{next(following)}```",
        page.read_text(),
    )
    page.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        rewrite(Path(name))
