"""A CLIP or SigLIP checkpoint of transformers' format in a local folder: how alike pictures and texts are.

Nothing is downloaded, and no code of the folder runs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers.clip_images import prepare_pictures, read_settings
from embodied_rl.system.untrusted_files import read_json

MODELS = ("clip", "siglip")
KEPT_TEXTS = 1024
"""Number of cached text embeddings."""


class ClipModel:
    """Embeds pictures and texts; its weights are loaded by `load`.

    Args:
        folder: of the checkpoint.
        device: where it computes.

    Attributes:
        kind: "clip" or "siglip".

    Raises:
        UserError: the folder holds no such checkpoint, or its preprocessor is unknown.
    """

    def __init__(self, folder: Path, device: str) -> None:
        self.kind = find_kind(folder)
        self._folder, self._device, self._settings = folder, device, read_settings(folder)
        self._texts: dict[str, Tensor] = {}

    def load(self) -> None:
        """Load the weights.

        Raises:
            UserError: they cannot be loaded.
        """
        import transformers  # slow to import

        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(self._folder, **local)
            model = transformers.AutoModel.from_pretrained(self._folder, use_safetensors=True, **local)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise UserError(
                f"reward.path={self._folder} cannot be loaded: {' '.join(str(error).split())}",
                code="checkpoint-damaged",
            ) from None
        self._model = model.eval().requires_grad_(requires_grad=False).to(self._device)

    def encode_images(self, pictures: Sequence[Array]) -> Tensor:
        """Return the embeddings of pictures, uint8 [h, w, 3] each, of length 1: [n, width]."""
        pixels = prepare_pictures(pictures, self._settings).to(self._device)
        return _normalize(_pool(self._model.get_image_features(pixel_values=pixels)))

    def contrast(self, pictures: Tensor, texts: Sequence[str], temperature: float) -> Tensor:
        """Return the probability of each text in a softmax over them, float32 [m], with the model's own temperature.

        Args:
            pictures: embeddings [cameras, width] of one moment; the mean of their logits counts.
            texts: m texts.
            temperature: the model's own is multiplied by it.

        Raises:
            UserError: a text is longer than the model reads.
        """
        words = torch.stack([self._embed(text) for text in texts])
        return (self._model.logit_scale.exp() * (pictures @ words.T).mean(0) / temperature).float().softmax(0)

    def _embed(self, text: str) -> Tensor:
        if text not in self._texts:
            if len(self._texts) >= KEPT_TEXTS:
                self._texts.clear()
            most = int(self._model.config.text_config.max_position_embeddings)
            read = self._tokenizer(text, padding="max_length", max_length=most, return_tensors="pt")
            if read["input_ids"].shape[1] > most:
                raise UserError(
                    f"reward.path={self._folder} reads {most} tokens, and this text has more: {text}",
                    code="prompt-too-long",
                )
            given = {key: read[key].to(self._device) for key in ("input_ids", "attention_mask") if key in read}
            self._texts[text] = _normalize(_pool(self._model.get_text_features(**given)))[0]
        return self._texts[text]


def find_kind(folder: Path) -> str:
    """Return the type of a checkpoint's model.

    Raises:
        UserError: the folder holds none, or one of another type.
    """
    try:
        kind = read_json(folder / "config.json").get("model_type")
    except (UserError, AttributeError) as error:
        raise UserError(
            f"reward.path={folder} holds no checkpoint: {error}",
            code=getattr(error, "code", "") or "checkpoint-damaged",
        ) from None
    if not isinstance(kind, str) or kind not in MODELS:
        raise UserError(
            f"reward.path={folder} holds a model of type '{kind}', not one of {', '.join(MODELS)}.",
            code="checkpoint-unsupported",
        )
    return str(kind)


def _pool(found: Any) -> Tensor:
    """Return the features of a picture or text; transformers 5 puts them into an object."""
    return found if isinstance(found, Tensor) else found.pooler_output


def _normalize(features: Tensor) -> Tensor:
    return features / features.norm(dim=-1, keepdim=True)
