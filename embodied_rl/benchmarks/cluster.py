"""`embodied-rl bench cluster`: the same plans on a Ray cluster and on this machine, and how long the dead are missed.

The cluster has two nodes, both on this machine. Stages sleep for a known time, so that they overlap where cores are
few, and real pictures move.
"""

import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.table import Table

from embodied_rl.benchmarks import ahead, pipeline
from embodied_rl.benchmarks.sleeping import EXECUTED, SleepingConfig, SleepingSimulator
from embodied_rl.benchmarks.tables import make_table
from embodied_rl.processes.base import Deadlines, Runtime, Share
from embodied_rl.processes.handle import Handle, WorkerDied, revive
from embodied_rl.processes.this_machine import ThisMachine
from embodied_rl.rollout.episodes import EpisodeSampler
from embodied_rl.runtime.ray import cluster
from embodied_rl.runtime.ray.handle import RayHandle
from embodied_rl.runtime.ray.runtime import RayRuntime

CORES, ENVS, KILLS, REPEATS = 8, 8, 3, 3
APART = pipeline.Case("simulators apart, two slices of two", *pipeline.BALANCED, 2, workers=2)
WORKERS = (
    ahead.Case("two rollout workers, in turn", 0.05, 0.02, 0.3, staleness=0, workers=2),
    ahead.Case("two rollout workers, one ahead", 0.05, 0.02, 0.6, staleness=1, workers=2),
)


@dataclass(frozen=True)
class Outcome:
    """Median seconds of an iteration, or of a rollout, on this machine and on the cluster."""

    name: str
    local: float
    ray: float

    @property
    def share(self) -> float:
        """The cluster's throughput, of this machine's."""
        return self.local / self.ray


@dataclass(frozen=True)
class Recovery:
    """Median seconds from a death until whoever waits knows, and until a new process shows its first observation.

    A node is counted from when another one was there.
    """

    actor_noticed: float
    actor_recovered: float
    node_noticed: float
    node_recovered: float

    def __str__(self) -> str:
        return (
            f"A killed actor: noticed after {self.actor_noticed:.2f} s, first new observation after "
            f"{self.actor_recovered:.2f} s. A lost node: noticed after {self.node_noticed:.2f} s, first new "
            f"observation {self.node_recovered:.2f} s after another node was there."
        )


def measure() -> tuple[list[Outcome], Recovery]:
    """All cases in turn on both, then the deaths."""
    with cluster.pretended(2, CORES) as nodes, RayRuntime(nodes.address) as runtime:
        outcomes = [both(APART.name, runtime, lambda where: pipeline.measure(APART, 0, where))]
        outcomes += [both(case.name, runtime, lambda where, c=case: ahead.measure(c, where)[0]) for case in WORKERS]
        return outcomes, recovery(nodes, runtime)


def both(name: str, runtime: RayRuntime, seconds: Any) -> Outcome:
    """Medians of some runs here and there, in turns."""
    found: dict[bool, list[float]] = {True: [], False: []}
    places: tuple[tuple[bool, Runtime], ...] = ((True, ThisMachine()), (False, runtime))
    for _ in range(REPEATS):
        for here, where in places:
            found[here].append(seconds(where))
    return Outcome(name, statistics.median(found[True]), statistics.median(found[False]))


def recovery(nodes: Any, runtime: RayRuntime) -> Recovery:
    """Kill an actor several times, each in a chunk; then its node, and add another."""
    handle = simulator(runtime, Share())
    noticed, recovered = zip(*[_kill(handle) for _ in range(KILLS)], strict=True)
    handle.close()
    extra = nodes.add_node(num_cpus=CORES + 1, object_store_memory=100 << 20)
    handle = simulator(runtime, Share(CORES + 1.0))  # only there is so much room
    call = handle.submit("step", *_chunk(handle))
    began = time.perf_counter()
    nodes.remove_node(extra)
    _await_death(call)
    lost = time.perf_counter() - began
    nodes.add_node(num_cpus=CORES + 1, object_store_memory=100 << 20)
    began = time.perf_counter()
    revive(handle, _episodes())
    back = time.perf_counter() - began
    handle.close()
    return Recovery(statistics.median(noticed), statistics.median(recovered), lost, back)


def simulator(runtime: RayRuntime, share: Share) -> RayHandle:
    """One whose chunks take so long that it is killed within one."""
    kwargs = {"config": SleepingConfig(fixed=30.0), "num_envs": ENVS}
    factory = "embodied_rl.benchmarks.sleeping:SleepingSimulator"
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
    revive(handle, _episodes())
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


def table(outcomes: Sequence[Outcome]) -> Table:
    """Each plan here and there."""
    caption = f"Seconds of a rollout or an iteration, medians of {REPEATS}, in turns; two nodes on this machine."
    rows = [(each.name, f"{each.local:.2f} s", f"{each.ray:.2f} s", f"{each.share:.1%}") for each in outcomes]
    return make_table("a Ray cluster, stages that sleep", caption, ("plan", "local", "Ray", "throughput"), rows)


def summary(outcomes: Sequence[Outcome], found: Recovery) -> dict[str, Any]:
    """For the report."""
    return {"plans": [asdict(each) | {"share": each.share} for each in outcomes], "recovery": asdict(found)}
