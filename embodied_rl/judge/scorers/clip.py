"""CLIP or SigLIP scorer that contrasts texts of the goal with texts of other states.

The score is the probability of the positive texts in the softmax over all texts, with the model's own temperature
(contrasting language goals, arXiv:2412.15544). The checkpoint is a local folder in the format of transformers; nothing
is downloaded, and no code of the folder runs.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, Scorer, ScoreRequest, ScorerTraits, list_scored_cameras
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.interfaces.trust import FilePath, Text
from embodied_rl.judge.prompts.prompt_parts import check_placeholders, fill
from embodied_rl.judge.scorers.clip_model import ClipModel


@dataclass(frozen=True)
class ClipConfig:
    """The settings of `ClipScorer`."""

    path: FilePath | None = None
    """folder of a CLIP or SigLIP checkpoint in transformers' format, with safetensors, tokenizer and preprocessor."""
    positive: tuple[Text, ...] = ("{instruction}, and it is done",)
    """descriptions of a picture with the task done; {instruction} is the instruction."""
    negative: tuple[Text, ...] = ("a robot arm that has not begun to {instruction}",)
    """what it is like otherwise."""
    temperature: float = 1.0
    """the model's own is multiplied by it; more makes scores less sure."""
    batch: int = 32
    """requests of one forward pass."""
    device: Text = "cpu"
    """where the model computes, such as cuda."""

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("reward.path is missing: the folder of a CLIP or SigLIP checkpoint.", code="key-missing")
        if not self.positive or not self.negative:
            raise UserError(
                "reward.positive and reward.negative need a text each: a score is their contrast.", code="texts-too-few"
            )
        if self.batch < 1 or self.temperature <= 0:
            raise UserError(
                "reward.batch must be at least 1, and reward.temperature more than 0.", code="value-out-of-range"
            )
        for key, texts in (("positive", self.positive), ("negative", self.negative)):
            for text in texts:
                check_placeholders(text, ("instruction",), f"reward.{key}")


class ClipScorer(Scorer):
    """Answers "absolute" from the present picture; of several cameras the mean similarity counts.

    Raises:
        UserError: a setting is wrong, or the folder holds no such checkpoint.
    """

    Config = ClipConfig

    def __init__(self, config: ClipConfig, spec: SimulatorSpec) -> None:
        self._config, self._cameras = config, list_scored_cameras(spec)
        self._model = ClipModel(Path(str(config.path)), config.device)
        words = f"positive {list(config.positive)}, negative {list(config.negative)}"
        self.traits = ScorerTraits(("absolute",), f"{self._model.kind} of {config.path}, {words}", batch=config.batch)

    async def open(self) -> None:
        """Load the weights.

        Raises:
            UserError: they cannot be loaded.
        """
        await asyncio.to_thread(self._model.load)

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer requests in one forward pass."""
        return await asyncio.to_thread(self._judge, requests)

    @torch.inference_mode()
    def _judge(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        shown = [request.frames[camera][-1] for request in requests for camera in self._cameras]
        seen = self._model.encode_images(shown).unflatten(0, (len(requests), len(self._cameras)))  # [n, cameras, width]
        wanted, others = self._config.positive, self._config.negative
        scores: list[Score] = []
        for request, pictures in zip(requests, seen, strict=True):
            texts = [fill(text, {"instruction": request.instruction}) for text in (*wanted, *others)]
            shares = self._model.contrast(pictures, texts, self._config.temperature)
            scores.append(Score(min(max(float(shares[: len(wanted)].sum()), 0.0), 1.0)))
        return scores
