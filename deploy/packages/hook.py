"""Wheels of moca-client and moca-service, such that each file is in one of them.

In the repository the client is modules of `service`. In its wheel they are modules of
`moca_client`, because a project may well have a package `service` of its own. The service's wheel
requires that of the client, and has those modules of `service` as aliases: the classes are the
same.
"""

import ast
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SERVICE = Path(__file__).parents[2] / "service"
# What the client consists of, below service/: itself, the definition of answers, tables of them.
PARTS = ("client/**/*.py", "schema/__init__.py", "schema/members.py", "schema/model_parts.py")
PARTS += ("schema/responses.py", "tables/*.py", "tasks.py")
ALIAS = '''"""Alias of `{module}`."""

import sys

import {module} as module
from {module} import *

sys.modules[__name__] = module
'''


def module_of(path: Path) -> str:
    """Return the name of a module below service/, such as `service.client.sync`."""
    parts = path.relative_to(SERVICE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = sorted(path for part in PARTS for path in SERVICE.glob(part))
MODULES = {module_of(path) for path in SERVICE.glob("**/*.py")}
CLIENT = {module_of(path) for path in SOURCES}


def renamed(text: str) -> str:
    """Return source code that imports the client's modules from `moca_client`."""

    def name(match: re.Match[str]) -> str:
        module, rest = match[0], ""
        while module not in MODULES:
            module, _, last = module.rpartition(".")
            rest = f".{last}{rest}"
        if module not in CLIENT:
            return match[0]
        inside = module.removeprefix("service").removeprefix(".client")
        return f"moca_client{inside}{rest}"

    return re.sub(r"\bservice(\.\w+)+", name, text)


def others(text: str) -> list[str]:
    """Return the modules of service that source code imports, and the client has not."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return sorted((found & MODULES) - CLIENT)


class Wheels(BuildHookInterface):  # type: ignore[type-arg]
    """Writes the client's modules, or their aliases, and adds them to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the files; those of an editable installation are the checkout's."""
        if version == "editable":
            return
        self._folder = TemporaryDirectory()
        of_client = self.metadata.name == "moca-client"
        for number, source in enumerate(SOURCES):
            path = source.relative_to(SERVICE)
            code = renamed(source.read_text())
            if imported := others(source.read_text()):
                raise ValueError(
                    f"{source}: expected imports of {', '.join(PARTS)} alone, got {imported[0]}: "
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
