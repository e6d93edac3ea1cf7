"""Commands of the command line, their table, and the parsing of their arguments.

Distributions offer commands with entry points in the group `embodied_rl.commands`, each of which names a sequence of
`Command`; modules of such tables import no body.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

from embodied_rl.config.freeze import read_text
from embodied_rl.config.plugins import make_import_error
from embodied_rl.interfaces.errors import UserError

GROUP = "embodied_rl.commands"
_SHOWN = ("--help", "--help-all", "--dry-run", "--json", "--cfg job", "--config-dir DIR", "-m")


@dataclass(frozen=True)
class Words:
    """The plain words after a command: the key that takes them, the noun for one word, and whether many are allowed."""

    key: str
    called: str
    many: bool = False


@dataclass(frozen=True)
class Command:
    """A command: the first word after `embodied-rl`, or the first two.

    Attributes:
        name: one word, or two, of which the first names a group of commands.
        summary: one line for the overview.
        schema: "module:Class" of its configuration; None if the body takes the words as typed.
        body: "module:function", imported when called, with the frozen configuration as the only argument.
        examples: typical arguments after the name.
        check: "module:function" that `--dry-run` calls to find what would make the command fail. It returns rows of
            text to print, or None.
        config: the YAML to start from; None if the dataclass alone defines everything.
        values: keys that hold a plain value although a folder of YAML has the same name.
        words: the meaning of plain words; None if the command takes none.
        common: the keys that `--help` shows; empty for all.
        compare: "module:function" that compares the runs of a sweep, called with their folders and the sweep's folder;
            None if they write no reports.
        preparation: "module:Class" of the `embodied_rl.cli.run_command.Preparation` of its configuration.
        elsewhere: keys that another command has: key → (command, its key), such as `collect from=`.
        replaces: takes the place of another distribution's command of this name.
        json: whether the body offers a result that `--json` prints; see `embodied_rl.cli.json_output`.
    """

    name: str
    summary: str
    schema: str | None
    body: str
    examples: tuple[str, ...] = ()
    check: str | None = None
    config: str | None = None
    values: tuple[str, ...] = ()
    words: Words | None = None
    common: tuple[str, ...] = ()
    compare: str | None = None
    preparation: str = "embodied_rl.cli.run_command:Preparation"
    elsewhere: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    replaces: bool = False
    json: bool = False


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


@cache
def list_commands() -> dict[str, Command]:
    """Return name → command; see `load_commands`."""
    return load_commands()


def list_groups() -> list[str]:
    """Return the first words of commands of two words."""
    return sorted({name.split()[0] for name in list_commands() if " " in name})


def find_command_name(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the command's name at the start of the arguments, one word or two, and the other arguments."""
    if " ".join(arguments[:2]) in list_commands():
        return " ".join(arguments[:2]), list(arguments[2:])
    name, rest = arguments[0], list(arguments[1:])
    command = list_commands().get(name)
    elsewhere = command.elsewhere if command else {}
    for position, word in enumerate(rest):
        key, equals, value = word.partition("=")
        if equals and key in elsewhere:
            other, new = elsewhere[key]
            return other, [*rest[:position], f"{new}={value}", *rest[position + 1 :]]
    return name, rest


@dataclass(frozen=True)
class Options:
    """The parsed arguments of a command.

    Attributes:
        overrides: `key=value` as typed; plain words become one override.
        dry_run: print what would run.
        show: print the configuration.
        sweep: run every combination.
        json: print the result as JSON, and everything else to standard error.
        config_dir: an extra folder of YAML.
        hydra: options that Hydra itself handles, with their values.
    """

    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    show: bool = False
    sweep: bool = False
    json: bool = False
    config_dir: Path | None = None
    hydra: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    """A parser that raises `UserError`."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message, code="option-invalid")


def make_option_parser() -> argparse.ArgumentParser:
    """Return a parser of `--config-dir` that accepts no abbreviated options and raises `UserError`."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    return parser


def parse_arguments(command: Command, arguments: Sequence[str]) -> Options:
    """Parse the arguments of a command.

    Raises:
        UserError: an option does not exist, or the command takes no such plain word.
    """
    parser = make_option_parser()
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--multirun", "-m", action="store_true")
    parser.add_argument("--cfg", "-c", choices=("job", "hydra", "all"))
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--hydra-help", dest="hydra", action="append_const", const="--hydra-help")
    for name in ("--info", "--package"):
        parser.add_argument(name, dest="hydra", action="append", type=f"{name}={{}}".format)
    typed, rest = parser.parse_known_args(arguments)
    check_no_option(rest)
    if typed.resolve and typed.cfg is None:
        raise UserError(
            "--resolve is an option of --cfg: add --cfg job, or leave it out.", code="option-without-effect"
        )
    if typed.json and (not command.json or typed.dry_run or typed.cfg or typed.multirun):
        known = ", ".join(name for name, each in list_commands().items() if each.json)
        message = f"--json is an option of {known} and list, by itself: leave it out."
        raise UserError(message, code="option-without-effect")
    overrides = [text for text in rest if "=" in text or text.startswith("~")]
    words = [text for text in rest if text not in overrides]
    overrides = [_expand_home(text) for text in overrides]
    show = typed.cfg == "job"  # which is printed resolved
    hydra = list(typed.hydra or [])
    if typed.cfg is not None and not show:
        hydra += [f"--cfg={typed.cfg}", *(["--resolve"] if typed.resolve else [])]
    return Options(
        overrides=(*overrides, *_convert_words(command, words, overrides)),
        dry_run=typed.dry_run,
        show=show,
        sweep=typed.multirun,
        json=typed.json,
        config_dir=read_config_folder(typed.config_dir),
        hydra=tuple(hydra),
    )


def check_no_option(arguments: Sequence[str]) -> None:
    """Refuse the first argument that looks like an option; the message suggests a known one, or `key=value`."""
    for text, after in zip(arguments, [*arguments[1:], ""], strict=False):
        if not text.startswith("-"):
            continue
        name, equals, value = text.partition("=")
        if not equals:
            value = "<value>" if not after or after.startswith("-") or "=" in after else after
        close = get_close_matches(name, _SHOWN, n=1, cutoff=0.75)
        hint = f" Did you mean '{close[0]}'?" if close else ""
        setting = f"{name.lstrip('-').replace('-', '_')}={value}"
        raise UserError(
            f"unknown option '{name}'.{hint} Settings are written without dashes, such as {setting}.",
            code="option-unknown",
        )


def read_config_folder(text: str | None) -> Path | None:
    """Return the folder of `--config-dir`, or None if not typed.

    Raises:
        UserError: the folder does not exist, or a YAML file in it is not UTF-8.
    """
    if text is None:
        return None
    if not (folder := Path(text)).is_dir():
        raise UserError(f"--config-dir {text}: there is no such folder.", code="folder-missing")
    for path in sorted(folder.glob("*/*.yaml")):
        read_text(path)
    return folder


def _expand_home(override: str) -> str:
    """Replace ~ in `key=~/path`, which a shell does not expand."""
    key, equals, value = override.partition("=")
    return f"{key}={Path(value).expanduser()}" if equals and value.startswith("~/") else override


def _convert_words(command: Command, words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Convert plain words to an override of the command's key for words."""
    if not words:
        return []
    if command.words is None:
        raise UserError(
            f"'{words[0]}' is not a setting: {command.name} takes key=value, such as "
            f"{(command.examples[0] or 'run.root=runs').split()[0]}.",
            code="setting-invalid",
        )
    key = command.words.key
    if typed := next((text for text in overrides if text.partition("=")[0] == key), None):
        raise UserError(f"'{words[0]}' and {typed} both set {key}: leave one of them out.", code="key-set-twice")
    if len(words) > 1 and not command.words.many:
        raise UserError(
            f"{command.name} takes one {command.words.called} at a time, not {' and '.join(words)}.",
            code="too-many-words",
        )
    quoted = ["'" + word.replace("\\", "\\\\").replace("'", "\\'") + "'" for word in words]
    return [f"{key}=[{','.join(quoted)}]" if command.words.many else f"{key}={quoted[0]}"]
