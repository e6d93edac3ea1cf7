"""Choose the files of the distribution `embodied-rl-robot`: those of `embodied_rl` that need no training platform."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = (
    "__init__.py", "__main__.py", "py.typed", "cli", "config", "deployment", "system",
    *(f"interfaces/{name}.py" for name in (
        "__init__", "description", "errors", "observation_input", "robot", "servo", "sim", "spec_checks", "trust",
        "version",
    )),
)  # fmt: skip
"""Files and folders of `embodied_rl` that are in this distribution, and not in `embodied-rl`."""
CONFIGS = ("robot",)
"""Likewise of `configs`."""


class CustomBuildHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "standard":  # an editable install finds them in the checkout
            return
        here = Path(self.root)
        unpacked = (here / "embodied_rl").is_dir()  # the sdist has them here
        checkout, configs = (here, "embodied_rl/_configs") if unpacked else (here.parents[1], "configs")
        for name in PACKAGE:
            build_data["force_include"][str(checkout / "embodied_rl" / name)] = f"embodied_rl/{name}"
        for name in CONFIGS:
            build_data["force_include"][str(checkout / configs / name)] = f"embodied_rl/_configs/{name}"
        licence = (here if unpacked else checkout) / "LICENSE"
        build_data["force_include"][str(licence)] = "LICENSE" if self.target_name == "sdist" else "embodied_rl/LICENSE"
