"""Parse the arguments of a command, freeze and check its configuration, and run it."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from embodied_rl.cli.command import Command
from embodied_rl.cli.options import Options, parse_arguments
from embodied_rl.cli.preparation import Preparation
from embodied_rl.cli.text import print_columns
from embodied_rl.config.freeze import to_yaml


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
    config = preparation.adapt(command.name, freeze_command_config(command, mapping, options.overrides))
    if options.show:
        print(to_yaml(preparation.find_plugins(config)[0]), end="")
        return 0
    config, found = preparation.check(config)
    if options.dry_run:
        more = () if command.check is None else import_name(command.check)(config) or ()
        print_dry_run(command, [*preparation.describe(config, found), *more])
        return 0
    return import_name(command.body)(config) or 0


def import_name(path: str) -> Any:
    """Import and return the function or class of a path "module:name"."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def freeze_command_config(command: Command, mapping: dict[str, Any], overrides: Sequence[str]) -> Any:
    """Freeze a composed mapping into the command's configuration."""
    return load_preparation(command).freeze(command.name, import_name(str(command.schema)), mapping, overrides)


def load_preparation(command: Command) -> Preparation:
    """Return the preparation of a command's configuration."""
    return import_name(command.preparation)()


def print_dry_run(command: Command, rows: Sequence[tuple[str, str]]) -> None:
    """Print the command, and rows about its configuration."""
    print_columns([("command", f"{command.name} ({command.body})"), *rows], indent=0)
    print("dry run: the configuration is sound, nothing was started")
