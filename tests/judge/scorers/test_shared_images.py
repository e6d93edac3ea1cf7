"""Pictures travel unchanged where a prompt wants them so, and equal pictures give equal texts."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers import shared_images
from embodied_rl.judge.scorers.shared_images import ImageEncoder, Picture


def draw(height: int, width: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def read(file: bytes) -> Array:
    with Image.open(io.BytesIO(file), formats=("PNG",)) as opened:
        opened.verify()  # checksums
    with Image.open(io.BytesIO(file), formats=("PNG",)) as opened:
        assert opened.mode == "RGB"
        return np.asarray(opened)


@pytest.mark.parametrize(
    "picture",
    [
        draw(64, 64), draw(3, 5), draw(1, 1), draw(1, 300), np.zeros((480, 640, 3), np.uint8),
        draw(8, 12)[::-1, ::2], draw(6, 4).transpose(1, 0, 2),
    ],
    ids=["noise", "small", "pixel", "line", "black", "strided", "turned"],
)  # fmt: skip
def test_a_picture_without_loss_keeps_its_pixels(picture: Array) -> None:
    _, data = ImageEncoder(1024).encode(Picture(picture), lossless=True).split(",")
    np.testing.assert_array_equal(read(base64.b64decode(data)), picture)


def test_equal_pictures_give_equal_texts() -> None:
    encoder = ImageEncoder(224)
    one, other = Picture(draw(64, 64)), Picture(draw(64, 64, seed=1))
    said = encoder.encode(one, lossless=True)
    assert said == ImageEncoder(224).encode(one, lossless=True) == encoder.encode(Picture(draw(64, 64)), True)
    assert said != encoder.encode(other, lossless=True) != encoder.encode(other)
    kind, data = said.split(",")
    assert kind == "data:image/png;base64"
    np.testing.assert_array_equal(read(base64.b64decode(data)), draw(64, 64))


def test_what_is_kept_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = ImageEncoder(64)
    size = len(encoder.encode(Picture(draw(64, 64))))
    monkeypatch.setattr(shared_images, "KEPT_BYTES", 4 * size)
    for seed in range(20):
        encoder.encode(Picture(draw(64, 64, seed)))
        assert sum(map(len, encoder._encoded.values())) <= 4 * size
    drawn = list(encoder._encoded)
    encoder.encode(Picture(draw(64, 64, 19)))
    assert list(encoder._encoded) == drawn and len(drawn) > 1
    assert all(len(digest) == 32 for digest, _ in drawn), "and no key holds pixels"
