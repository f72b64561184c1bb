"""Wheels of moca-client and moca-service, such that each file is in one of them.

In the repository the client is modules of `service`. In its wheel they are modules of
`moca_client`, because a project may well have a package `service` of its own. The service's wheel
requires that of the client, and has those modules of `service` as aliases: the classes are the
same.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SERVICE = Path(__file__).parents[2] / "service"
# What the client consists of, below service/: itself, the definition of answers, tables of them.
PARTS = ("client/**/*.py", "schema/__init__.py", "schema/members.py", "schema/responses.py")
PARTS += ("tables/*.py", "tasks.py")
ALIAS = '''"""Alias of `{module}`."""

import sys

import {module} as module
from {module} import *

sys.modules[__name__] = module
'''


def renamed(text: str) -> str:
    """Return source code that imports the client's modules from `moca_client`."""
    text = re.sub(r"\bservice\.client\b", "moca_client", text)
    return re.sub(r"\bservice\.(schema|tables|tasks)\b", r"moca_client.\1", text)


class Wheels(BuildHookInterface):  # type: ignore[type-arg]
    """Writes the client's modules, or their aliases, and adds them to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files; those of an editable installation are the checkout's."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        of_client = self.metadata.name == "moca-client"
        for number, source in enumerate(sorted(p for part in PARTS for p in SERVICE.glob(part))):
            path = source.relative_to(SERVICE)
            code = renamed(source.read_text())
            if imported := re.search(r"^\s*(?:from|import) (service\b\S*)", code, re.MULTILINE):
                raise ValueError(
                    f"{source}: expected imports of {', '.join(PARTS)} alone, got {imported[1]}: "
                    "move what the client needs of it there, or add it to PARTS"
                )
            inside = Path("moca_client", *path.parts[path.parts[0] == "client" :])
            target = inside if of_client else Path("service", path)
            if not of_client and path.name != "__init__.py":
                code = ALIAS.format(module=".".join(inside.with_suffix("").parts))
            written = Path(self._folder.name, f"{number}.py")
            written.write_text(code)
            build_data["force_include"][str(written)] = str(target)
        if not of_client:
            own = self.metadata.version
            build_data["dependencies"] += [f"moca-core=={own}", f"moca-client=={own}"]

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was written."""
        if version != "editable":
            self._folder.cleanup()
