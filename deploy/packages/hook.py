"""The wheel of moca-service requires those of moca-core and moca-client of its own version."""

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

RELEASE = "MOCA_RELEASE"  # set where wheels are made that are installed elsewhere


class SameVersions(BuildHookInterface):  # type: ignore[type-arg]
    """Adds them as dependencies; an editable installation has both from the checkout.

    `pip install .` takes them from the checkout, too: no index has them.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Require the other wheels."""
        if version == "editable":
            return
        for name in ("core", "client"):
            folder = Path(self.root) / "deploy" / "packages" / name
            apart = os.environ.get(RELEASE)
            source = f"=={self.metadata.version}" if apart else f" @ {folder.as_uri()}"
            build_data["dependencies"].append(f"moca-{name}{source}")
