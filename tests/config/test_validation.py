"""What must hold between keys before any worker starts."""

import pytest

from embodied_rl.config.checks import (
    check_checkpoint,
    check_deadlines,
    check_division,
    check_episodes,
    check_sampler,
    check_writable,
)
from embodied_rl.config.schema import Plan, PolicyNode, SamplerNode, SimNode
from embodied_rl.interfaces.sim import SimulatorSpec, Task

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
    with pytest.raises(ValueError, match=f"Try sim.num_envs={2 * parts}"):
        check_division(SimNode("x", num_envs=2 * parts + 1), plan)
    with pytest.raises(ValueError, match=f"Try sim.num_envs={parts}"):
        check_division(SimNode("x", num_envs=1), plan)


def test_a_deadline_has_an_end() -> None:
    check_deadlines(Plan(start_timeout=86_400, call_timeout=1))
    for key in ("start_timeout", "call_timeout"):
        for seconds in (float("inf"), 1e9):
            with pytest.raises(ValueError, match=f"plan.{key} must be at most 86400 seconds"):
                check_deadlines(Plan(**{key: seconds}))


@pytest.mark.parametrize(
    "sampler",
    [
        SamplerNode(denoise_steps=3, step_weights=(1.0, 1.0)),
        SamplerNode(denoise_steps=2, step_weights=(0.0, 0.0)),
        SamplerNode(denoise_steps=2, step_weights=(-1.0, 2.0)),
        SamplerNode(std_min=0.3, std_max=0.1),
    ],
)
def test_samplers_that_cannot_sample(sampler: SamplerNode) -> None:
    with pytest.raises(ValueError, match=r"algo.sampler"):
        check_sampler(sampler)


def test_a_folder_is_checked_without_being_made(tmp_path) -> None:
    check_writable(str(tmp_path / "a" / "b"), "run.root")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_must_be_there(tmp_path) -> None:
    check_checkpoint(PolicyNode("x"))
    check_checkpoint(PolicyNode("x", checkpoint=str(tmp_path)))
    with pytest.raises(ValueError, match=r"policy.checkpoint=null starts from new weights"):
        check_checkpoint(PolicyNode("x", checkpoint=str(tmp_path / "none")))


@pytest.mark.parametrize(("split", "task"), [("train", None), ("eval", "lift"), ("windy", "lift_it"), (None, None)])
def test_episodes_that_exist(split: str | None, task: str | None) -> None:
    check_episodes(SPEC, split, task)


@pytest.mark.parametrize(("split", "task"), [("wind", None), ("eval", "lft")])
def test_episodes_that_do_not(split: str, task: str | None) -> None:
    with pytest.raises(ValueError, match=r"Did you mean '(windy|lift)'"):
        check_episodes(SPEC, split, task)
