"""The tabletop for other libraries, by Gymnasium's rules: its checker, episodes by seed, endings, rewards."""

import os
import warnings
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.refusals import refuses

_PROMPT = "PYGAME_HIDE_SUPPORT_PROMPT"  # gymnasium sets it when it is imported; tests leave no variables
_known = _PROMPT in os.environ
gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install 'embodied-rl[gymnasium]'")
checker = pytest.importorskip("gymnasium.utils.env_checker")
tasks = pytest.importorskip("embodied_rl_sims.gymnasium_tasks")
if not _known:
    os.environ.pop(_PROMPT, None)


def make(**options: Any) -> Any:
    return gymnasium.make(tasks.ID, **options).unwrapped


def make_vector(count: int, **options: Any) -> Any:
    return gymnasium.make_vec(tasks.ID, num_envs=count, **options)


@pytest.mark.parametrize("observations", ["rgb", "state"])
@pytest.mark.parametrize("reward", ["success", "progress"])
def test_gymnasiums_checker_has_nothing_to_say(observations: str, reward: str) -> None:
    environment = make(observations=observations, reward=reward, render_mode="rgb_array", image_size=16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        checker.check_env(environment)
    environment.close()


def test_an_episode_is_the_simulators() -> None:
    environment = make(family="put", image_size=16)
    seen, info = environment.reset(seed=3)
    (episode,) = environment._one._episodes
    simulator = Tabletop(TabletopConfig(image_size=16), 1)
    first = simulator.reset([episode])
    assert np.array_equal(seen["image"], first.images["front"][0]) and np.array_equal(seen["state"], first.state[0])
    assert info["instruction"] == first.instruction[0] and seen["task"] == episode.task
    assert simulator.spec.tasks[episode.task].family == "put"
    action = np.array([0.5, -1.0, 0.25, 1.0], np.float32)
    seen, reward, terminated, truncated, _ = environment.step(action)
    result = simulator.step((action * [0.03, 0.03, 0.03, 1]).astype(np.float32)[None, None], [None])
    assert np.array_equal(seen["state"], result.observation.state[0])
    assert (reward, terminated, truncated) == (0.0, False, False)


def test_seeds_determine_all_episodes_that_follow() -> None:
    runs = []
    for _ in range(2):
        environments = make_vector(3, observations="state", horizon=3)
        seen = [environments.reset(seed=7)[0]]
        seen += [environments.step(np.full((3, 4), 0.3, np.float32))[0] for _ in range(7)]
        runs.append(np.array(seen))
    assert np.array_equal(*runs) and len(np.unique(runs[0][0], axis=0)) == 3
    assert not np.array_equal(environments.reset(seed=8)[0], runs[0][0])


@pytest.mark.parametrize("observations", ["rgb", "state"])
def test_the_next_episode_begins_in_the_same_step(observations: str) -> None:
    environments = make_vector(2, observations=observations, horizon=2, image_size=16)
    assert environments.metadata["autoreset_mode"] == gymnasium.vector.AutoresetMode.SAME_STEP
    environments.reset(seed=1)
    still = np.zeros((2, 4), np.float32)
    *_, truncated, info = environments.step(still)
    assert not truncated.any() and "final_obs" not in info
    before = list(environments._episodes)
    seen, _, _, truncated, info = environments.step(still)
    assert truncated.all() and info["_final_obs"].all()
    assert [episode.index for episode in environments._episodes] != [episode.index for episode in before]
    simulator = Tabletop(TabletopConfig(horizon=2, image_size=16), 2)
    simulator.reset(before)
    result = simulator.step(np.zeros((2, 2, 4), np.float32), environments._episodes)
    last, now = result.final_observation, result.observation
    assert last is not None
    for row in range(2):
        final = info["final_obs"][row]
        if observations == "state":
            assert np.array_equal(final, np.concatenate([last.privileged[row], last.state[row]]))
            assert np.array_equal(seen[row], np.concatenate([now.privileged[row], now.state[row]]))
        else:
            assert np.array_equal(final["image"], last.images["front"][row])
            assert np.array_equal(seen["image"][row], now.images["front"][row])
        assert info["final_info"]["instruction"][row] == last.instruction[row]
        assert info["instruction"][row] == now.instruction[row]


def test_progress_sums_up_to_the_goal() -> None:
    """An operator's episodes have a return of 1 by progress and by success, and both end there."""
    environments = make_vector(4, family="press", observations="state", reward="progress")
    environments.reset(seed=5)
    operate = environments._simulator.expert()
    scale, total, ended = np.array([0.03, 0.03, 0.03, 1]), np.zeros(4), np.zeros(4, bool)
    for _ in range(50):
        _, reward, terminated, _, info = environments.step((operate() / scale).astype(np.float32))
        total += np.where(ended, 0, reward)
        if (now := terminated & ~ended).any():
            assert info["final_info"]["success"][now].all() and np.all(info["final_info"]["progress"][now] == 1)
        ended |= terminated
    assert ended.all() and np.all(np.abs(total - 1) < 1e-5)


def test_a_success_is_worth_one() -> None:
    environments = make_vector(4, family="press", observations="state")
    environments.reset(seed=5)
    operate, total = environments._simulator.expert(), np.zeros(4)
    first = [episode.index for episode in environments._episodes]
    for _ in range(50):
        running = np.array([episode.index for episode in environments._episodes]) == first
        _, reward, *_ = environments.step((operate() / [0.03, 0.03, 0.03, 1]).astype(np.float32))
        total += np.where(running, reward, 0)
    assert total.tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"family": "throw"}, "family=throw"), ({"observations": "pixels"}, "rgb, state"),
        ({"reward": "dense"}, "reward=dense"), ({"split": "test"}, "split=test"), ({"render_mode": "human"}, "human"),
        ({"renderer": "opengl"}, "raycast, egl"),
    ],
)  # fmt: skip
def test_unknown_choices_are_refused(options: dict[str, Any], part: str) -> None:
    with refuses("choice-unknown", part):
        tasks.TabletopEnv(**options)


@pytest.mark.parametrize("key", ["goals", "progress", "horizont"])
def test_settings_that_have_no_meaning_are_refused(key: str) -> None:
    with refuses("key-unknown", key):
        tasks.TabletopEnv(**{key: 2})


@pytest.mark.parametrize("shape", [(2, 1), (1, 4), (4,), (8,), (2, 1, 4)])
def test_actions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    environments = tasks.TabletopVectorEnv(2, observations="state")
    environments.reset(seed=0)
    with refuses("action-shape", list(shape)):
        environments.step(np.zeros(shape, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_action_that_is_not_finite_is_refused(value: float) -> None:
    environments = tasks.TabletopVectorEnv(2, observations="state")
    environments.reset(seed=0)
    with refuses("value-not-finite", "environment 1"):
        environments.step(np.array([[0, 0, 0, 0], [0, value, 0, 0]], np.float32))


@pytest.mark.parametrize(("key", "value"), [("horizon", "10"), ("image_size", "x"), ("state_noise", float("nan"))])
def test_settings_of_another_type_are_refused(key: str, value: Any) -> None:
    with refuses("value-wrong-type", key):
        tasks.TabletopEnv(**{key: value})


def test_a_reset_of_some_environments_is_refused() -> None:
    environments = make_vector(2, observations="state")
    environments.reset(seed=0, options={})
    with refuses("option-invalid", "reset_mask"):
        environments.reset(options={"reset_mask": np.array([True, False])})


def test_there_is_one_environment_at_least() -> None:
    with refuses("value-out-of-range", "num_envs=0"):
        tasks.TabletopVectorEnv(0)


def test_a_step_without_an_episode_is_refused() -> None:
    environments, still = tasks.TabletopVectorEnv(2, observations="state"), np.zeros(4, np.float32)
    with refuses("reset-needed"):
        environments.step(np.stack([still, still]))
    environment = tasks.TabletopEnv(observations="state", horizon=1)
    environment.reset(seed=0)
    assert environment.step(still)[3]
    with refuses("reset-needed"):
        environment.step(still)
    environment.reset(seed=0)
    assert environment.step(still)[3]


def test_pictures_are_drawn_on_request() -> None:
    environment = make(render_mode="rgb_array", image_size=16)
    environment.reset(seed=0)
    assert environment.render().shape == (480, 480, 3)
    assert make(image_size=16).render() is None
    assert isinstance(environment._one._episodes[0], Episode)
