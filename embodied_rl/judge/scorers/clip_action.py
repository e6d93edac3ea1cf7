"""CLIP or SigLIP scorer of movements: whether a picture and the task suggest the robot's next movement.

A text for each movement, such as "the robot moves up", is compared with the picture before it. The score is the
probability of the actual movement minus the largest probability of another one: the action contrast of Found-RL
(arXiv:2602.10458), with a CLIP or SigLIP checkpoint in a local folder. Found-RL uses it as a bonus where positive,
scaled by a running mean. Here it is a change of progress in -1…1 (`pair`) that becomes a potential, so that a wrong
model does not change the optimal policy.

The actual movement is computed from the change of the robot's state.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, Scorer, ScoreRequest, ScorerTraits, list_scored_cameras
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.interfaces.trust import FilePath, Text
from embodied_rl.judge.prompts.prompt_parts import check_placeholders, fill
from embodied_rl.judge.scorers.clip_model import ClipModel


@dataclass(frozen=True)
class ClipActionConfig:
    """The settings of `ClipActionScorer`."""

    path: FilePath | None = None
    """folder of a CLIP or SigLIP checkpoint in transformers' format, with safetensors, tokenizer and preprocessor."""
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
    temperature: float = 1.0
    """the model's own is multiplied by it; more makes scores less sure."""
    batch: int = 32
    """requests of one forward pass."""
    device: Text = "cpu"
    """where the model computes, such as cuda."""

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("reward.path is missing: the folder of a CLIP or SigLIP checkpoint.", code="key-missing")
        if len(self.moves) < 2:
            raise UserError(
                "reward.moves needs two movements at least: a score is their contrast.", code="texts-too-few"
            )
        if self.batch < 1 or self.temperature <= 0 or self.still <= 0 or not 0 < self.near <= 1:
            raise UserError(
                "reward.batch must be at least 1, reward.temperature and reward.still more than 0, reward.near in 0…1.",
                code="value-out-of-range",
            )
        check_placeholders(self.text, ("instruction", "move"), "reward.text")
        for words, entry in self.moves.items():
            if entry[:1] not in ("+", "-"):
                raise UserError(
                    f"reward.moves: '{words}' needs an entry of the state that begins with + or -: {entry}",
                    code="state-entry-invalid",
                )


class ClipActionScorer(Scorer):
    """Answers "pair" from the earlier picture and the change of the state.

    Raises:
        UserError: a setting is wrong, the simulator has no such entry of the state, or the folder holds no such
            checkpoint.
    """

    Config = ClipActionConfig

    def __init__(self, config: ClipActionConfig, spec: SimulatorSpec) -> None:
        self._config, self._cameras = config, list_scored_cameras(spec)
        self._entries = [find_entry(words, entry, spec) for words, entry in config.moves.items()]
        self._model = ClipModel(Path(str(config.path)), config.device)
        words = f"moves {dict(config.moves)}, text '{config.text}'"
        identity = f"{self._model.kind} of {config.path}, {words}"
        self.traits = ScorerTraits(("pair",), identity, batch=config.batch, frames=2)

    async def open(self) -> None:
        """Load the weights.

        Raises:
            UserError: they cannot be loaded.
        """
        await asyncio.to_thread(self._model.load)

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer requests in one forward pass; one without the state before is refused."""
        return await asyncio.to_thread(self._judge, requests)

    @torch.inference_mode()
    def _judge(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        shown = [request.frames[camera][-2] for request in requests for camera in self._cameras]
        seen = self._model.encode_images(shown).unflatten(0, (len(requests), len(self._cameras)))  # [n, cameras, width]
        return [self._contrast(request, pictures) for request, pictures in zip(requests, seen, strict=True)]

    def _contrast(self, request: ScoreRequest, pictures: torch.Tensor) -> Score:
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
    """Return the place and sign of a movement's entry of the state.

    Raises:
        UserError: the simulator has no such entry.
    """
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
