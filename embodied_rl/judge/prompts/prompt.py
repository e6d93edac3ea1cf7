"""Prompts: what a vision-language model is asked, and how its answer becomes a number."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.config.freeze import freeze_config, suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScoreKind, Span
from embodied_rl.judge.prompts.answer_parser import EntryKeys, Reading
from embodied_rl.judge.prompts.prompt_parts import Part, PromptPictures, make_part
from embodied_rl.schema.config_file import read_config

FOLDER = Path(__file__).parent
PROMPT_NAMES = frozenset(path.stem for path in FOLDER.glob("*.yaml"))
"""Of the built-in prompts."""
MOST_LABELS = 20
"""Maximum of `top_logprobs` of common servers."""
MOST_FRAMES = 64
"""Frames of a request."""


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
    """system message."""
    labels: dict[str, float] = field(default_factory=dict)
    """answers of one token → value; the score is their mean, weighted by probability. Spaces around a token and the
    case of its letters do not count."""
    log_range: float | None = None
    """with one label: the score is 1 + log P / log_range of its probability P, at least 0."""
    words: dict[str, float] = field(default_factory=dict)
    """for answers in text: word → value; the last one counts."""
    pattern: str | None = None
    """for answers in text: a regular expression whose first group is the number."""
    entries: EntryKeys | None = None
    """for answers in JSON: keys of each object of a list, one for each frame."""
    offset: float = 0.0
    """for numbers in text: it is subtracted first."""
    scale: float = 1.0
    """for numbers in text: then the number is divided by it."""
    max_tokens: int = 1
    """length of the answer."""
    frames: int = 1
    """frames of a request, at most."""
    span: Span = "latest"
    """which frames: the latest ones, or some of the whole episode so far, evenly."""
    lossless: bool = False
    """whether pictures travel as they are, in PNG; otherwise as JPEG of `reward.picture_size`."""
    source: str = ""
    """where the words are from, if a model was trained with them."""
    licence: str = ""
    """of that source."""


@dataclass(frozen=True)
class Prompt(PromptFile):
    """Validated prompt of a file.

    Attributes:
        name: of the prompt, with its version.
        parts: texts and pictures, in order.
        reading: how the answer is parsed.
    """

    name: str = ""
    parts: tuple[Part, ...] = ()
    reading: Reading = field(default_factory=Reading)

    @property
    def views(self) -> int:
        """Return how many views the prompt numbers; 0 where it shows all that there are."""
        return max((part.view + 1 for part in self.pictures if part.view is not None), default=0)

    @property
    def pictures(self) -> tuple[PromptPictures, ...]:
        """Return the parts that are pictures."""
        return tuple(part for part in self.parts if isinstance(part, PromptPictures))

    @property
    def needs_reference(self) -> bool:
        """Return whether it shows a reference trajectory, or its end."""
        return any(part.shown in ("reference", "goal") for part in self.pictures)


def list_prompts() -> dict[str, str]:
    """Return the built-in prompts: name → what is asked, in one line."""
    lines = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(FOLDER.glob("*.yaml"))}
    return {name: line.removeprefix("# ") for name, line in lines.items()}


def find_prompt(name: str, key: str = "prompt") -> Path:
    """Return the file of a built-in prompt, or the one that `name` is the path of, or raise `UserError`."""
    path = FOLDER / f"{name}.yaml" if name in PROMPT_NAMES else Path(name)
    if not path.is_file():
        raise UserError(
            f"reward.{key}: there is no prompt '{name}', and no such file.{suggest_name(name, sorted(PROMPT_NAMES))}",
            code="prompt-unknown",
        )
    return path


def load_prompt(name: str, key: str = "prompt") -> Prompt:
    """Return a built-in prompt, or that of a YAML file; `key` is the scorer's setting, for messages.

    Raises:
        UserError: there is none, or the file is no prompt; the message names file and key.
    """
    path = find_prompt(name, key)
    try:
        keys = read_config(path)
    except UserError as error:
        raise UserError(f"reward.{key}: {error}", code=error.code) from None
    file = freeze_config(PromptFile, keys, str(path))
    where = f"reward.prompt: {path}"
    pattern = None
    if file.pattern is not None:
        try:
            pattern = re.compile(file.pattern, re.IGNORECASE)
        except re.error as error:
            raise UserError(f"{where}: pattern: {error}", code="prompt-invalid") from None
        if pattern.groups != 1:
            raise UserError(
                f"{where}: pattern has {pattern.groups} groups, and needs one, for the number.", code="prompt-invalid"
            )
    labels, words = (_fold(values, where) for values in (file.labels, file.words))
    reading = Reading(labels, file.log_range, words, pattern, file.entries, file.offset, file.scale)
    parts = tuple(make_part(part, str(path)) for part in file.user)
    prompt = Prompt(**vars(file), name=f"{path.stem}@{file.version}", parts=parts, reading=reading)
    for fault in (_find_fault(prompt.kind, reading), _find_picture_fault(prompt)):
        if fault is not None:
            raise UserError(f"{where}{fault}", code="prompt-invalid")
    return prompt


def _fold(values: Mapping[str, float], where: str) -> dict[str, float]:
    """Return the values by words without case and outer spaces, as an answer is compared with them."""
    folded: dict[str, float] = {}
    for word, value in values.items():
        if (key := word.strip().casefold()) in folded:
            raise UserError(
                f"{where}: '{word}' stands there twice: case and spaces do not count.", code="prompt-invalid"
            )
        folded[key] = value
    return folded


def _find_fault(kind: ScoreKind, reading: Reading) -> str | None:
    """Return what is wrong with how answers are read, if anything is."""
    if sum(bool(each) for each in (reading.labels, reading.words, reading.pattern, reading.entries)) != 1:
        return " must have either labels or a pattern, or words, or entries; one of them alone."
    if len(reading.labels) > MOST_LABELS:
        return f" has {len(reading.labels)} labels; the maximum is {MOST_LABELS}."
    if reading.log_range is not None and (len(reading.labels) != 1 or not 0 < reading.log_range < float("inf")):
        return ": log_range is a positive number, and goes with one label."
    if reading.scale == 0:
        return ": scale must not be 0."
    if (kind == "trajectory") != (reading.entries is not None):
        return ": kind=trajectory and entries go together: a number for each frame."
    return None


def _find_picture_fault(prompt: Prompt) -> str | None:
    """Return what is wrong with the pictures that are shown, if anything is."""
    kind, frames, shown = prompt.kind, prompt.frames, {part.shown for part in prompt.pictures}
    present = {"frame", "frames", "shuffled"} & shown
    if not present:
        return " shows no picture of the present: 'frame' is missing in user."
    if kind == "trajectory" and "frame" in present:
        return ": kind=trajectory shows 'frames' or 'shuffled'."
    if kind == "pair" and not {"before", "frames"} & shown:
        return ": kind=pair compares: 'before' or 'frames' is missing in user."
    if kind != "pair" and "before" in shown:
        return ": 'before' is shown by prompts of kind=pair alone."
    if "shuffled" in shown and kind != "trajectory":
        return ": 'shuffled' frames are for kind=trajectory."
    if not 1 <= frames <= MOST_FRAMES:
        return f": frames={frames} must be within 1 … {MOST_FRAMES}."
    if frames < 2 and ({"before", "frames", "shuffled"} & shown):
        return f": frames={frames} is too few for a prompt that shows several."
    return None
