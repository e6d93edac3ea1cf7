"""Scorers of a CLIP or SigLIP checkpoint: goal texts against texts of other states, and movements against others.

`ClipScorer` contrasts language goals (arXiv:2412.15544). `ClipActionScorer` is the action contrast of Found-RL
(arXiv:2602.10458), which uses it as a bonus where positive, scaled by a running mean. Here it is a change of progress
in -1…1 (`pair`) that becomes a potential, so that a wrong model does not change the optimal policy.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from embodied_rl.config.assets import resolve_path
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreKind, Scorer, ScoreRequest, ScorerTraits, list_scored_cameras
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.interfaces.trust import FilePath, Text
from embodied_rl.judge.prompts.prompt_parts import check_placeholders, fill
from embodied_rl.judge.scorers.clip_model import ClipModel


@dataclass(frozen=True)
class CheckpointConfig:
    """Settings of a checkpoint."""

    path: FilePath | None = None
    """folder of a CLIP or SigLIP checkpoint in transformers' format, with safetensors, tokenizer and preprocessor."""
    temperature: float = 1.0
    """the model's own is multiplied by it; more makes scores less sure."""
    batch: int = 32
    """requests of one forward pass."""
    device: Text = "cpu"
    """where the model computes, such as cuda."""

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("reward.path is missing: the folder of a CLIP or SigLIP checkpoint.", code="key-missing")
        if self.batch < 1 or self.temperature <= 0:
            raise UserError(
                "reward.batch must be at least 1, and reward.temperature more than 0.", code="value-out-of-range"
            )


@dataclass(frozen=True)
class ClipConfig(CheckpointConfig):
    """The settings of `ClipScorer`."""

    positive: tuple[Text, ...] = ("{instruction}, and it is done",)
    """descriptions of a picture with the task done; {instruction} is the instruction."""
    negative: tuple[Text, ...] = ("a robot arm that has not begun to {instruction}",)
    """descriptions of other states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.positive or not self.negative:
            raise UserError(
                "reward.positive and reward.negative need a text each: a score is their contrast.", code="texts-too-few"
            )
        for key, texts in (("positive", self.positive), ("negative", self.negative)):
            for text in texts:
                check_placeholders(text, ("instruction",), f"reward.{key}")


@dataclass(frozen=True)
class ClipActionConfig(CheckpointConfig):
    """The settings of `ClipActionScorer`."""

    moves: dict[Text, Text] = field(default_factory=dict[str, str])
    """text of a movement → state entry that increases (+name) or decreases (-name)."""
    stays: Text = "stands still"
    """the words where no entry changes by `still`."""
    text: Text = "the task is to {instruction}. the robot {move}."
    """text compared with the picture; {instruction} is the task, {move} the text of a movement."""
    still: float = 0.003
    """change of an entry, in its own unit, below which nothing moves."""
    near: float = 0.5
    """movements with at least this share of the largest one were made, too, and are not held against it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.moves) < 2:
            raise UserError(
                "reward.moves needs two movements at least: a score is their contrast.", code="texts-too-few"
            )
        if self.still <= 0 or not 0 < self.near <= 1:
            raise UserError("reward.still must be more than 0, reward.near in 0…1.", code="value-out-of-range")
        check_placeholders(self.text, ("instruction", "move"), "reward.text")
        for words, entry in self.moves.items():
            if entry[:1] not in ("+", "-"):
                raise UserError(
                    f"reward.moves: '{words}' needs an entry of the state that begins with + or -: {entry}",
                    code="state-entry-invalid",
                )


class CheckpointScorer(Scorer):
    """Base of scorers that compare a picture with texts; of several cameras the mean similarity counts.

    Args:
        config, spec: see `Scorer`.
        kind: question that it answers.
        words: its texts, for the identity.
        frame: index of the compared picture; -1 is the present one.

    Raises:
        UserError: a setting is wrong, or the folder holds no such checkpoint.
    """

    def __init__(self, config: CheckpointConfig, spec: SimulatorSpec, kind: ScoreKind, words: str, frame: int) -> None:
        self._cameras, self._frame = list_scored_cameras(spec), frame
        self._model = ClipModel(resolve_path(str(config.path)), config.device)
        identity = f"{self._model.kind} of {config.path}, {words}"
        self.traits = ScorerTraits((kind,), identity, batch=config.batch, frames=-frame)

    async def open(self) -> None:
        """Load the weights, or raise `UserError`."""
        await asyncio.to_thread(self._model.load)

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer requests in one forward pass."""
        return await asyncio.to_thread(self._judge, requests)

    @torch.inference_mode()
    def _judge(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        shown = [request.frames[camera][self._frame] for request in requests for camera in self._cameras]
        seen = self._model.encode_images(shown).unflatten(0, (len(requests), len(self._cameras)))  # [n, cameras, width]
        return [self._contrast(request, pictures) for request, pictures in zip(requests, seen, strict=True)]

    @abstractmethod
    def _contrast(self, request: ScoreRequest, pictures: Tensor) -> Score:
        """Return the score of embedded pictures, [cameras, width]."""


class ClipScorer(CheckpointScorer):
    """Answers "absolute" from the present picture.

    The score is the probability of the positive texts in the softmax over all texts, with the model's own temperature.
    """

    Config = ClipConfig

    def __init__(self, config: ClipConfig, spec: SimulatorSpec) -> None:
        self._config = config
        words = f"positive {list(config.positive)}, negative {list(config.negative)}"
        super().__init__(config, spec, "absolute", words, frame=-1)

    def _contrast(self, request: ScoreRequest, pictures: Tensor) -> Score:
        wanted, others = self._config.positive, self._config.negative
        texts = [fill(text, {"instruction": request.instruction}) for text in (*wanted, *others)]
        shares = self._model.contrast(pictures, texts, self._config.temperature)
        return Score(min(max(float(shares[: len(wanted)].sum()), 0.0), 1.0))


class ClipActionScorer(CheckpointScorer):
    """Answers "pair" from the earlier picture and the change of the state; refuses requests without the state before.

    A text for each movement, such as "the robot moves up", is compared with the picture before it. The score is the
    probability of the actual movement minus the largest probability of another one.
    """

    Config = ClipActionConfig

    def __init__(self, config: ClipActionConfig, spec: SimulatorSpec) -> None:
        self._config = config
        self._entries = [find_entry(words, entry, spec) for words, entry in config.moves.items()]
        super().__init__(config, spec, "pair", f"moves {dict(config.moves)}, text '{config.text}'", frame=-2)

    def _contrast(self, request: ScoreRequest, pictures: Tensor) -> Score:
        if request.state_before is None:
            return Score.invalid("refused", "the state of the previous frame is unknown")
        config = self._config
        made = find_moves(request.state - request.state_before, self._entries, config.still, config.near)
        words = [*config.moves, config.stays]
        texts = [fill(config.text, {"instruction": request.instruction, "move": move}) for move in words]
        shares = self._model.contrast(pictures, texts, config.temperature).cpu().numpy()
        others = np.delete(shares, list(made))
        return Score(float(np.clip(shares[made[0]] - others.max(), -1, 1)))


def find_entry(words: str, entry: str, spec: SimulatorSpec) -> tuple[int, float]:
    """Return the place and sign of a movement's entry of the state, or raise `UserError`."""
    name = entry[1:]
    if name not in spec.state_names:
        raise UserError(
            f"reward.moves: '{words}' is {entry}, and the state has no '{name}'.{suggest_name(name, spec.state_names)}",
            code="state-entry-unknown",
        )
    return spec.state_names.index(name), 1.0 if entry[0] == "+" else -1.0


def find_moves(change: Array, entries: Sequence[tuple[int, float]], still: float, near: float) -> list[int]:
    """Return which movements were made, the largest first; the number of all of them for standing still.

    Args:
        change: of the state, float32 [S].
        entries: place and sign of each movement.
        still: changes below it are none.
        near: share of the largest change from which on another movement was made, too.
    """
    sizes = np.array([sign * float(change[place]) for place, sign in entries])
    if sizes.max() < still:
        return [len(entries)]
    order = np.argsort(-sizes, kind="stable")
    return [int(place) for place in order if sizes[place] >= max(still, near * sizes[order[0]])]
