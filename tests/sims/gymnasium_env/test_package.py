"""The adapter against the package's own loop: same seeds and actions, same rewards, states, successes and pictures."""

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Simulator
from embodied_rl.testing.contract import check_simulator
from tests.support.environments import kind_of  # of tests/sims, which conftest.py puts on the path

pytestmark = pytest.mark.sim
IDS = ("FetchReach-v4", "FetchPush-v4", "FetchPickAndPlace-v4")
SEEDS = [0, 1, 2, 3]
NO_OPENGL = {"__EGL_VENDOR_LIBRARY_DIRS": "/nonexistent", "MUJOCO_GL": "egl"}
EGL = {"MUJOCO_GL": "egl"}  # which the adapter chooses by itself where there is no screen


def test_it_keeps_the_contract_in_its_own_environment() -> None:
    def build(horizon: int) -> Callable[[int], Simulator]:
        return kind_of("gymnasium", id="FetchReach-v4", image_size=8, horizon=horizon).build

    check_simulator(build(6), build_with_horizon=lambda n, horizon: build(horizon)(n))


def test_operated_episodes_are_the_packages_own_to_the_bit(inside) -> None:
    """The adapter draws after each step, the package's loop never: looking at an episode must not change it."""
    own = inside("each", function="package_loop", ids=IDS, seeds=SEEDS)
    ours = inside("each", function="adapter_loop", ids=IDS, seeds=SEEDS)
    for id in IDS:
        for seed in SEEDS:
            for name in ("reward", "success", "state"):
                assert np.array_equal(own[id][seed][name], ours[id][seed][name]), f"{name} of {id} with seed {seed}"
            assert own[id][seed]["success"][-1], f"the operator of {id} fails with seed {seed}"


def test_pictures_are_those_that_the_package_draws(inside) -> None:
    ours = inside("adapter_loop", id="FetchPush-v4", seeds=[3], steps=11)
    own = inside("package_pictures", EGL, id="FetchPush-v4", seed=3, steps=[0, 5, 10])
    assert np.array_equal(own, np.array(ours[3]["pictures"])[[0, 5, 10]])


def test_looking_twice_shows_the_same(inside) -> None:
    picture, frame = inside("looked_at_twice", id="FetchPush-v4")
    assert np.array_equal(picture, frame)


def test_a_later_episode_is_drawn_as_if_it_were_the_first(inside) -> None:
    """A free camera aims where the bodies are when it draws for the first time; they run on in each episode."""
    settings = {"id": "HalfCheetah-v5", "package": None, "success": None, "operated": False, "steps": 3}
    later = inside("adapter_loop", seeds=[4, 5], in_turn=True, **settings)
    first = inside("adapter_loop", seeds=[5], **settings)
    assert np.array_equal(later[5]["state"], first[5]["state"])
    assert np.array_equal(later[5]["pictures"], first[5]["pictures"])
    own = inside("package_pictures", EGL, id="HalfCheetah-v5", seed=5, steps=[0])
    assert np.array_equal(own[0], first[5]["pictures"][0])


def test_the_specification_of_a_fetch_environment(inside) -> None:
    spec = inside("spec", id="FetchPickAndPlace-v4", package="gymnasium_robotics")
    assert spec.action_names == ("move_x", "move_y", "move_z", "gripper")
    assert spec.action_low == (-1.0,) * 4 and spec.action_high == (1.0,) * 4
    assert spec.control_hz == pytest.approx(25) and spec.horizon == 50
    assert not any("object" in name or "goal" in name for name in spec.state_names), "a robot cannot measure that"
    assert {"object_x", "desired_goal_z", "achieved_goal_y"} <= set(spec.privileged_names)
    assert [task.name for task in spec.tasks] == ["FetchPickAndPlace-v4"]
    by_state = inside("spec", id="FetchPickAndPlace-v4", package="gymnasium_robotics", observations="state")
    assert by_state.cameras == () and len(by_state.state_names) == 25 + 3
    assert not any("achieved" in name for name in by_state.state_names)


def test_a_state_is_what_was_asked_for(inside) -> None:
    settings = {"id": "Custom-v0", "success": None}
    observation, _ = inside("custom", chunk=1, actions=0, **settings)
    assert observation.state.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert observation.privileged.tolist() == [[0, 1, 2, 3, 4, 5]]
    observation, _ = inside("custom", chunk=1, actions=0, state_keys=["b"], state_entries=[3, 0], **settings)
    assert observation.state.tolist() == [[5, 2]] and observation.privileged.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_an_environment_that_takes_no_size_is_drawn_smaller(inside) -> None:
    """Its picture is 30 × 40; half of that on one side is the mean of pairs."""
    observation, _ = inside("custom", chunk=1, actions=0, id="Custom-v0", success=None, image_size=10)
    picture = np.arange(30 * 40 * 3, dtype=np.uint8).reshape(30, 40, 3).astype(float)
    blocks = picture.reshape(10, 3, 10, 4, 3).mean((1, 3))
    assert np.array_equal(observation.images["front"][0], np.rint(blocks))


def test_the_horizon_is_the_registered_limit_or_the_users(inside) -> None:
    """`Custom-v0` is registered with 7 steps; actions are clipped to its limits and have its shape."""
    _, result = inside("custom", chunk=10, actions=9, id="Custom-v0", success=None)
    assert result.truncated.tolist() == [True] and result.steps.tolist() == [7]
    assert result.reward[0].tolist() == [2.0] * 7 + [0.0] * 3
    _, result = inside("custom", chunk=10, actions=9, id="Custom-v0", success=None, horizon=9)
    assert result.steps.tolist() == [9]


def test_success_ends_an_episode_and_can_be_the_reward(inside) -> None:
    """`Custom-v0` is won from its third step on."""
    settings = {"id": "Custom-v0", "success": "won"}
    _, result = inside("custom", chunk=6, actions=0.5, **settings)
    assert (
        result.terminated[0]
        and result.steps[0] == 3
        and result.success[0].tolist() == [False] * 2 + [True] + [False] * 3
    )
    _, result = inside("custom", chunk=6, actions=0.5, reward="success", terminate_on_success=False, **settings)
    assert not result.terminated[0] and result.success[0].tolist() == [False] * 2 + [True] * 4
    assert result.reward[0].tolist() == [0, 0, 1, 0, 0, 0]


def test_an_environment_is_reset_with_the_folded_seed_or_the_initial_state(inside) -> None:
    given = inside("seeds_given", episodes=[[5, None], [(1 << 61) + 5, None], [5, 17]])
    assert given == [5, (1 << 29) + 5, 17]


def test_what_cannot_be_trained_is_named_with_its_remedy(inside) -> None:
    expected = (
        ({"id": "HalfCheetahh-v5"}, "sim.id: unknown environment 'HalfCheetahh-v5'. Did you mean HalfCheetah-v5"),
        ({"id": "HalfCheetah-v99"}, "Did you mean HalfCheetah-v"),
        ({"id": "Nothing-v0"}, "Is it one of sim.package"),
        ({"id": "CartPole-v1"}, "actions are Discrete(2)"),
        ({"id": "Custom-v0", "options": {"space": "discrete"}}, "a Box of floats"),
        ({"id": "Custom-v0", "options": {"limit": float("inf")}}, "RescaleAction"),
        ({"id": "Custom-v0", "options": {"space": "picture"}}, "no list of numbers"),
        ({"id": "Custom-v0", "options": {"spase": 1}}, "sim.options={'spase': 1}"),
        ({"id": "Custom-v0", "state_keys": ["c"]}, "sim.state_keys=['c']: the observation of Custom-v0 has a, b"),
        ({"id": "Custom-v0", "state_entries": [6]}, "sim.state_entries=[6]: the state of Custom-v0 has 6 numbers"),
        ({"id": "Blind-v0"}, "set sim.observations=state"),
        ({"id": "Endless-v0"}, "set sim.horizon"),
    )
    for (settings, message), (kind, words) in zip(
        expected, inside("failures", calls=[("spec", settings) for settings, _ in expected]), strict=True
    ):
        assert kind == "UserError" and message in words, settings


def test_what_goes_wrong_later_is_named_with_its_remedy(inside) -> None:
    chunk = {"chunk": 5, "actions": 0, "id": "Custom-v0"}
    no_entry, own_limit, no_package, no_operator = inside(
        "failures",
        calls=[
            ("custom", {"success": "is_success", **chunk}),
            ("custom", {"success": None, "options": {"stops": 4}, **chunk}),
            ("spec", {"id": "X-v0", "package": "no_such_package"}),
            ("adapter_loop", {"id": "Custom-v0", "package": None, "seeds": [0]}),
        ],
    )
    assert no_entry[0] == "UserError" and "sim.success=is_success: the `info` of Custom-v0 has won" in no_entry[1]
    assert own_limit[0] == "UserError" and "sim.horizon=4" in own_limit[1]
    assert no_package[0] == "ModuleNotFoundError" and "no_such_package" in no_package[1]
    assert no_operator[0] == "UserError" and "sim.id=Custom-v0 has no scripted operator" in no_operator[1]


def test_missing_opengl_is_named_with_its_remedy(inside) -> None:
    arguments = {"id": "FetchReach-v4", "seeds": [0]}
    [(kind, words)] = inside("failures", NO_OPENGL, calls=[("adapter_loop", arguments)])
    assert kind == "Unavailable" and "libegl1" in words and "MUJOCO_GL=osmesa" in words
    assert inside("adapter_loop", NO_OPENGL, steps=1, observations="state", **arguments)


def test_a_diagnosis_says_what_is_there(inside) -> None:
    lines, versions = inside("diagnosis", id="FetchReach-v4", image_size=16)
    assert [line.status for line in lines] == ["ok"] * 4, lines
    assert versions["mujoco"] == lines[0].found and "pictures of 16 px a second" in lines[-1].found
    lines, _ = inside("diagnosis", NO_OPENGL, id="FetchReach-v4")
    assert lines[-1].status == "fail" and "libegl1" in lines[-1].remedy
