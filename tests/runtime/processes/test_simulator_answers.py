"""Arrays that are not what a simulator promised stop where they leave it, in this process and in a worker."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.runtime.processes.local import InlineHandle, ProcessHandle
from embodied_rl.testing.fakes import FakeSimulator
from tests.support.collecting import CONFIG, N, inline, make
from tests.support.faulty_simulator import Changed

EPISODES = [Episode(index, index % 2, seed=index) for index in range(3)]
ACTIONS = np.zeros((3, 4, 2), np.float32)
COLUMN = "column"
WRONG = [
    ("step", "reward", COLUMN, r"reward must have shape \(3, 4\), got \(3, 1\)"),
    ("step", "reward", "double", "reward must be float32, got float64"),
    ("step", "reward", "objects", "reward must be float32, got object"),
    ("step", "reward", "none", "reward must be a NumPy array, got NoneType"),
    ("step", "success", COLUMN, r"success must have shape \(3, 4\)"),
    ("step", "steps", COLUMN, r"steps must have shape \(3,\), got \(3, 1\)"),
    ("step", "executed", "fewer", r"executed must have shape \(3, 4, 2\), got \(2, 4, 2\)"),
    ("step", "source", "double", "source must be uint8"),
    ("step", "terminated", "double", "terminated must be bool"),
    ("step", "truncated", "none", "truncated must be a NumPy array"),
    ("step", "ended", "none", "ended must be a NumPy array"),
    ("step", "ended", COLUMN, r"ended must have shape"),
    ("step", "observation", "none", "an Observation is missing: found NoneType"),
    ("reset", "state", "fewer", r"state must have shape \(3, 3\), got \(2, 3\)"),
    ("reset", "state", COLUMN, r"state must have shape \(3, 3\), got \(3, 1\)"),
    ("reset", "state", "none", "state must be a NumPy array, got NoneType"),
    ("reset", "privileged", COLUMN, r"privileged must have shape \(3, 3\), got \(3, 1\)"),
    ("reset", "privileged", "none", "privileged state and its names disagree"),
    ("reset", "privileged", "objects", "privileged must be float32, got object"),
    ("reset", "images", "none", "images must be a dictionary"),
    ("reset", "instruction", "fewer", "2 instructions for 3 rows"),
    ("reset", "instruction", "none", "instruction must be a tuple of texts"),
    ("restore", "state", "fewer", r"state must have shape \(3, 3\)"),
    ("snapshot", "position", "objects", "snapshot 'position' is no array of plain numbers"),
    ("snapshot", "position", "none", "snapshot 'position' is no array of plain numbers"),
]


def call(handle: Handle, method: str) -> Any:
    """Call a method as the engine does; all that comes before it is sound."""
    if method == "reset":
        return handle.submit("reset", EPISODES).result()
    handle.submit("reset", EPISODES).result()
    if method == "restore":
        return handle.submit("restore", handle.submit("snapshot").result()).result()
    return handle.submit(method, *((ACTIONS, EPISODES) if method == "step" else ())).result()


@pytest.mark.parametrize(("method", "part", "change", "message"), WRONG)
def test_a_wrong_answer_is_refused_by_method_and_array(method: str, part: str, change: str, message: str) -> None:
    handle = InlineHandle(partial(Changed, 3, method, part, change))
    with pytest.raises(UserError, match=rf"the simulator's {method}: {message}"):
        call(handle, method)


@pytest.mark.process
@pytest.mark.parametrize(("method", "part", "change", "message"), [WRONG[0], WRONG[15], WRONG[16], WRONG[23]])
def test_a_worker_refuses_it_in_the_same_words(
    closing: Callable, method: str, part: str, change: str, message: str
) -> None:
    kwargs = {"num_envs": 3, "method": method, "part": part, "change": change}
    (handle,) = closing([ProcessHandle("tests.support.faulty_simulator:Changed", kwargs)])
    with pytest.raises(UserError, match=rf"the simulator's {method}: {message}"):
        call(handle, method)
    assert handle.alive


@pytest.mark.parametrize("change", ["none", "more"])
def test_an_ended_episode_without_its_last_observation_is_refused(change: str) -> None:
    handle = InlineHandle(lambda: Changed(3, "step", "final_observation", change))
    handle.submit("reset", EPISODES).result()
    with pytest.raises(
        UserError, match=r"the simulator's step: (final_observation is None iff|[0-9] instructions for)"
    ):
        for _ in range(20):
            handle.submit("step", ACTIONS, EPISODES).result()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("texts", "4 failures for 0 rows"),
        ("list", "failures must be a tuple of texts"),
        ("numbers", "failures must be a tuple of texts"),
    ],
)
def test_failures_are_texts_one_for_each_episode_that_ended(change: str, message: str) -> None:
    with pytest.raises(UserError, match=f"the simulator's step: {message}"):
        call(InlineHandle(partial(Changed, 3, "step", "failures", change)), "step")


def test_a_failure_is_a_kind_and_no_story() -> None:
    class Chatty(FakeSimulator):
        def step(self, actions, next_episodes):
            result = super().step(actions, next_episodes)
            return replace(result, failures=("x" * 81,) * len(result.ended))

    handle = InlineHandle(lambda: Chatty(3))
    handle.submit("reset", EPISODES).result()
    with pytest.raises(UserError, match="a failure of 81 characters; at most 80"):
        for _ in range(20):
            handle.submit("step", ACTIONS, EPISODES).result()


@pytest.mark.parametrize("part", ["reward", "privileged"])
def test_nothing_is_spread_over_a_rollout(part: str) -> None:
    """A column of rewards, or of privileged state, would fill every entry of its row."""
    method = "step" if part == "reward" else "reset"
    collector, actor = make([InlineHandle(lambda: Changed(N, method, part, COLUMN, CONFIG))])
    with pytest.raises(UserError, match=f"{part} must have shape"):
        collector.collect(actor)


def test_a_snapshot_of_another_number_of_environments_is_refused() -> None:
    collector, actor = make(inline(1))
    collector.collect(actor)
    state = collector.state()

    class Fewer(FakeSimulator):
        def restore(self, state):
            return super().restore(state).select([0, 1])

    resumed, _ = make(inline(1, kind=Fewer))
    with pytest.raises(UserError, match="gives 2 environments, not 8"):
        resumed.load(state)


def test_sound_answers_pass_with_parked_environments_and_without_images_too() -> None:
    class Blind(FakeSimulator):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.spec = replace(self.spec, cameras=(), privileged_names=())

        def _observe(self):
            return replace(super()._observe(), images={}, privileged=None)

    handle = InlineHandle(lambda: Blind(3))
    handle.submit("reset", [EPISODES[0], None, None]).result()
    assert handle.submit("step", ACTIONS, [None] * 3).result().steps.tolist() == [4, 0, 0]
