"""Parse the arguments of a command into overrides, plain words and options."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import NoReturn

from embodied_rl.cli.command import Command
from embodied_rl.config.freeze import read_text
from embodied_rl.interfaces.errors import UserError

_SHOWN = ("--help", "--help-all", "--dry-run", "--cfg job", "--config-dir DIR", "-m")


@dataclass(frozen=True)
class Options:
    """The parsed arguments of a command.

    Attributes:
        overrides: `key=value` as typed; plain words become one override.
        dry_run: print what would run.
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
    parser.add_argument("--hydra-help", dest="hydra", action="append_const", const="--hydra-help")
    for name in ("--info", "--package"):
        parser.add_argument(name, dest="hydra", action="append", type=f"{name}={{}}".format)
    typed, rest = parser.parse_known_args(arguments)
    check_no_option(rest)
    if typed.resolve and typed.cfg is None:
        raise UserError(
            "--resolve is an option of --cfg: add --cfg job, or leave it out.", code="option-without-effect"
        )
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
