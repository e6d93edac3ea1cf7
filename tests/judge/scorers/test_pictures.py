"""Pictures travel unchanged where a prompt wants them so, and equal pictures give equal texts."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers.pictures import PictureEncoder


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
    _, data = PictureEncoder(1024).encode(picture, lossless=True).split(",")
    np.testing.assert_array_equal(read(base64.b64decode(data)), picture)


def test_equal_pictures_give_equal_texts() -> None:
    encoder = PictureEncoder(224)
    said = encoder.encode(draw(64, 64), lossless=True)
    assert said == PictureEncoder(224).encode(draw(64, 64), lossless=True) == encoder.encode(draw(64, 64), True)
    assert said != encoder.encode(draw(64, 64, seed=1), lossless=True) != encoder.encode(draw(64, 64, seed=1))
    kind, data = said.split(",")
    assert kind == "data:image/png;base64"
    np.testing.assert_array_equal(read(base64.b64decode(data)), draw(64, 64))
