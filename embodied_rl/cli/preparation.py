"""What happens to a command's words and configuration before its body runs."""

import os
from collections.abc import Sequence
from typing import Any

from embodied_rl.cli.command import Command
from embodied_rl.cli.options import Options
from embodied_rl.config.freeze import freeze_config
from embodied_rl.config.overrides import parse_overrides
from embodied_rl.interfaces.errors import UserError

Plugins = dict[str, type[Any]]
"""Node of the configuration → the plug-in's class."""
Rows = list[tuple[str, str]]
"""Names and texts that a dry run prints."""


class Preparation:
    """The steps from words to a checked configuration; commands with plug-ins, plans or runs have a subclass."""

    def check_options(self, command: Command, options: Options) -> Options:
        """Check the words of a command; return them with those that stand for several replaced by these.

        Raises:
            UserError: a word has no effect, or would have another than it seems.
        """
        return options

    def compose(self, command: Command, options: Options) -> dict[str, Any]:
        """Return the mapping of a command's configuration.

        Raises:
            UserError: an override cannot be parsed, or a choice is unknown.
        """
        return parse_overrides(options.overrides, options.config_dir)

    def sweep(self, command: Command, options: Options) -> int:
        """Run a command for each combination of values, or handle an option of Hydra's; return the exit code.

        Raises:
            UserError: the command cannot be swept.
        """
        option = options.hydra[0] if options.hydra else "-m"
        raise UserError(
            f"{command.name} takes one value for each key, without Hydra: leave {option} out.", code="command-not-swept"
        )

    def freeze(self, name: str, kind: type[Any], mapping: dict[str, Any], overrides: Sequence[str]) -> Any:
        """Freeze a composed mapping of the command `name` into a `kind`.

        Raises:
            UserError: a key is unknown, or a value has another type.
        """
        return freeze_config(kind, mapping)

    def adapt(self, name: str, config: Any) -> Any:
        """Return the configuration of the command `name` as this process runs it, one of several or the only one.

        Raises:
            UserError: torchrun, or another launcher with its variables, started several processes of the command.
        """
        if "RANK" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
            raise UserError(
                f"torchrun starts ranks of `train`; `{name}` is one process: type it without torchrun.",
                code="torchrun-not-train",
            )
        return config

    def find_plugins(self, config: Any) -> tuple[Any, Plugins]:
        """Return the configuration with the plug-ins' defaults filled in, and node → class of the plug-in."""
        return config, {}

    def check(self, config: Any) -> tuple[Any, Plugins]:
        """Check a configuration and find its plug-ins before any worker starts; return both.

        Raises:
            UserError: a key is wrong; the message names it.
        """
        return config, {}

    def describe(self, config: Any, found: Plugins) -> Rows:
        """Return what a dry run prints of a checked configuration."""
        return []
