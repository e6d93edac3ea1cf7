"""Resources of a plan in a cluster, and checks of the runtime."""

from dataclasses import replace

import pytest

from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime import selection as runtimes
from embodied_rl.runtime.processes.handle import NodeShare
from embodied_rl.runtime.processes.local import LocalRuntime
from embodied_rl.schema import AlgoNode, Plan, PolicyNode, SimNode, TrainConfig
from tests.support.refusals import refuses

CONFIG = TrainConfig(SimNode("tabletop"), PolicyNode("pocket"), AlgoNode("ppo"))


@pytest.mark.parametrize(
    ("plan", "cpu", "cuda"),
    [
        (Plan(ranks=2), [(1, 0), (1, 0)], [(1, 1), (1, 1)]),
        (Plan("split", ranks=2, slices=2, workers=3), [(7, 0), (7, 0)], [(7, 1), (7, 1)]),
        (Plan("split", ranks=1, slices=1, workers=2, policy="process"), [(4, 0)], [(4, 2)]),
        (Plan(ranks=1, rollout_workers=2), [(1, 0)] * 3, [(1, 1)] * 3),
        (
            Plan("split", ranks=1, slices=2, workers=1, rollout_workers=2),
            [(1, 0), (3, 0), (3, 0)],
            [(1, 1), (3, 1), (3, 1)],
        ),
    ],
)
def test_bundles_include_the_processes_that_ranks_start(
    plan: Plan, cpu: list[tuple[int, int]], cuda: list[tuple[int, int]]
) -> None:
    assert runtimes.make_bundles(plan, "cpu") == [NodeShare(*each) for each in cpu]
    assert runtimes.make_bundles(plan, "cuda") == [NodeShare(*each) for each in cuda]


def test_the_local_runtime_has_no_requirements() -> None:
    runtimes.check_runtime(CONFIG)
    assert isinstance(runtimes.select_runtime(CONFIG), LocalRuntime)
    assert runtimes.list_nodes(CONFIG) == ()


def test_a_cluster_needs_ray_and_starts_ranks_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, runtime="ray")
    with monkeypatch.context() as patch:
        patch.setattr(runtimes, "find_spec", lambda name: None)
        with pytest.raises(Unavailable, match=r"pip install 'embodied-rl\[ray\]'"):
            runtimes.check_runtime(config)
    place = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(runtimes, "find_spec", lambda name: object())
    with refuses("torchrun-not-supported", "runtime=ray"):
        runtimes.check_runtime(config)
