"""Checks of configuration keys against each other, the disk and the simulator."""

import pytest

from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.schema import Plan, PolicyNode, SamplerNode, SimNode
from embodied_rl.schema.checks import (
    check_checkpoint,
    check_division,
    check_episodes,
    check_folder,
    check_sampler,
    check_timeouts,
)
from tests.support.refusals import refuses

SPEC = SimulatorSpec((), (), (), (), (), 10.0, 5, (Task("lift_it", "lift"),), splits=("windy",))


@pytest.mark.parametrize(
    ("plan", "parts"),
    [
        (Plan("colocated", ranks=3, slices=2, workers=7), 6),
        (Plan("split", ranks=3, slices=2, workers=4), 24),
    ],
)
def test_environments_are_divided_evenly(plan: Plan, parts: int) -> None:
    assert plan.parts == parts
    check_division(SimNode("x", num_envs=2 * parts), plan)
    for num_envs, suggested in ((2 * parts + 1, 2 * parts), (1, parts)):
        with refuses("environments-not-divisible", f"sim.num_envs={num_envs}", f"Try sim.num_envs={suggested}"):
            check_division(SimNode("x", num_envs=num_envs), plan)


def test_timeouts_have_a_maximum() -> None:
    check_timeouts(Plan(start_timeout=86_400, call_timeout=1))
    for key in ("start_timeout", "call_timeout"):
        for seconds in (float("inf"), 1e9):
            with refuses("value-out-of-range", f"plan.{key}", "86400"):
                check_timeouts(Plan(**{key: seconds}))


@pytest.mark.parametrize(
    "sampler",
    [
        SamplerNode(denoise_steps=3, step_weights=(1.0, 1.0)),
        SamplerNode(denoise_steps=2, step_weights=(0.0, 0.0)),
        SamplerNode(denoise_steps=2, step_weights=(-1.0, 2.0)),
        SamplerNode(std_min=0.3, std_max=0.1),
    ],
)
def test_invalid_samplers_are_refused(sampler: SamplerNode) -> None:
    with refuses("sampler-invalid", "algo.sampler"):
        check_sampler(sampler)


def test_checking_a_folder_does_not_create_it(tmp_path) -> None:
    check_folder(str(tmp_path / "a" / "b"), "run.root")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_must_be_there(tmp_path) -> None:
    check_checkpoint(PolicyNode("x"))
    check_checkpoint(PolicyNode("x", checkpoint=str(tmp_path)))
    with refuses("checkpoint-missing", tmp_path / "none"):
        check_checkpoint(PolicyNode("x", checkpoint=str(tmp_path / "none")))


@pytest.mark.parametrize(("split", "task"), [("train", None), ("eval", "lift"), ("windy", "lift_it"), (None, None)])
def test_episodes_that_exist(split: str | None, task: str | None) -> None:
    check_episodes(SPEC, split, task)


def test_unknown_splits_and_tasks_are_refused() -> None:
    with refuses("split-unknown", "'wind'", "'windy'"):
        check_episodes(SPEC, "wind", None)
    with refuses("task-unknown", "'lft'", "'lift'"):
        check_episodes(SPEC, "eval", "lft")
