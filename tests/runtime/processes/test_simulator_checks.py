"""Invalid outputs of simulators are refused, in this process and in a worker."""

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
from tests.support.refusals import refuses

EPISODES = [Episode(index, index % 2, seed=index) for index in range(3)]
ACTIONS = np.zeros((3, 4, 2), np.float32)
COLUMN = "column"
WRONG = [
    ("step", "reward", COLUMN, "(3, 4)", "(3, 1)"),
    ("step", "reward", "double", "float32", "float64"),
    ("step", "reward", "objects", "float32", "object"),
    ("step", "reward", "none", "NoneType"),
    ("step", "success", COLUMN, "(3, 4)"),
    ("step", "steps", COLUMN, "(3,)", "(3, 1)"),
    ("step", "executed", "fewer", "(3, 4, 2)", "(2, 4, 2)"),
    ("step", "source", "double", "uint8"),
    ("step", "terminated", "double", "bool"),
    ("step", "truncated", "none", "NoneType"),
    ("step", "ended", "none", "NoneType"),
    ("step", "ended", COLUMN, "shape"),
    ("step", "observation", "none", "Observation", "NoneType"),
    ("reset", "state", "fewer", "(3, 3)", "(2, 3)"),
    ("reset", "state", COLUMN, "(3, 3)", "(3, 1)"),
    ("reset", "state", "none", "NoneType"),
    ("reset", "privileged", COLUMN, "(3, 3)", "(3, 1)"),
    ("reset", "privileged", "none"),
    ("reset", "privileged", "objects", "float32", "object"),
    ("reset", "images", "none", "dictionary"),
    ("reset", "instruction", "fewer", "2 instructions", "3 rows"),
    ("reset", "instruction", "none", "tuple of texts"),
    ("restore", "state", "fewer", "(3, 3)"),
    ("snapshot", "position", "objects", "'position'"),
    ("snapshot", "position", "none", "'position'"),
]


def call(handle: Handle, method: str) -> Any:
    """Call a method as a collector does; the calls before it return valid outputs."""
    if method == "reset":
        return handle.submit("reset", EPISODES).result()
    handle.submit("reset", EPISODES).result()
    if method == "restore":
        return handle.submit("restore", handle.submit("snapshot").result()).result()
    return handle.submit(method, *((ACTIONS, EPISODES) if method == "step" else ())).result()


@pytest.mark.parametrize(("method", "part", "change", "data"), [(*row[:3], row[3:]) for row in WRONG])
def test_an_invalid_output_is_refused_with_method_and_array(
    method: str, part: str, change: str, data: tuple[str, ...]
) -> None:
    handle = InlineHandle(partial(Changed, 3, method, part, change))
    with refuses("simulator-output-invalid", f"'s {method}: ", part if part != "observation" else "", *data):
        call(handle, method)


@pytest.mark.process
@pytest.mark.parametrize("row", [WRONG[0], WRONG[15], WRONG[16], WRONG[23]])
def test_a_worker_refuses_invalid_outputs(closing: Callable, row: tuple[str, ...]) -> None:
    method, part, change, *data = row
    kwargs = {"num_envs": 3, "method": method, "part": part, "change": change}
    (handle,) = closing([ProcessHandle("tests.support.faulty_simulator:Changed", kwargs)])
    with refuses("simulator-output-invalid", method, part, *data):
        call(handle, method)
    assert handle.alive


@pytest.mark.parametrize("change", ["none", "more"])
def test_final_observations_must_match_the_ended_rows(change: str) -> None:
    handle = InlineHandle(lambda: Changed(3, "step", "final_observation", change))
    handle.submit("reset", EPISODES).result()
    with refuses("simulator-output-invalid", "final_observation" if change == "none" else "instructions"):
        for _ in range(20):
            handle.submit("step", ACTIONS, EPISODES).result()


@pytest.mark.parametrize(
    ("change", "data"), [("texts", "4 failures for 0 rows"), ("list", "tuple of texts"), ("numbers", "tuple of texts")]
)
def test_failures_are_one_text_for_each_ended_episode(change: str, data: str) -> None:
    with refuses("simulator-output-invalid", "step", "failures", data):
        call(InlineHandle(partial(Changed, 3, "step", "failures", change)), "step")


@pytest.mark.parametrize("change", ["texts", "list", "numbers", "pairs of floats", "another source"])
def test_what_is_between_chunks_is_pairs_for_each_environment(change: str) -> None:
    with refuses("simulator-output-invalid", "step", "between"):
        call(InlineHandle(partial(Changed, 3, "step", "between", change)), "step")
    call(InlineHandle(partial(Changed, 3, "step", "between", "pairs")), "step")


def test_failure_texts_have_a_length_limit() -> None:
    class Chatty(FakeSimulator):
        def step(self, actions, next_episodes):
            result = super().step(actions, next_episodes)
            return replace(result, failures=("x" * 81,) * len(result.ended))

    handle = InlineHandle(lambda: Chatty(3))
    handle.submit("reset", EPISODES).result()
    with refuses("simulator-output-invalid", "81", "80"):
        for _ in range(20):
            handle.submit("step", ACTIONS, EPISODES).result()


@pytest.mark.parametrize("part", ["reward", "privileged"])
def test_columns_are_not_broadcast_over_a_rollout(part: str) -> None:
    method = "step" if part == "reward" else "reset"
    collector, actor = make([InlineHandle(lambda: Changed(N, method, part, COLUMN, CONFIG))])
    with refuses("simulator-output-invalid", part):
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


def test_outputs_with_parked_environments_and_without_images_are_valid() -> None:
    class Blind(FakeSimulator):
        def __init__(self, num_envs):
            super().__init__(num_envs)
            self.spec = replace(self.spec, cameras=(), privileged_names=())

        def _observe(self):
            return replace(super()._observe(), images={}, privileged=None)

    handle = InlineHandle(lambda: Blind(3))
    handle.submit("reset", [EPISODES[0], None, None]).result()
    assert handle.submit("step", ACTIONS, [None] * 3).result().steps.tolist() == [4, 0, 0]
