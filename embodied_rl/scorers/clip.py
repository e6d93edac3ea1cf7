"""A scorer that contrasts goals in words: how much more a picture is like what is wanted than like what is not.

A CLIP or SigLIP checkpoint of transformers' format in a local folder judges. Its score is the probability of the wanted
texts in the softmax over all texts, with the model's own temperature (contrasting language goals, arXiv:2412.15544).
Nothing is downloaded, and no code of the folder runs.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, Scorer, ScoreRequest, ScorerTraits
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.scorers.cameras import list_scored_cameras
from embodied_rl.scorers.clip_pictures import prepare_pictures, read_settings
from embodied_rl.scorers.prompt_parts import check_placeholders, fill

MODELS = ("clip", "siglip")
KEPT_TEXTS = 1024
"""Texts whose embeddings are kept."""


@dataclass(frozen=True)
class ClipConfig:
    """The settings of `ClipScorer`."""

    path: str | None = None
    """folder of a CLIP or SigLIP checkpoint in transformers' format, with safetensors, tokenizer and preprocessor."""
    positive: tuple[str, ...] = ("{instruction}, and it is done",)
    """what a picture is like when the task is done; {instruction} is the task in words."""
    negative: tuple[str, ...] = ("a robot arm that has not begun to {instruction}",)
    """what it is like otherwise."""
    temperature: float = 1.0
    """the model's own is multiplied by it; more makes scores less sure."""
    batch: int = 32
    """requests of one forward pass."""
    device: str = "cpu"
    """where the model computes, such as cuda."""

    def __post_init__(self) -> None:
        if not self.path:
            raise UserError("reward.path is missing: the folder of a CLIP or SigLIP checkpoint.")
        if not self.positive or not self.negative:
            raise UserError("reward.positive and reward.negative need a text each: a score is their contrast.")
        if self.batch < 1 or self.temperature <= 0:
            raise UserError("reward.batch must be at least 1, and reward.temperature more than 0.")
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
        self._config, self._folder, self._cameras = config, Path(str(config.path)), list_scored_cameras(spec)
        self._kind = find_kind(self._folder)
        self._settings = read_settings(self._folder)
        self._texts: dict[str, Tensor] = {}
        words = f"positive {list(config.positive)}, negative {list(config.negative)}"
        self.traits = ScorerTraits(("absolute",), f"{self._kind} of {config.path}, {words}", batch=config.batch)

    async def open(self) -> None:
        """Load the weights.

        Raises:
            UserError: they cannot be loaded.
        """
        await asyncio.to_thread(self._load)

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        """Answer requests in one forward pass."""
        return await asyncio.to_thread(self._judge, requests)

    def _load(self) -> None:
        import transformers  # slow to import

        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(self._folder, **local)
            model = transformers.AutoModel.from_pretrained(self._folder, use_safetensors=True, **local)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(f"reward.path={self._folder} cannot be loaded: {' '.join(str(error).split())}") from None
        self._model = model.eval().requires_grad_(requires_grad=False).to(self._config.device)

    @torch.inference_mode()
    def _judge(self, requests: Sequence[ScoreRequest]) -> list[Score]:
        shown = [request.frames[camera][-1] for request in requests for camera in self._cameras]
        pixels = prepare_pictures(shown, self._settings).to(self._config.device)
        seen = _normalize(_pool(self._model.get_image_features(pixel_values=pixels)))
        seen = seen.unflatten(0, (len(requests), len(self._cameras)))  # [n, cameras, width]
        wanted, others = self._config.positive, self._config.negative
        scores = []
        for request, pictures in zip(requests, seen, strict=True):
            words = {"instruction": request.instruction}
            texts = torch.stack([self._embed(fill(text, words)) for text in (*wanted, *others)])
            logits = self._model.logit_scale.exp() * (pictures @ texts.T).mean(0) / self._config.temperature
            share = float(logits.float().softmax(0)[: len(wanted)].sum())
            scores.append(Score(min(max(share, 0.0), 1.0)))
        return scores

    def _embed(self, text: str) -> Tensor:
        """Return the embedding of a text, [width].

        Raises:
            UserError: the text is longer than the model reads.
        """
        if text not in self._texts:
            if len(self._texts) >= KEPT_TEXTS:
                self._texts.clear()
            most = int(self._model.config.text_config.max_position_embeddings)
            read = self._tokenizer(text, padding="max_length", max_length=most, return_tensors="pt")
            if read["input_ids"].shape[1] > most:
                raise UserError(f"reward.path={self._folder} reads {most} tokens, and this text has more: {text}")
            given = {key: read[key].to(self._config.device) for key in ("input_ids", "attention_mask") if key in read}
            found = self._model.get_text_features(**given)
            self._texts[text] = _normalize(_pool(found))[0]
        return self._texts[text]


def find_kind(folder: Path) -> str:
    """Return the type of a checkpoint's model.

    Raises:
        UserError: the folder holds none, or one of another type.
    """
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"reward.path={folder} holds no checkpoint: {error}") from None
    if kind not in MODELS:
        raise UserError(f"reward.path={folder} holds a model of type '{kind}', not one of {', '.join(MODELS)}.")
    return str(kind)


def _pool(found: Any) -> Tensor:
    """Return the features of a picture or text; transformers 5 puts them into an object."""
    return found if isinstance(found, Tensor) else found.pooler_output


def _normalize(features: Tensor) -> Tensor:
    return features / features.norm(dim=-1, keepdim=True)
