"""Sort what was typed after a command into overrides, plain words and options."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embodied_rl.cli.table import Command
from embodied_rl.config.freeze import did_you_mean
from embodied_rl.interfaces.errors import UserError

_FLAGS = {"--dry-run": "dry_run", "-m": "sweep", "--multirun": "sweep"}
_HYDRA = ("--info", "--hydra-help", "--resolve", "--package")
_SHOWN = ("--help", "--dry-run", "--cfg job", "--config-dir DIR", "-m")


@dataclass(frozen=True)
class Options:
    """What was typed after a command.

    Attributes:
        overrides: `key=value` as typed, plain words turned into one.
        dry_run: print what would run.
        show: print the configuration.
        sweep: run every combination.
        config_dir: an extra folder of YAML.
        hydra: options that are Hydra's own to answer, with their values.
    """

    overrides: tuple[str, ...] = ()
    dry_run: bool = False
    show: bool = False
    sweep: bool = False
    config_dir: Path | None = None
    hydra: tuple[str, ...] = ()


def parse(command: Command, arguments: Sequence[str]) -> Options:
    """Read what was typed after a command.

    Raises:
        UserError: an option that does not exist, or a plain word that the command does not take.
    """
    options, words = Options(), list[str]()
    rest = [part for text in arguments for part in (text.split("=", 1) if text.startswith("--") else [text])]
    while rest:
        text = rest.pop(0)
        if text in ("--cfg", "-c") and rest:
            kind = rest.pop(0)
            options = replace(options, show=True) if kind == "job" else replace(options, hydra=("--cfg", kind))
        elif text in ("--config-dir", "-cd") and rest:
            options = replace(options, config_dir=_folder(rest.pop(0)))
        elif text in _FLAGS:
            options = replace(options, **{_FLAGS[text]: True})
        elif text in _HYDRA:
            values = [rest.pop(0)] if rest and text in ("--info", "--package") else []
            options = replace(options, hydra=(*options.hydra, text, *values))
        elif text.startswith("-"):
            raise UserError(_unknown_option(text, rest))
        elif "=" in text or text.startswith("~"):
            options = replace(options, overrides=(*options.overrides, text))
        else:
            words.append(text)
    return replace(options, overrides=(*options.overrides, *_words(command, words)))


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise UserError(f"--config-dir {text}: there is no such folder.")
    return Path(text)


def _unknown_option(text: str, rest: Sequence[str]) -> str:
    value = rest[0] if rest else "<value>"
    key = text.lstrip("-").replace("-", "_")
    return (
        f"unknown option '{text}'.{did_you_mean(text, _SHOWN)} "
        f"Settings are written without dashes, such as {key}={value}."
    )


def _words(command: Command, words: Sequence[str]) -> list[str]:
    """Plain words as an override of the key that takes them."""
    if not words:
        return []
    if command.words is None:
        raise UserError(
            f"'{words[0]}' is not a setting: {command.name} takes key=value, such as "
            f"{(command.examples[0] or 'run.root=runs').split()[0]}."
        )
    if command.words.many:
        return [f"{command.words.key}=[{','.join(_quoted(word) for word in words)}]"]
    if len(words) > 1:
        raise UserError(f"{command.name} takes one {command.words.called} at a time, not {' and '.join(words)}.")
    return [f"{command.words.key}={_quoted(words[0])}"]


def _quoted(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
