"""A wheel carries `configs/` and `assets/` inside the package; an editable install reads them where they are."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LEFT_OUT = {"media"}  # pictures for the README


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":
            return
        root = Path(self.root)
        build_data["force_include"][str(root / "configs")] = "embodied_rl/_configs"
        for item in sorted((root / "assets").glob("*")):
            if item.name not in LEFT_OUT:
                build_data["force_include"][str(item)] = f"embodied_rl/_assets/{item.name}"
