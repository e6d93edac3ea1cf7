"""What the ranks of the tests run; a module of its own because child processes import it."""

import os
import time
from pathlib import Path

import torch

from embodied_rl.runtime.ranks import Ranks, stop_on_signals


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
        "broadcast": ranks.broadcast(("from", ranks.rank)),
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
        time.sleep(60)
    ranks.barrier()


def report_and_wait(config: str, ranks: Ranks) -> None:
    """Every rank writes its process id, then waits for long."""
    Path(config, f"{ranks.rank}.tmp").write_text(str(os.getpid()))
    Path(config, f"{ranks.rank}.tmp").rename(Path(config, f"{ranks.rank}.pid"))
    time.sleep(60)


def fail_beside_a_busy_rank(config: str, ranks: Ranks) -> None:
    Path(config, f"{ranks.rank}.pid").write_text(str(os.getpid()))
    ranks.barrier()
    if ranks.rank == 0:
        raise KeyError("the first cause")
    time.sleep(60)


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
