"""Parse the arguments of a command and run it, once or for every combination of a sweep."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from embodied_rl.cli.execution import execute_command
from embodied_rl.cli.options import Options, parse_arguments
from embodied_rl.cli.table import Command
from embodied_rl.config import compose as composition
from embodied_rl.interfaces.errors import UserError
from embodied_rl.training.planner import stored


def run_command(command: Command, arguments: Sequence[str]) -> int:
    """Run one command with its arguments.

    Raises:
        UserError: the arguments are wrong.
    """
    options = parse_arguments(command, arguments)
    options = replace(options, overrides=stored.expand_stored_plan(options.overrides))
    _check_experiment(command, options)
    if not options.hydra:
        for override in options.overrides:
            _check_override(override, options.sweep)
    if options.sweep or options.hydra:
        from embodied_rl.cli import sweep

        return sweep.run_sweep(command, options)
    mapping = composition.compose_config(command.config, options.overrides, command.values, options.config_dir)
    return execute_command(command, mapping, options)


def _check_override(text: str, sweep: bool) -> None:
    """Refuse an override that would have no effect, and several values without `-m`."""
    key, _, value = text.partition("=")
    if key.startswith("~"):
        raise UserError(f"{text}: no key can be removed. Set {key[1:]} to another value.")
    if key.startswith("hydra.") and not sweep:
        raise UserError(f"{text} has no effect here. run.root=<folder> chooses where runs are written.")
    with suppress(HydraException):  # what cannot be parsed is quoted, and checked, when it is composed
        if not sweep and OverridesParser.create().parse_override(text).is_sweep_override():
            raise UserError(f"{text} has several values: add -m to run each, or write {key}=[{value}] for a list.")


def _check_experiment(command: Command, options: Options) -> None:
    """Check that a chosen experiment was written for this command, or for one with the same YAML."""
    known = {item.name: item for item in composition.list_experiments(options.config_dir)}
    for override in options.overrides:
        key, _, value = override.partition("=")
        if key == "experiment" and value in known and known[value].command not in (command.name, command.config):
            wanted = known[value].command
            raise UserError(
                f"experiment={value} is one for `{wanted}`, not for `{command.name}`. "
                f"Type: embodied-rl {wanted} experiment={value}"
            )
