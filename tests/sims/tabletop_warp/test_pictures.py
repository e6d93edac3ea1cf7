"""Pictures against those of the tabletop's own camera, from the same states."""

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("split", ["train", "vision"])
def test_pictures_are_the_ray_camera_s(make, split: str) -> None:
    """In 999 pixels of a thousand to the bit; the others lie on edges. In the "vision" split the camera moves."""
    episodes = [Episode(row, row % 7, 300 + row, split=split) for row in range(14)]
    original, copied = Tabletop(TabletopConfig(), 14), make(14, image_size=64)
    original.reset(episodes)
    operate = original.expert()
    for _ in range(8):
        original.step(operate()[:, None], episodes)
    left = original.restore(original.snapshot()).images["front"]
    right = copied.restore(original.snapshot()).images["front"]
    assert shown(left).min() > 50, "nothing but the table is seen"
    assert (left == right).all(axis=-1).mean() > 0.999
    assert np.abs(left.astype(int) - right).mean() < 0.01


def shown(pictures: Array) -> Array:
    """[n] pixels that differ from their neighbour on the right by much: edges of things."""
    return (np.abs(np.diff(pictures.astype(int), axis=2)).sum(axis=-1) > 60).sum(axis=(1, 2))


def test_a_new_episode_is_painted_anew(make) -> None:
    """Colours, light, camera and table of the episode that runs, in every row, whatever ran there before."""
    first, second = ([Episode(row, row, seed + row, split="vision") for row in range(3)] for seed in (40, 50))
    used, fresh = make(3, image_size=32), make(3, image_size=32)
    before = used.reset(first).images["front"]
    again = used.reset([first[0], second[1], second[2]]).images["front"]
    np.testing.assert_array_equal(again[0], before[0])
    np.testing.assert_array_equal(again[1:], fresh.reset(second).images["front"][1:])
    assert (again[1:] != before[1:]).mean() > 0.3


def test_films_are_of_the_same_scene(make) -> None:
    """Drawn on the host, from the state that the device is in; nothing where nothing runs."""
    tabletop = make(2, image_size=32)
    tabletop.reset([Episode(0, 2, 4), None])
    seen = tabletop.step(np.full((2, 3, 4), 0.02, np.float32), [None, None]).observation.images["front"][0]
    film = tabletop.render(0, 32, 32)
    assert (film == seen).all(axis=-1).mean() > 0.99
    assert not tabletop.render(1, 32, 32).any()
