"""Parse the arguments of a command into overrides, plain words and options."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from embodied_rl.cli.table import Command
from embodied_rl.config.freeze import read_text
from embodied_rl.interfaces.errors import UserError

_SHOWN = ("--help", "--help-all", "--dry-run", "--cfg job", "--config-dir DIR", "-m")


@dataclass(frozen=True)
class Options:
    """The parsed arguments of a command.

    Attributes:
        overrides: `key=value` as typed; plain words become one override.
        dry_run: print what would run, without running it.
        show: print the configuration.
        sweep: run every combination.
        config_dir: an extra folder of YAML.
        hydra: options that Hydra itself handles, with their values.
    """

    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    show: bool = False
    sweep: bool = False
    config_dir: Path | None = None
    hydra: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    """A parser that reports mistakes as `UserError`."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def make_option_parser() -> argparse.ArgumentParser:
    """Return a parser that knows `--config-dir`, accepts no abbreviated options, and raises `UserError`."""
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
    parser.add_argument("--hydra-help", dest="hydra", action="append_const", const="--hydra-help")
    for name in ("--info", "--package"):
        parser.add_argument(name, dest="hydra", action="append", type=f"{name}={{}}".format)
    typed, rest = parser.parse_known_args(arguments)
    if unknown := [text for text in rest if text.startswith("-")]:
        raise UserError(_unknown_option(unknown[0], rest))
    if typed.resolve and typed.cfg is None:
        raise UserError("--resolve says how --cfg prints references: add --cfg job, or leave it out.")
    overrides = [text for text in rest if "=" in text or text.startswith("~")]
    words = [text for text in rest if text not in overrides]
    overrides = [_expand_home(text) for text in overrides]
    folder, show = read_config_folder(typed.config_dir), typed.cfg == "job"  # which is printed resolved
    more = [] if typed.cfg is None or show else [f"--cfg={typed.cfg}", *(["--resolve"] if typed.resolve else [])]
    hydra = [*(typed.hydra or []), *more]
    return Options(
        (*overrides, *_words(command, words, overrides)), typed.dry_run, show, typed.multirun, folder, tuple(hydra)
    )


def _expand_home(override: str) -> str:
    """Return `key=~/path` with the home folder's path: a shell leaves it as it is, and a folder called ~ was made."""
    key, equals, value = override.partition("=")
    return f"{key}={Path(value).expanduser()}" if equals and value.startswith("~/") else override


def read_config_folder(text: str | None) -> Path | None:
    """Return the folder of `--config-dir`, or None if not typed.

    Raises:
        UserError: the folder does not exist, or a file of YAML in it is not UTF-8.
    """
    if text is None:
        return None
    if not (folder := Path(text)).is_dir():
        raise UserError(f"--config-dir {text}: there is no such folder.")
    for path in sorted(folder.glob("*/*.yaml")):
        read_text(path)
    return folder


def _unknown_option(text: str, arguments: Sequence[str]) -> str:
    name, equals, value = text.partition("=")
    key, after = name.lstrip("-").replace("-", "_"), [*arguments, ""][list(arguments).index(text) + 1]
    if not equals:
        value = "<value>" if not after or after.startswith("-") or "=" in after else after
    near = get_close_matches(name, _SHOWN, n=1, cutoff=0.75)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return f"unknown option '{name}'.{hint} Settings are written without dashes, such as {key}={value}."


def _words(command: Command, words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Turn plain words into an override of the command's key for words."""
    if not words:
        return []
    if command.words is None:
        raise UserError(
            f"'{words[0]}' is not a setting: {command.name} takes key=value, such as "
            f"{(command.examples[0] or 'run.root=runs').split()[0]}."
        )
    key = command.words.key
    if typed := next((text for text in overrides if text.partition("=")[0] == key), None):
        raise UserError(f"'{words[0]}' and {typed} both say {key}: leave one of them out.")
    if command.words.many:
        return [f"{command.words.key}=[{','.join(_quoted(word) for word in words)}]"]
    if len(words) > 1:
        raise UserError(f"{command.name} takes one {command.words.called} at a time, not {' and '.join(words)}.")
    return [f"{command.words.key}={_quoted(words[0])}"]


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
