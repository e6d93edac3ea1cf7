"""Pictures in all supported encodings, and refusals of invalid ones."""

import io
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from embodied_rl.deployment.robots.description import CameraEntry
from embodied_rl.deployment.robots.fields import UnusableMessageError
from embodied_rl.deployment.robots.pictures import LARGEST_SIDE, check_picture, read_picture
from embodied_rl.deployment.transport.messages import Messages

MESSAGES = Messages()
RGB = np.random.default_rng(0).integers(0, 256, (6, 8, 3), np.uint8)
ALPHA = np.full((6, 8, 1), 9, np.uint8)
EXACT = CameraEntry("front", "front", 6, 8)


def make_image(pixels: Any, encoding: str, padding: int = 0, **changes: Any) -> Any:
    height, width = pixels.shape[:2]
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (0, padding)), constant_values=200)
    said = {"height": height, "width": width, "step": rows.shape[1], "encoding": encoding, "data": rows} | changes
    return MESSAGES.make("sensor_msgs/msg/Image", **said)


def compress(pixels: Any, kind: str, described: str = "") -> Any:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    data = np.frombuffer(file.getvalue(), np.uint8)
    return MESSAGES.make("sensor_msgs/msg/CompressedImage", format=described or kind, data=data)


def halve(message: Any) -> Any:
    return replace(message, data=message.data[: len(message.data) // 2])


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize(
    ("encoding", "pixels", "expected"),
    [
        ("rgb8", RGB, RGB),
        ("bgr8", RGB[..., ::-1], RGB),
        ("rgba8", np.concatenate([RGB, ALPHA], 2), RGB),
        ("bgra8", np.concatenate([RGB[..., ::-1], ALPHA], 2), RGB),
        ("mono8", RGB[..., :1], np.repeat(RGB[..., :1], 3, 2)),
    ],
)
def test_each_encoding(encoding: str, pixels: Any, expected: Any, padding: int) -> None:
    message = make_image(pixels, encoding, padding)
    picture = read_picture(MESSAGES.decode(message.__msgtype__, MESSAGES.encode(message.__msgtype__, message)), EXACT)
    assert np.array_equal(picture, expected) and picture.dtype == np.uint8 and picture.flags.writeable


@pytest.mark.parametrize("described", ["png", "rgb8; png compressed bgr8"])
def test_a_png_is_exact(described: str) -> None:
    assert np.array_equal(read_picture(compress(RGB, "png", described), EXACT), RGB)


@pytest.mark.parametrize("described", ["jpeg", "jpg", "bgr8; jpeg compressed bgr8"])
def test_a_jpeg_is_close(described: str) -> None:
    smooth = np.broadcast_to(np.linspace(0, 255, 8, dtype=np.uint8)[None, :, None], (6, 8, 3)).copy()
    difference = read_picture(compress(smooth, "jpeg", described), EXACT).astype(int) - smooth
    assert np.abs(difference).max() < 12


def test_area_is_the_mean_of_what_a_pixel_covers() -> None:
    small = read_picture(make_image(RGB, "rgb8"), CameraEntry("front", "front", 3, 4, resize="area"))
    assert np.abs(small - RGB.reshape(3, 2, 4, 2, 3).mean(axis=(1, 3))).max() <= 1  # rounded along both sides


def test_crop_keeps_the_middle_and_stretch_keeps_all() -> None:
    crop = CameraEntry("front", "front", 6, 6, resize="area", fit="crop")
    assert np.array_equal(read_picture(make_image(RGB, "rgb8"), crop), RGB[:, 1:7])
    wide = CameraEntry("front", "front", 2, 4, resize="area", fit="crop")
    assert np.array_equal(read_picture(make_image(RGB[:, :4], "rgb8"), wide), RGB[2:4, :4])
    larger = CameraEntry("front", "front", 3, 8, resize="area", fit="crop")
    assert read_picture(make_image(RGB[:, :4], "rgb8"), larger).shape == (3, 8, 3)
    stretch = CameraEntry("front", "front", 6, 4, resize="area", fit="stretch")
    mean = RGB.reshape(6, 4, 2, 3).mean(axis=2)
    assert np.abs(read_picture(make_image(RGB, "rgb8"), stretch) - mean).max() <= 0.5001


def test_nearest_takes_pixels_from_edge_to_edge() -> None:
    camera = CameraEntry("front", "front", 3, 3, resize="nearest", fit="stretch")
    assert np.array_equal(read_picture(make_image(RGB, "rgb8"), camera), RGB[[0, 2, 5]][:, [0, 4, 7]])
    larger = CameraEntry("front", "front", 12, 16, resize="nearest")
    assert np.array_equal(read_picture(make_image(RGB, "rgb8"), larger)[-1, -1], RGB[-1, -1])


def test_bilinear_differs_from_area() -> None:
    area = read_picture(make_image(RGB, "rgb8"), CameraEntry("f", "f", 3, 4, resize="area"))
    bilinear = read_picture(make_image(RGB, "rgb8"), CameraEntry("f", "f", 3, 4, resize="bilinear"))
    assert not np.array_equal(area, bilinear)


@pytest.mark.parametrize(
    ("message", "camera", "words"),
    [
        (make_image(RGB, "16UC1"), EXACT, "encoding '16UC1'"),
        (make_image(RGB, "yuv422"), EXACT, "encoding 'yuv422'"),
        (make_image(RGB, "rgb8", step=20), EXACT, "144 bytes in rows of 20 are not a picture of 8×6"),
        (make_image(RGB, "rgb8", height=7), EXACT, "of 8×7 pixels"),
        (make_image(RGB, "rgb8", height=0, data=[]), EXACT, "of 8×0 pixels"),
        (make_image(RGB, "rgb8"), CameraEntry("front", "front", 3, 4), "8×6 pixels, and cameras.front has 4×3: "),
        (make_image(RGB, "rgb8"), CameraEntry("front", "front", 3, 3, resize="area"), "fit: crop or stretch"),
        (compress(RGB, "png", "16UC1; compressedDepth png"), EXACT, "jpeg or png"),
        (compress(RGB, "gif"), EXACT, "format 'gif'"),
        (compress(RGB, "png", "jpeg"), EXACT, "not a JPEG"),
        (make_image(np.zeros((1, 0, 3), np.uint8), "rgb8"), EXACT, "of 0×1 pixels"),
        (halve(compress(RGB, "png")), EXACT, "not a PNG"),
        (compress(np.zeros((1, LARGEST_SIDE + 1, 3), np.uint8), "png"), EXACT, "too many to decode"),
    ],
)
def test_invalid_pictures_are_refused(message: Any, camera: CameraEntry, words: str) -> None:
    with pytest.raises(UnusableMessageError, match=r"camera front: ") as raised:
        read_picture(message, camera)
    assert words in str(raised.value)


def test_a_camera_info_of_another_size_is_refused() -> None:
    info = MESSAGES.make("sensor_msgs/msg/CameraInfo", height=480, width=640)
    with pytest.raises(UnusableMessageError, match="8×6 pixels, and its CameraInfo has 640×480"):
        read_picture(make_image(RGB, "rgb8"), EXACT, info)
    read_picture(make_image(RGB, "rgb8"), EXACT, MESSAGES.make("sensor_msgs/msg/CameraInfo", height=6, width=8))


@pytest.mark.parametrize(
    "message",
    [
        make_image(RGB, "rgb8"),
        make_image(RGB, "yuv422"),
        make_image(RGB[:4], "rgb8"),
        make_image(RGB, "rgb8", height=7),
        compress(RGB, "png"),
        compress(RGB[:4], "png"),
        compress(RGB, "png", "32FC1; compressedDepth png"),
        compress(RGB, "jpeg"),
        halve(compress(RGB, "jpeg")),
    ],
)
def test_the_quick_check_refuses_what_reading_refuses(message: Any) -> None:
    said = []
    for look in (read_picture, check_picture):
        try:
            look(message, EXACT)
        except UnusableMessageError as error:
            said.append(str(error))
    assert len(said) in (0, 2) and len(set(said)) <= 1
