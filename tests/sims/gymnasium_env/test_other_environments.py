"""Environments as others write them: without pictures, or with nothing else; limits in float64; missing packages."""

import os
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode, Unavailable
from embodied_rl_sims.gymnasium_env import Gymnasium, GymnasiumConfig
from tests.support.refusals import refuses

_PROMPT = "PYGAME_HIDE_SUPPORT_PROMPT"  # gymnasium sets it when it is imported; tests leave no variables
_known = _PROMPT in os.environ
gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'embodied-rl[gymnasium]'")
if not _known:
    os.environ.pop(_PROMPT, None)


class Plain(gymnasium.Env):
    """It takes no `render_mode`, and insists on the limits of its actions."""

    metadata = {"render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-0.3, 0.3, (1,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self.observation_space.sample() * 0, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.observation_space.sample() * 0, 1.0, False, False, {}


class Picture(Plain):
    """It shows a picture and nothing else."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    observation_space = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def __init__(self, render_mode: str | None = None, draws: bool = True) -> None:
        self.render_mode, self.draws = render_mode, draws

    def render(self) -> Any:
        if not self.draws:
            raise gymnasium.error.DependencyNotInstalled("pygame is not installed, run `pip install pygame`")
        return np.full((8, 8, 3), 7, np.uint8)


def lack_a_package(**_: Any) -> Any:
    raise gymnasium.error.DependencyNotInstalled("Box2D is not installed, run `pip install box2d`")


gymnasium.register("others/Plain-v2", Plain, max_episode_steps=5)
gymnasium.register("others/Picture-v0", Picture, max_episode_steps=5)
gymnasium.register("others/Lacking-v0", lack_a_package, max_episode_steps=5)


def make_config(name: str, **settings: Any) -> GymnasiumConfig:
    return GymnasiumConfig(**{"id": f"others/{name}", "package": None, "image_size": 8, "success": None, **settings})


def test_an_environment_without_pictures_runs_from_its_state_and_its_videos_are_black() -> None:
    simulator = Gymnasium(make_config("Plain-v2", observations="state"), 2)
    assert simulator.reset([Episode(0, 0, 0), Episode(1, 0, 1)]).state.shape == (2, 2)
    assert not simulator.render(0, 6, 4).any() and simulator.render(0, 6, 4).shape == (4, 6, 3)


def test_actions_stay_within_limits_that_float32_rounds() -> None:
    simulator = Gymnasium(make_config("Plain-v2", observations="state"), 1)
    assert simulator.spec.action_high[0] > 0.3
    simulator.reset([Episode(0, 0, 0)])
    for action in (-1, 1):
        assert simulator.step(np.full((1, 2, 1), action, np.float32), [None]).steps.tolist() == [2]


def test_an_id_without_a_version_is_the_newest() -> None:
    assert Gymnasium.spec_of(make_config("Plain", observations="state")).horizon == 5


@pytest.mark.parametrize(("name", "part"), [("Plain-v1", "Plain-v2"), ("not a name", "Malformed"), ("Plain-v3", "v2")])
def test_an_outdated_or_malformed_id_is_named(name: str, part: str) -> None:
    with refuses("environment-unknown", "sim.id", name, part):
        Gymnasium.spec_of(make_config(name, observations="state"))


def test_a_missing_package_of_an_environment_is_named() -> None:
    with pytest.raises(Unavailable, match=r"others/Lacking-v0: .*pip install box2d"):
        Gymnasium.spec_of(make_config("Lacking-v0", observations="state"))
    simulator = Gymnasium(make_config("Picture-v0", state_keys=(), options={"draws": False}), 1)
    with pytest.raises(Unavailable, match=r"others/Picture-v0 cannot draw: .*pip install pygame"):
        simulator.reset([Episode(0, 0, 0)])


def test_a_picture_may_be_all_that_is_seen() -> None:
    with refuses("observation-space-unsupported", "sim.state_keys=[]"):
        Gymnasium.spec_of(make_config("Picture-v0"))
    seen = Gymnasium(make_config("Picture-v0", state_keys=()), 1).reset([Episode(0, 0, 0)])
    assert seen.state.shape == (1, 0) and (seen.images["front"] == 7).all()
