"""Prompts: what a vision-language model is asked, and how its answer becomes a number."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from embodied_rl.config.freeze import freeze_config, suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScoreKind

FOLDER = Path(__file__).parent / "prompts"
MOST_LABELS = 20
"""Servers tell the probabilities of at most so many tokens."""

_PLACEHOLDER = re.compile(r"\{([a-z]+)\}")

Part = Literal["first", "frame"]
"""A picture of the prompt: the episode's first one, or the present one; of each camera."""


@dataclass(frozen=True)
class PromptText:
    """A text of a prompt, with placeholders.

    `{instruction}` stands for the task in words, `{state}` for the numbers of the proprioception, `{cameras}` for the
    names of the cameras whose pictures follow, in their order.
    """

    text: str

    def fill(self, values: Mapping[str, str]) -> str:
        """Return the text with its placeholders replaced, once: what an instruction says is not read again."""
        return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), self.text)


@dataclass(frozen=True)
class PromptFile:
    """The keys of a prompt's YAML file."""

    version: int
    """counts the changes of the file."""
    kind: ScoreKind
    """the question."""
    user: tuple[Any, ...]
    """texts and pictures, in order."""
    system: str = ""
    """what the model is told first."""
    labels: dict[str, float] = field(default_factory=dict)
    """answers of one token → value; the score is their mean, weighted by probability."""
    pattern: str | None = None
    """for answers in text: a regular expression whose first group is the number."""
    scale: float = 1.0
    """for answers in text: the number is divided by it."""
    max_tokens: int = 1
    """length of the answer."""
    lossless: bool = False
    """whether pictures travel as they are, in PNG; otherwise as JPEG of `reward.picture_size`."""


@dataclass(frozen=True)
class Prompt:
    """A prompt, checked.

    Attributes:
        name: of the prompt, with its version.
        kind: the question.
        system: what the model is told first; may be empty.
        parts: texts and pictures, in order.
        labels: answer → value; empty where the answer is read from text.
        pattern: finds the number in a text; None where the answer is a label.
        scale: the number in the text is divided by it.
        max_tokens: length of the answer.
        lossless: whether pictures travel as they are.
    """

    name: str
    kind: ScoreKind
    system: str
    parts: tuple[PromptText | Part, ...]
    labels: Mapping[str, float]
    pattern: re.Pattern[str] | None
    scale: float
    max_tokens: int
    lossless: bool = False

    def read_text(self, text: str) -> float | None:
        """Return the number that an answer in words says, before any check of its range; None if it says none."""
        if self.pattern is None:
            return self.labels.get(text.strip().strip("\"'.").casefold())
        found = self.pattern.search(text)
        return None if found is None else float(found[1]) / self.scale


def load_prompt(name: str) -> Prompt:
    """Return a built-in prompt, or that of a YAML file.

    Raises:
        UserError: there is none, or the file is not what a prompt is; the message names file and key.
    """
    known = sorted(path.stem for path in FOLDER.glob("*.yaml"))
    path = FOLDER / f"{name}.yaml" if name in known else Path(name)
    if not path.is_file():
        raise UserError(f"reward.prompt: there is no prompt '{name}', and no such file.{suggest_name(name, known)}")
    try:
        keys = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"reward.prompt: {path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(keys, Mapping):
        raise UserError(f"reward.prompt: {path} holds no keys.")
    return _make_prompt(freeze_config(PromptFile, dict(keys), str(path)), path)


def _make_prompt(file: PromptFile, path: Path) -> Prompt:
    if bool(file.labels) == (file.pattern is not None):
        raise UserError(f"reward.prompt: {path} must have either labels or a pattern.")
    if len(file.labels) > MOST_LABELS:
        raise UserError(f"reward.prompt: {path} has {len(file.labels)} labels; servers tell {MOST_LABELS} at most.")
    labels = {label.casefold(): value for label, value in file.labels.items()}
    parts: tuple[PromptText | Part, ...] = tuple(_make_part(part, path) for part in file.user)
    if "frame" not in parts:
        raise UserError(f"reward.prompt: {path} shows no picture of the present: 'frame' is missing in user.")
    return Prompt(
        f"{path.stem}@{file.version}", file.kind, file.system, parts, labels, _compile(file.pattern, path), file.scale,
        file.max_tokens, file.lossless,
    )  # fmt: skip


def _make_part(part: Any, path: Path) -> PromptText | Part:
    if part == "first":
        return "first"
    if part == "frame":
        return "frame"
    if isinstance(part, Mapping) and list(part) == ["text"] and isinstance(part["text"], str):
        return PromptText(part["text"])
    raise UserError(f"reward.prompt: {path}: user holds {part!r}, which is neither a text nor 'first' nor 'frame'.")


def _compile(pattern: str | None, path: Path) -> re.Pattern[str] | None:
    if pattern is None:
        return None
    try:
        found = re.compile(pattern, re.IGNORECASE)
    except re.error as error:
        raise UserError(f"reward.prompt: {path}: pattern: {error}") from None
    if found.groups != 1:
        raise UserError(f"reward.prompt: {path}: pattern has {found.groups} groups, and needs one, for the number.")
    return found
