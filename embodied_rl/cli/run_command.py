"""Parse the arguments of a command, freeze and check its configuration, and run it."""

import os
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from embodied_rl.cli.command import Command, Options, parse_arguments
from embodied_rl.cli.json_output import printed_as_json
from embodied_rl.cli.text import print_columns
from embodied_rl.config import hub
from embodied_rl.config.freeze import freeze_config, thaw_config, to_yaml
from embodied_rl.config.option_files import parse_overrides
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import make_printable

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


def run_command(command: Command, arguments: Sequence[str]) -> int:
    """Run one command with its arguments, once or for every combination of a sweep.

    Raises:
        UserError: the arguments are wrong.
    """
    if command.schema is None:
        return import_name(command.body)(list(arguments)) or 0
    options = parse_arguments(command, arguments)
    preparation = load_preparation(command)
    options = preparation.check_options(command, options)
    if options.sweep or options.hydra:
        return preparation.sweep(command, options)
    return execute_command(command, preparation.compose(command, options), options)


def execute_command(command: Command, mapping: dict[str, Any], options: Options) -> int:
    """Check one composed configuration, then print it, describe it or run it, according to the options."""
    preparation = load_preparation(command)
    config = freeze_command_config(command, mapping, options.overrides, download=not options.show)
    config = preparation.adapt(command.name, config)
    if options.show:
        print(to_yaml(preparation.find_plugins(config)[0]), end="")
        return 0
    config, found = preparation.check(config)
    if options.dry_run:
        more = () if command.check is None else import_name(command.check)(config) or ()
        rows = [("command", f"{command.name} ({command.body})"), *preparation.describe(config, found), *more]
        print_columns([tuple(map(make_printable, row)) for row in rows], indent=0)
        print("dry run: the configuration is sound, nothing was started")
        return 0
    with printed_as_json() if options.json else nullcontext():
        return import_name(command.body)(config) or 0


def import_name(path: str) -> Any:
    """Import and return the function or class of a path "module:name"."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def freeze_command_config(
    command: Command, mapping: dict[str, Any], overrides: Sequence[str], *, download: bool = True
) -> Any:
    """Freeze a composed mapping into the command's configuration; by default download what was typed as hf:<name>."""
    preparation, schema = load_preparation(command), import_name(str(command.schema))
    config = preparation.freeze(command.name, schema, mapping, overrides)
    typed = [word.lstrip("+").partition("=")[0] for word in overrides if hub.PREFIX in word.replace("\\:", ":")]
    if not (download and typed):
        return config
    return preparation.freeze(command.name, schema, hub.download_all(thaw_config(config), typed), overrides)


def load_preparation(command: Command) -> Preparation:
    """Return the preparation of a command's configuration."""
    return import_name(command.preparation)()
