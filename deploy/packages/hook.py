"""The wheel of moca-service requires those of moca-core and moca-client of its own version."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SameVersions(BuildHookInterface):  # type: ignore[type-arg]
    """Adds them as dependencies; an editable installation has both from the checkout."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Require the other wheels."""
        own = self.metadata.version
        if version != "editable":
            build_data["dependencies"] += [f"moca-core=={own}", f"moca-client=={own}"]
