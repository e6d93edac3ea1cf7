"""A wheel carries `configs/` and `assets/` inside the package; an editable install reads them where they are."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

OF_ROBOTS = {"robot"}  # folders of `configs/` that are in the distribution `embodied-rl-robot`
LEFT_OUT = {"media"}  # pictures for the README


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        root = Path(self.root)
        for item in sorted((root / "configs").glob("*")):
            if item.name not in OF_ROBOTS:
                build_data["force_include"][str(item)] = f"embodied_rl/_configs/{item.name}"
        for item in sorted((root / "assets").glob("*")):
            if item.name not in LEFT_OUT:
                build_data["force_include"][str(item)] = f"embodied_rl/_assets/{item.name}"
