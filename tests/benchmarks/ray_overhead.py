"""Compare plans on a Ray cluster with plans on this machine, and measure the recovery time.

The cluster has two nodes, both on this machine. Stages sleep for a known time, so that they overlap even on few cores,
and move real pictures.
"""

import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.handle import Deadlines, Handle, NodeShare, Runtime, WorkerDied, restart_and_reset
from embodied_rl.runtime.processes.local import LocalRuntime
from embodied_rl.runtime.ray.handle import RayHandle
from embodied_rl.runtime.ray.runtime import RayRuntime
from tests.benchmarks import async_collection, pipeline
from tests.benchmarks.settings import BenchmarkConfig
from tests.benchmarks.sleeping_stages import EXECUTED, SleepingConfig, SleepingSimulator

CORES, ENVS, KILLS, REPEATS = 8, 8, 3, 3
APART = pipeline.PipelineCase("simulators apart, two slices of two", *pipeline.BALANCED, 2, workers=2)
WORKERS = (
    async_collection.AheadCase("two rollout workers, in turn", 0.05, 0.02, 0.3, staleness=0, workers=2),
    async_collection.AheadCase("two rollout workers, one ahead", 0.05, 0.02, 0.6, staleness=1, workers=2),
)


@dataclass(frozen=True)
class ClusterOutcome:
    """Median seconds of an iteration, or of a rollout, on this machine and on the cluster."""

    name: str
    local: float
    ray: float

    @property
    def share(self) -> float:
        """Return the cluster's throughput as a share of this machine's throughput."""
        return self.local / self.ray


@dataclass(frozen=True)
class ClusterRecovery:
    """Median seconds from a death until the caller notices it, and until a new process has its first observation.

    For a lost node, recovery is counted from the moment when another node has been added.
    """

    actor_noticed: float
    actor_recovered: float
    node_noticed: float
    node_recovered: float


@contextmanager
def start_fake_nodes(nodes: int, cpus: int) -> Iterator[Any]:
    """Run several nodes on this machine in the context; yield Ray's `Cluster`, not yet joined."""
    from ray.cluster_utils import Cluster

    plain = {"prestart_worker_first_driver": False, "worker_niceness": 0}
    memory = 256 << 20
    head = {"num_cpus": cpus, "object_store_memory": memory, "include_dashboard": False, "_system_config": plain}
    made = Cluster(True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=cpus, object_store_memory=memory)
        yield made
    finally:
        made.shutdown()


def measure_cluster() -> tuple[list[ClusterOutcome], ClusterRecovery]:
    """Measure all cases in turns on this machine and on the cluster, then the recovery from deaths."""
    with start_fake_nodes(2, CORES) as nodes, RayRuntime(nodes.address) as runtime:
        outcomes = [measure_both(APART.name, runtime, lambda where: pipeline.measure_case(APART, 0, where))]
        outcomes += [
            measure_both(case.name, runtime, lambda where, c=case: async_collection.measure_case(c, where)[0])
            for case in WORKERS
        ]
        return outcomes, measure_recovery(nodes, runtime)


def measure_both(name: str, runtime: RayRuntime, seconds: Any) -> ClusterOutcome:
    """Measure the median over some runs on this machine and on the cluster, in turns."""
    found: dict[bool, list[float]] = {True: [], False: []}
    places: tuple[tuple[bool, Runtime], ...] = ((True, LocalRuntime()), (False, runtime))
    for _ in range(REPEATS):
        for here, where in places:
            found[here].append(seconds(where))
    return ClusterOutcome(name, statistics.median(found[True]), statistics.median(found[False]))


def measure_recovery(nodes: Any, runtime: RayRuntime) -> ClusterRecovery:
    """Kill an actor several times, each time during a chunk; then remove its node and add another."""
    handle = make_slow_simulator(runtime, NodeShare())
    noticed, recovered = zip(*[_kill(handle) for _ in range(KILLS)], strict=True)
    handle.close()
    extra = nodes.add_node(num_cpus=CORES + 1, object_store_memory=100 << 20)
    handle = make_slow_simulator(runtime, NodeShare(CORES + 1.0))  # only the extra node has so many cores
    call = handle.submit("step", *_chunk(handle))
    began = time.perf_counter()
    nodes.remove_node(extra)
    _await_death(call)
    lost = time.perf_counter() - began
    nodes.add_node(num_cpus=CORES + 1, object_store_memory=100 << 20)
    began = time.perf_counter()
    restart_and_reset(handle, _episodes())
    back = time.perf_counter() - began
    handle.close()
    return ClusterRecovery(statistics.median(noticed), statistics.median(recovered), lost, back)


def make_slow_simulator(runtime: RayRuntime, share: NodeShare) -> RayHandle:
    """Start a simulator with a chunk that takes long enough to kill the process during it."""
    kwargs = {"config": SleepingConfig(fixed=30.0), "num_envs": ENVS}
    factory = "tests.benchmarks.sleeping_stages:SleepingSimulator"
    handle = runtime.worker(factory, kwargs, name="sleeping simulator", deadlines=Deadlines(), share=share)
    handle.submit("reset", _episodes()).result()
    return handle


def _kill(handle: RayHandle) -> tuple[float, float]:
    call = handle.submit("step", *_chunk(handle))
    time.sleep(0.5)
    began = time.perf_counter()
    os.kill(handle.pid, signal.SIGKILL)
    _await_death(call)
    noticed = time.perf_counter() - began
    restart_and_reset(handle, _episodes())
    return noticed, time.perf_counter() - began


def _await_death(call: Any) -> None:
    try:
        call.result()
    except WorkerDied:
        return
    raise RuntimeError("the chunk was over before its process was killed")


def _chunk(handle: Handle) -> tuple[Any, ...]:
    return np.zeros((ENVS, EXECUTED, len(handle.spec.action_names)), np.float32), _episodes()


def _episodes() -> list[Any]:
    sampler = EpisodeSampler(SleepingSimulator.spec_of(SleepingConfig()), 0)
    return [sampler.episode(index) for index in range(ENVS)]


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure all plans and the recovery; the configuration has no effect."""
    outcomes, recovery = measure_cluster()
    return {"plans": [asdict(each) | {"share": each.share} for each in outcomes], "recovery": asdict(recovery)}
