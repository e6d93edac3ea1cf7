"""What the ranks of the tests run; a module of its own because child processes import it."""

import os
import sys
import time
from pathlib import Path

import torch

from embodied_rl.runtime.processes.handle import BoardReader
from embodied_rl.runtime.processes.interpreter import find_folder_of
from embodied_rl.runtime.ranks.launch import PeerLost, Ranks, raise_on_signals, stop_on_signals
from tests.support.sleeping import wait_for_signal


def average(config: dict, ranks: Ranks) -> list[torch.Tensor | None]:
    """Gradients of a mean squared error over this rank's rows, averaged; the same bits twice and on every rank."""
    model, unused = small_model(), torch.nn.Parameter(torch.ones(3))
    parameters = [*model.parameters(), unused]
    x, y = config["rows"][ranks.rank]
    results = []
    for _ in range(2):
        model.zero_grad()
        (model(x) - y).square().mean().backward()
        ranks.average_gradients(parameters, weight=float(len(x)))
        results += ranks.gather([None if p.grad is None else p.grad.clone() for p in parameters])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other[:-1], results[0][:-1], strict=True))
    return results[0]


def small_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))


def operations(config: dict, ranks: Ranks) -> dict:
    total = torch.tensor([1.0 + ranks.rank])
    ranks.sum_([total])
    return {
        "gradients": average(config, ranks) if config else None,
        "sum": float(total),
        "gather": ranks.gather({"rank": ranks.rank, "text": "x" * ranks.rank * 1000}),
        "any": ranks.any_(ranks.rank == 1),
        "none": ranks.any_(False),
        "threads": torch.get_num_threads(),
    }


def fail(config: dict, ranks: Ranks) -> None:
    """One rank fails, by an exception or a signal; the others wait for it."""
    if ranks.rank == config["rank"]:
        if config["how"] == "raise":
            raise KeyError("the first cause")
        os.kill(os.getpid(), 9)
    ranks.barrier()


def finish_late(seconds: float, ranks: Ranks) -> str:
    """Rank 0 has something left to do."""
    ranks.barrier()
    if ranks.rank == 0:
        time.sleep(seconds)
    return "filmed"


def fail_at_the_end(config: object, ranks: Ranks) -> None:
    """After the last thing they do together."""
    ranks.barrier()
    if ranks.rank == 1:
        time.sleep(0.3)
        raise KeyError("too late")


def stall(config: object, ranks: Ranks) -> None:
    if ranks.rank == 1:
        wait_for_signal()
    ranks.barrier()


def fail_like_a_lost_peer(config: object, ranks: Ranks) -> None:
    """Rank 0 takes a failure of its own for that of another rank, which is busy."""
    if ranks.rank == 1:
        wait_for_signal()
    raise PeerLost("rank 0 lost the others: its storage cannot be resized")


def report_and_wait(config: str, ranks: Ranks) -> None:
    """Every rank writes its process id, then waits for long."""
    Path(config, f"{ranks.rank}.tmp").write_text(str(os.getpid()))
    Path(config, f"{ranks.rank}.tmp").rename(Path(config, f"{ranks.rank}.pid"))
    wait_for_signal()


def fail_beside_a_busy_rank(config: str, ranks: Ranks) -> None:
    Path(config, f"{ranks.rank}.pid").write_text(str(os.getpid()))
    ranks.barrier()
    if ranks.rank == 0:
        raise KeyError("the first cause")
    wait_for_signal()


def loop_until_stopped(config: str, ranks: Ranks) -> int:
    iterations = 0
    with stop_on_signals(ranks) as stop_requested:
        Path(config, f"{ranks.rank}.pid").write_text(str(os.getpid()))
        while not ranks.any_(stop_requested()):
            time.sleep(0.02)
            iterations += 1
    counts = ranks.gather(iterations)
    assert len(set(counts)) == 1
    Path(config, f"{ranks.rank}.left").write_text(str(iterations))
    return iterations


class Reads:
    """A role that reads a board."""

    def __init__(self, num_envs: int, reader: BoardReader):
        self.reader = reader

    def total(self, above: int) -> tuple[int, float]:
        found = self.reader.newest(above)
        assert found is not None
        return found[0], float(found[1]["w"].float().sum())


def talk(config: str, ranks: Ranks) -> str:
    """Says something, and goes on once somebody has seen it."""
    print(f"rank {ranks.rank} speaks", flush=True)
    until = time.monotonic() + 120
    while not Path(config, "heard").exists():
        if time.monotonic() > until:
            return "nobody heard"
        time.sleep(0.02)
    print("to the user", file=sys.stderr)
    return "said"


def refuse(config: object, ranks: Ranks) -> None:
    """As a configuration does that cannot work."""
    if ranks.rank == 1:
        find_folder_of("no_such_package")
    ranks.barrier()


def stop_at_once(config: str, ranks: Ranks) -> None:
    """Where all is saved, and nothing is worth waiting for."""
    with raise_on_signals(ranks):
        Path(config, f"{ranks.rank}.pid").write_text(str(os.getpid()))
        wait_for_signal()


def start_beside(config: str, ranks: Ranks) -> list[tuple[int, bool]]:
    """Each rank has a role of its own beside it, in its bundle."""
    from embodied_rl.runtime.processes.handle import Deadlines, NodeShare
    from embodied_rl.runtime.ray import cluster
    from embodied_rl.runtime.ray.runtime import RayRuntime

    deadlines = Deadlines(300, 120)
    handle = RayRuntime().worker(
        "tests.support.rank_functions:Place", {}, name="beside", deadlines=deadlines, share=NodeShare(0.5)
    )
    there = handle.submit("node").result()
    if config:
        Path(config, f"{ranks.rank}.tmp").write_text(f"{os.getpid()} {handle.pid}")
        Path(config, f"{ranks.rank}.tmp").rename(Path(config, f"{ranks.rank}.pid"))
        wait_for_signal()
    return ranks.gather((handle._where.bundle if handle._where else -1, there == cluster.find_own_node()))


class Place:
    """A role that says where it is."""

    def node(self) -> str:
        from embodied_rl.runtime.ray import cluster

        return cluster.find_own_node()
