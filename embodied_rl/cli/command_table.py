"""The commands of all installed distributions, from entry points in the group `embodied_rl.commands`.

An entry point names a sequence of `Command`; modules of tables import no body.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points

from embodied_rl.cli.command import Command
from embodied_rl.config.plugins import make_import_error
from embodied_rl.interfaces.errors import UserError

GROUP = "embodied_rl.commands"


def load_commands() -> dict[str, Command]:
    """Return name → command.

    Raises:
        UserError: two distributions offer the same name, or a table cannot be imported.
    """
    found: dict[str, Command] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.value):
        try:
            commands: Sequence[Command] = entry.load()
        except ModuleNotFoundError as error:
            raise make_import_error(entry, error) from error
        for command in commands:
            other = found.get(command.name)
            if other is not None and other.replaces == command.replaces:
                raise UserError(
                    f"two packages offer a command '{command.name}': {other.body} and {command.body}.",
                    code="command-name-taken",
                )
            if other is None or command.replaces:
                found[command.name] = command
    return found


COMMANDS = load_commands()


def list_groups() -> list[str]:
    """Return the first words of commands of two words."""
    return sorted({name.split()[0] for name in COMMANDS if " " in name})


def find_command_name(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command's name at the start of the arguments, one word or two, and the other arguments."""
    if " ".join(arguments[:2]) in COMMANDS:
        return " ".join(arguments[:2]), list(arguments[2:])
    name, rest = arguments[0], list(arguments[1:])
    elsewhere = COMMANDS[name].elsewhere if name in COMMANDS else {}
    for position, word in enumerate(rest):
        key, equals, value = word.partition("=")
        if equals and key in elsewhere:
            other, new = elsewhere[key]
            return other, [*rest[:position], f"{new}={value}", *rest[position + 1 :]]
    return name, rest
