"""What a head sees of an observation."""

from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.judge.heads.head_inputs import WORDS, HeadInputs, hash_words, shrink
from tests.support.collecting import SPEC


@pytest.mark.parametrize("high, wide, to", [(8, 8, 4), (7, 5, 3), (64, 48, 16), (3, 3, 3)])
def test_small_pictures_are_means(high: int, wide: int, to: int) -> None:
    random = np.random.default_rng(0)
    pictures = random.integers(0, 256, (2, high, wide, 3), dtype=np.uint8)
    small = shrink(pictures, to, to)
    rows, columns = np.arange(high) * to // high, np.arange(wide) * to // wide
    for y, x in np.ndindex(to, to):
        part = pictures[:, rows == y][:, :, columns == x].astype(int)
        assert (small[:, y, x] == part.sum((1, 2)) // (part.shape[1] * part.shape[2])).all()


def test_a_packed_observation_holds_pictures_state_and_words() -> None:
    camera = replace(SPEC.cameras[0], height=6, width=6)
    inputs = HeadInputs(replace(SPEC, cameras=(camera,)), 2)
    picture = np.full((1, 6, 6, 3), 255, np.uint8)
    state = np.linspace(-3, 3, len(SPEC.state_names), dtype=np.float32)[None]
    packed = inputs.pack({camera.name: picture}, state, ["Go left"])
    assert packed.shape == (1, inputs.size) and packed.dtype == np.uint8
    features = inputs.unpack(packed).numpy()[0]
    assert features.shape == (inputs.features,)
    assert (features[:12] == 0.5).all()
    np.testing.assert_allclose(features[12:-WORDS], state[0] / (1 + np.abs(state[0])), rtol=1e-6)
    assert (features[-WORDS:] == hash_words("go LEFT")).all() and features[-WORDS:].sum() == 2


def test_small_pictures_keep_their_size() -> None:
    camera = replace(SPEC.cameras[0], height=2, width=3)
    inputs = HeadInputs(replace(SPEC, cameras=(camera,)), 16)
    assert inputs.features == 18 + len(SPEC.state_names) + WORDS


def test_what_is_hashed_leaves_out_the_state_and_small_changes() -> None:
    camera = replace(SPEC.cameras[0], height=8, width=8)
    inputs = HeadInputs(replace(SPEC, cameras=(camera,)), 8)

    def coarse(grey: int, state: float, words: str = "go") -> bytes:
        picture = np.full((1, 8, 8, 3), grey, np.uint8)
        numbers = np.full((1, len(SPEC.state_names)), state, np.float32)
        return inputs.coarsen(inputs.pack({camera.name: picture}, numbers, [words])).tobytes()

    assert coarse(100, 0.0) == coarse(110, 1.0)
    assert coarse(100, 0.0) != coarse(200, 0.0) and coarse(100, 0.0) != coarse(100, 0.0, "stop")


def test_pictures_of_another_size_are_a_mistake_that_is_seen() -> None:
    camera = replace(SPEC.cameras[0], height=8, width=8)
    inputs = HeadInputs(replace(SPEC, cameras=(camera,)), 4)
    with pytest.raises(AssertionError, match="not 8 × 8"):
        inputs.pack({camera.name: np.zeros((1, 2, 2, 3), np.uint8)}, np.zeros((1, 3), np.float32), ["go"])
