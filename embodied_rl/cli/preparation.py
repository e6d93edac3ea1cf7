"""What happens to a command's words and configuration before its body runs."""

from collections.abc import Sequence
from typing import Any

from embodied_rl.config.freeze import freeze_config

Plugins = dict[str, type[Any]]
"""Node of the configuration → the plug-in's class."""
Rows = list[tuple[str, str]]
"""Names and texts that a dry run prints."""


class Preparation:
    """The steps from words to a checked configuration; commands with plug-ins, plans or runs have a subclass."""

    def expand(self, overrides: tuple[str, ...]) -> tuple[str, ...]:
        """Return the overrides with those that stand for several replaced by these."""
        return overrides

    def freeze(self, name: str, kind: type[Any], mapping: dict[str, Any], overrides: Sequence[str]) -> Any:
        """Freeze a composed mapping of the command `name` into a `kind`.

        Raises:
            UserError: a key is unknown, or a value has another type.
        """
        return freeze_config(kind, mapping)

    def adapt(self, name: str, config: Any) -> Any:
        """Return the configuration of the command `name` as this process runs it, one of several or the only one."""
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
