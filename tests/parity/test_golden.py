"""Are the recorded tensors still those of the recipe, and do they say what they are taken to say?"""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.support import key_lists, pi_inputs
from tests.support import pi_sizes as sizes

GOLDEN = Path(__file__).parent / "golden"
FAMILIES = ("pi0", "pi05")


def golden(family: str) -> dict[str, Tensor]:
    return load_file(GOLDEN / f"{family}_lerobot.safetensors")


def scaled(family: str, values: Tensor, name: str) -> Tensor:
    """The normalization that lerobot documents: mean and deviation for π0, 1st and 99th percentile for π0.5."""
    known = {key: torch.from_numpy(value) for key, value in sizes.statistics(name, values.shape[-1]).items()}
    if family == "pi0":
        return (values - known["mean"]) / (known["std"] + 1e-8)
    span = known["q99"] - known["q01"]
    return 2 * (values - known["q01"]) / torch.where(span == 0, 1e-8, span) - 1


def unscaled(family: str, values: Tensor, name: str) -> Tensor:
    known = {key: torch.from_numpy(value) for key, value in sizes.statistics(name, values.shape[-1]).items()}
    if family == "pi0":
        return values * known["std"] + known["mean"]
    return (values + 1) / 2 * (known["q99"] - known["q01"]) + known["q01"]


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_over_prefix_and_actions_agrees_with_two(family: str):
    """lerobot trains in one pass and acts in two, with other code; the first row's time is 1, where x is the noise."""
    tensors = golden(family)
    target = pi_inputs.chunk("noise") - pi_inputs.chunk("actions")
    expected = (target - tensors["network.velocity.1.0"]) ** 2
    torch.testing.assert_close(tensors["network.loss"][0], expected[0], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(tensors["network.loss"][1], expected[1], rtol=1e-2, atol=1e-2)  # another time, another x


@pytest.mark.parametrize("family", FAMILIES)
def test_the_prefix_is_the_images_of_each_camera_and_then_the_prompt(family: str):
    given = pi_inputs.network_inputs(family)
    patches = (sizes.IMAGE_SIZE // sizes.VISION["patch_size"]) ** 2
    images = [mask[:, None].expand(-1, patches) for mask in given["masks"]]
    mask = torch.cat([*images, given["token_mask"]], dim=1)
    assert torch.equal(golden(family)["network.prefix_mask"], mask)
    assert torch.equal(golden(family)["network.layer1.keys"][:, 0].abs().sum(-1) > 0, mask)


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_are_applied_as_documented(family: str):
    tensors = golden(family)
    torch.testing.assert_close(tensors["policy.state"], scaled(family, torch.from_numpy(sizes.state()), "state"))
    demonstrated = pi_inputs.chunk("demonstrated", sizes.ACTION_DIM)
    torch.testing.assert_close(tensors["absolute.learned"], scaled(family, demonstrated, "action"))
    predicted = pi_inputs.chunk("predicted", sizes.ACTION_DIM)
    torch.testing.assert_close(tensors["absolute.restored"], unscaled(family, predicted, "action"))
    expected = unscaled(family, tensors["policy.normalized_actions"], "action")
    torch.testing.assert_close(tensors["policy.actions"], expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_relative_actions_are_offsets_from_the_state_but_for_the_gripper(family: str):
    moved = torch.tensor(["gripper" not in name for name in sizes.ACTION_NAMES])
    offset = torch.from_numpy(sizes.state())[:, None, : sizes.ACTION_DIM] * moved
    demonstrated = pi_inputs.chunk("demonstrated", sizes.ACTION_DIM)
    tensors = golden(family)
    torch.testing.assert_close(tensors["relative.learned"], scaled(family, demonstrated - offset, "action"))
    torch.testing.assert_close(tensors["relative.restored"], tensors["absolute.restored"] + offset)


def between(size: int, taken: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every new pixel the two old ones about its middle, and how far it lies from the first to the second."""
    place = np.clip((np.arange(size) + 0.5) * taken / size - 0.5, 0, taken - 1)
    first = place.astype(int)
    return first, np.minimum(first + 1, taken - 1), place - first


def resized(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear, without antialiasing: [height, width, 3]."""
    top, bottom, down = between(height, image.shape[0])
    left, right, across = between(width, image.shape[1])
    rows = image[top] * (1 - down)[:, None, None] + image[bottom] * down[:, None, None]
    return rows[:, left] * (1 - across)[:, None] + rows[:, right] * across[:, None]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("camera", "height", "width", "top", "left"),
    [("base_0_rgb", 42, 56, 7, 0), ("left_wrist_0_rgb", 56, 37, 0, 9)],  # 48 by 64 and 90 by 60, into 56 by 56
)
def test_images_keep_their_shape_within_black_margins(
    family: str, camera: str, height: int, width: int, top: int, left: int
):
    expected = np.full((sizes.IMAGE_SIZE, sizes.IMAGE_SIZE, 3), -1.0)
    inner = resized(sizes.taken_images(camera)[0] / 255, height, width)
    expected[top : top + height, left : left + width] = inner * 2 - 1
    recorded = golden(family)[f"images.{camera}"].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(recorded, expected[:, ::2], atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_lerobot_and_openpi_store_the_same_tensors_under_the_same_names(family: str):
    theirs, original = (key_lists.read(GOLDEN / f"keys_{family}_{project}.json") for project in ("lerobot", "openpi"))
    assert {name.removeprefix("model."): shape for name, shape in theirs.items()} == original
    numbers = sum(int(np.prod(shape)) for shape in theirs.values())
    assert (len(theirs), numbers) == {"pi0": (778, 4_028_019_472), "pi05": (813, 4_143_404_816)}[family]
