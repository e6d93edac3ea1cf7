"""Parse the arguments of a command, freeze and check its configuration, and run it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from embodied_rl.cli.command import Command
from embodied_rl.cli.options import Options, parse_arguments
from embodied_rl.cli.preparation import Preparation
from embodied_rl.cli.text import print_columns
from embodied_rl.config import compose
from embodied_rl.config.freeze import to_yaml
from embodied_rl.interfaces.errors import UserError


def run_command(command: Command, arguments: Sequence[str]) -> int:
    """Run one command with its arguments, once or for every combination of a sweep.

    Raises:
        UserError: the arguments are wrong.
    """
    if command.schema is None:
        return import_name(command.body)(list(arguments)) or 0
    options = parse_arguments(command, arguments)
    options = replace(options, overrides=load_preparation(command).expand(options.overrides))
    check_experiment(command, options)
    if not options.hydra:
        for override in options.overrides:
            check_override(override, options.sweep)
    if options.sweep or options.hydra:
        from embodied_rl.cli import sweep

        return sweep.run_sweep(command, options)
    mapping = compose.compose_config(command.config, options.overrides, command.values, options.config_dir)
    return execute_command(command, mapping, options)


def check_experiment(command: Command, options: Options) -> None:
    """Check that a chosen experiment was written for this command, or for one with the same YAML."""
    known = {item.name: item for item in compose.list_experiments(options.config_dir)}
    for override in options.overrides:
        key, _, value = override.partition("=")
        if key == "experiment" and value in known and known[value].command not in (command.name, command.config):
            wanted = known[value].command
            raise UserError(
                f"experiment={value} is for `{wanted}`, not for `{command.name}`. "
                f"Type: embodied-rl {wanted} experiment={value}",
                code="experiment-of-another-command",
            )


def check_override(text: str, sweep: bool) -> None:
    """Refuse an override that would have no effect, and several values without `-m`."""
    key, _, value = text.partition("=")
    if key.startswith("~"):
        raise UserError(f"{text}: keys cannot be removed. Set {key[1:]} to another value.", code="override-removes-key")
    if key.startswith("hydra.") and not sweep:
        raise UserError(
            f"{text} has no effect here. run.root=<folder> chooses where runs are written.", code="override-no-effect"
        )
    with suppress(HydraException):  # what cannot be parsed is quoted, and checked, when it is composed
        if not sweep and OverridesParser.create().parse_override(text).is_sweep_override():
            raise UserError(
                f"{text} has several values: add -m to run each, or write {key}=[{value}] for a list.",
                code="override-several-values",
            )


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
