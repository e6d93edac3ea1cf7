"""A CLIP or SigLIP checkpoint of transformers' format in a local folder: the similarity of pictures and texts.

Nothing is downloaded, and no code of the folder runs. Pictures are prepared without torchvision.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.system.untrusted_files import read_json

FILE = "preprocessor_config.json"
_READ = ("size", "crop_size", "resample", "image_mean", "image_std", "rescale_factor")
_SWITCHES = ("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb")
_NAMES = ("image_processor_type", "feature_extractor_type", "processor_class", "data_format", "_processor_class")
"""Settings that change no picture."""
LARGEST_SIDE = 4096
"""Pixels that a folder may ask for."""
MODELS = ("clip", "siglip")
KEPT_TEXTS = 1024
"""Number of cached text embeddings."""


class ClipModel:
    """Embeds pictures and texts on a device; its weights are loaded by `load`.

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
        """Load the weights, or raise `UserError`."""
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
        return _normalize(self._model.get_image_features(pixel_values=pixels))

    def contrast(self, pictures: Tensor, texts: Sequence[str], temperature: float) -> Tensor:
        """Return the probability of each text in a softmax over them, float32 [m].

        Args:
            pictures: embeddings [cameras, width] of one moment; the mean of their logits counts.
            texts: m texts.
            temperature: factor of the model's own.

        Raises:
            UserError: a text is longer than the model reads.
        """
        words = torch.stack([self._embed(text) for text in texts])
        return (self._model.logit_scale.exp() * (pictures @ words.T).mean(0) / temperature).float().softmax(0)

    def _embed(self, text: str) -> Tensor:
        """Return the embedding of a text, of length 1: [width]."""
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
            self._texts[text] = _normalize(self._model.get_text_features(**given))[0]
        return self._texts[text]


def find_kind(folder: Path) -> str:
    """Return the type of a checkpoint's model, or raise `UserError`."""
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


def _normalize(found: Any) -> Tensor:
    """Return features of length 1; transformers 5 puts them into an object."""
    features = found if isinstance(found, Tensor) else found.pooler_output
    return features / features.norm(dim=-1, keepdim=True)


@dataclass(frozen=True)
class PictureSettings:
    """Steps of the preparation of a picture, in this order.

    Attributes:
        shortest: pixels of the shorter side after resizing; or None, and `size` is (height, width).
        size: see there; None for no resizing.
        resample: PIL's number of the filter.
        crop: (height, width) that is cut out of the middle; None cuts nothing.
        rescale: factor of the values.
        mean, std: of each colour, for (x - mean) / std.
    """

    shortest: int | None
    size: tuple[int, int] | None
    resample: int
    crop: tuple[int, int] | None
    rescale: float
    mean: tuple[float, ...]
    std: tuple[float, ...]


def read_settings(folder: Path) -> PictureSettings:
    """Return the settings of a checkpoint's folder.

    Raises:
        UserError: there are none, or one is unknown; the message names file and key.
    """
    try:
        keys = read_json(folder / FILE)
    except UserError as error:
        raise UserError(f"reward.path: {error}", code=error.code) from None
    known = (*_READ, *_SWITCHES, *_NAMES)
    if not isinstance(keys, dict):
        raise UserError(f"reward.path: {folder / FILE} holds no keys.", code="preprocessor-invalid")
    for key, value in keys.items():
        if key not in known and value is not None:
            raise UserError(
                f"reward.path: {folder / FILE}: unknown setting '{key}'.{suggest_name(key, known)}",
                code="preprocessor-invalid",
            )

    def is_on(name: str, default: bool) -> bool:
        value = keys.get(name)
        if value not in (None, True, False):
            raise ValueError(f"{name} is neither true nor false")
        return default if value is None else bool(value)

    try:
        size = keys.get("size") if is_on("do_resize", default=True) else None
        shortest = size.get("shortest_edge") if isinstance(size, dict) else size
        normalize = is_on("do_normalize", default=True)
        settings = PictureSettings(
            shortest=None if shortest is None else int(shortest),
            size=_read_size(size) if isinstance(size, dict) and shortest is None else None,
            resample=int(keys.get("resample", Image.Resampling.BICUBIC)),
            crop=_read_size(keys["crop_size"]) if is_on("do_center_crop", default="crop_size" in keys) else None,
            rescale=float(keys.get("rescale_factor", 1 / 255)) if is_on("do_rescale", default=True) else 1.0,
            mean=_read_colours(keys["image_mean"]) if normalize else (0.0, 0.0, 0.0),
            std=_read_colours(keys["image_std"]) if normalize else (1.0, 1.0, 1.0),
        )
        sides = [settings.shortest, *(settings.size or ()), *(settings.crop or ())]
        if any(side is not None and not 1 <= side <= LARGEST_SIDE for side in sides):
            raise ValueError(f"a picture has 1 to {LARGEST_SIDE} pixels a side")
        if not all(map(math.isfinite, (settings.rescale, *settings.mean, *settings.std))) or min(settings.std) <= 0:
            raise ValueError("a number is not finite, or one of image_std is not above 0")
        Image.Resampling(settings.resample)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"reward.path: {folder / FILE} lacks a setting, or it is not a number: {error}", code="preprocessor-invalid"
        ) from None
    return settings


def _read_size(size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        return int(size["height"]), int(size["width"])
    return int(size), int(size)


def _read_colours(channels: Sequence[Any]) -> tuple[float, ...]:
    values = tuple(float(each) for each in channels)
    if len(values) != 3:
        raise ValueError(f"{len(values)} numbers for 3 colours")
    return values


def prepare_pictures(pictures: Sequence[Array], settings: PictureSettings) -> Tensor:
    """Return pictures, uint8 [h, w, 3] each, as float32 [n, 3, h, w]."""
    drawn = np.stack([_resize(picture, settings) for picture in pictures]).astype(np.float32) * settings.rescale
    mean, std = (np.asarray(each, np.float32) for each in (settings.mean, settings.std))
    scaled = (drawn - mean) / std
    return torch.from_numpy(np.ascontiguousarray(scaled.transpose(0, 3, 1, 2), np.float32))


def _resize(picture: Array, settings: PictureSettings) -> Array:
    drawn = Image.fromarray(np.ascontiguousarray(picture))
    height, width = settings.size or (drawn.height, drawn.width)
    if settings.shortest is not None:
        short, long = sorted((drawn.height, drawn.width))
        sides = settings.shortest, int(settings.shortest * long / short)
        height, width = sides if drawn.height <= drawn.width else sides[::-1]
    if (drawn.height, drawn.width) != (height, width):
        drawn = drawn.resize((width, height), Image.Resampling(settings.resample))
    resized = np.asarray(drawn)
    if settings.crop is None:
        return resized
    short = [max(0, wanted - side) for wanted, side in zip(settings.crop, resized.shape[:2], strict=True)]
    padded = np.pad(resized, (*(((each + 1) // 2, each // 2) for each in short), (0, 0)))  # black around it
    top, left = ((side - wanted) // 2 for side, wanted in zip(padded.shape[:2], settings.crop, strict=True))
    return padded[top : top + settings.crop[0], left : left + settings.crop[1]]
