"""Variations along LIBERO-Plus's axes: what is drawn from a seed, and that a scene is plain again afterwards."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.libero import variations
from embodied_rl_sims.libero.variations import AXES, FRAMES, LONGER, list_words, make_generator, rephrase

TEXTS = (
    "pick up the alphabet soup and place it in the basket", "open the middle drawer of the cabinet",
    "put the bowl on the stove", "turn on the stove and put the moka pot on it", "close the microwave",
    "push the plate to the front of the stove",
)  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_a_rephrasing_is_another_sentence_of_known_words(text: str) -> None:
    found = [rephrase(text, make_generator("language", seed)) for seed in range(200)]
    assert text not in found and len(set(found)) > 8
    assert {word for each in found for word in each.split()} <= list_words([text])
    assert max(len(each.split()) for each in found) - len(text.split()) <= LONGER
    nouns = [word for word in text.split() if word not in {*variations.WORDS, "up", "to"}]
    assert all([word for word in each.split() if word in nouns] == nouns for each in found), "things and places stay"
    again = [rephrase(text, make_generator("language", seed)) for seed in range(200)]
    assert found == again
    assert all(any(each.startswith(frame.split("{")[0]) for each in found) for frame in FRAMES)


def make_model() -> Any:
    """What a variation writes of MuJoCo's model: two cameras, two lights, four materials with pictures of two kinds."""
    return SimpleNamespace(
        cam_pos=np.array([[1.0, 0, 1], [0, 0, 3]]), cam_quat=np.array([[0.56, 0.43, 0.43, 0.56], [1, 0, 0, 0.0]]),
        cam_fovy=np.array([45.0, 45]), nlight=2, light_pos=np.ones((2, 3)), light_dir=np.array([[0, 0, -1.0]] * 2),
        light_diffuse=np.full((2, 3), 0.8), vis=SimpleNamespace(headlight=SimpleNamespace(diffuse=np.full(3, 0.4))),
        mat_rgba=np.ones((4, 4)), mat_texid=np.array([[0], [1], [2], [-1]]), tex_type=np.array([0, 1, 0]),
    )  # fmt: skip


def vary(split: str, seed: int) -> Any:
    model = make_model()
    model.cam_quat[0] /= np.linalg.norm(model.cam_quat[0])
    variations.vary_model(split, model, make_generator(split, seed), 0, [0, 1, 2])
    return model


def test_a_camera_moves_on_a_sphere_around_what_it_looks_at() -> None:
    plain = vary("layout", 0)
    forward = -variations._matrix(plain.cam_quat[0])[:, 2]
    pivot = plain.cam_pos[0] + forward
    for seed in range(50):
        model = vary("camera", seed)
        ahead = pivot - model.cam_pos[0]
        distance = np.linalg.norm(ahead)
        assert np.linalg.norm(model.cam_quat[0]) == pytest.approx(1) and 0.9 <= distance <= 1.15
        turned = variations._matrix(model.cam_quat[0])
        assert -turned[:, 2] == pytest.approx(ahead / distance), "it still looks there"
        assert np.allclose(turned @ turned.T, np.eye(3))
        assert np.arccos(np.clip(forward @ -turned[:, 2], -1, 1)) <= np.hypot(*variations.ORBIT)
        assert abs(turned[2, 0] - variations._matrix(plain.cam_quat[0])[2, 0]) < 1e-9, "the horizon stays level"
        assert np.array_equal(model.cam_pos[1], [0, 0, 3]) and model.cam_fovy[1] == 45


def test_textures_are_exchanged_among_pictures_of_a_kind_and_tinted() -> None:
    seen = Counter[tuple[int, ...]]()
    for seed in range(100):
        model = vary("texture", seed)
        seen[tuple(model.mat_texid[:, 0].tolist())] += 1
        assert (
            (model.mat_rgba[:3, :3] < 1).all() and (model.mat_rgba[:, 3] == 1).all() and (model.mat_rgba[3] == 1).all()
        )
    assert set(seen) == {(0, 1, 2, -1), (2, 1, 0, -1)} and min(seen.values()) > 30


def test_lights_differ_and_stay_directions() -> None:
    bright = []
    for seed in range(50):
        model = vary("light", seed)
        assert np.linalg.norm(model.light_dir, axis=1) == pytest.approx(1) and (model.light_diffuse > 0).all()
        bright.append(model.light_diffuse.mean())
    assert min(bright) < 0.4 and max(bright) > 0.9


@pytest.mark.parametrize("kind", range(variations.KINDS))
def test_a_distortion_grows_with_its_strength(kind: int) -> None:
    picture = np.random.default_rng(0).integers(0, 256, (48, 48, 3), np.uint8)
    off = []
    for strength in (0.0, 0.5, 1.0):
        found = variations.distort(picture, kind, strength, np.random.default_rng(1))
        assert found.shape == picture.shape and found.dtype == np.uint8
        off.append(np.abs(found.astype(float) - picture).mean())
    assert 0 < off[0] < off[1] < off[2]
    assert np.array_equal(picture, np.random.default_rng(0).integers(0, 256, (48, 48, 3), np.uint8)), "a copy"


@pytest.fixture(scope="module")
def found(run: Any, assets: Path) -> dict[str, Array]:
    """Scenes in LIBERO's own environment, on stand-in assets."""
    return run(("varied", {"assets": str(assets), "suite": "libero_object", "seeds": [1, 2, 3]}))[0]


@pytest.mark.parametrize("split", AXES)
@pytest.mark.sim
def test_an_episode_follows_from_its_seed(found: dict[str, Array], split: str) -> None:
    assert np.array_equal(found[f"{split}_pictures"], found[f"{split}_again"])
    different = {"language": 1}.get(split, 3)
    assert len(np.unique(found[f"{split}_pictures"], axis=0)) == different


@pytest.mark.parametrize("split", AXES)
@pytest.mark.sim
def test_the_next_plain_episode_is_plain(found: dict[str, Array], split: str) -> None:
    assert np.array_equal(found[f"{split}_plain"], found["plain"])
    assert np.array_equal(found[f"{split}_physics"], found["physics"])


@pytest.mark.parametrize("split", AXES)
@pytest.mark.sim
def test_physics_change_with_the_layout_alone(found: dict[str, Array], split: str) -> None:
    same = [np.array_equal(each, found["physics"]) for each in found[f"{split}_physics_varied"]]
    assert not any(same) if split == "layout" else all(same)


@pytest.mark.sim
def test_objects_are_shifted_and_stand_as_before(found: dict[str, Array]) -> None:
    moved = found["places_varied"] - found["places"]
    assert np.abs(moved).max() < variations.SHIFT + 0.02 and np.abs(moved[..., 2]).max() < 0.02
    assert (np.abs(moved[..., :2]).max(axis=(1, 2)) > 0.01).all()


@pytest.mark.sim
def test_the_operator_solves_a_shifted_scene(found: dict[str, Array]) -> None:
    assert found["solved"]
