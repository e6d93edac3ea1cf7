"""Checks of configuration keys against each other, the disk and the simulator."""

import pytest

from embodied_rl.schema import Plan, SamplerNode, SimNode
from embodied_rl.schema.checks import (
    check_division,
    check_folder,
    check_sampler,
)
from tests.support.refusals import refuses


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
