"""Training runs as a user starts them: processes of their own, watched through their run folder."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import load_file

from embodied_rl.runs.metrics_file import read_metrics
from tests.support.forked import start
from tests.support.forks import is_fork_server

DEADLINE = 240.0
ITERATIONS = 6
POLICY = ("policy.checkpoint=null", "policy.width=16", "policy.layers=1", "policy.heads=2", "policy.stem_channels=8",
          "policy.keypoints=4", "policy.horizon=2")  # fmt: skip
SMALL = (
    *POLICY,
    "sim.num_envs=8",
    f"train.iterations={ITERATIONS}",
    "train.decisions=3",
    "train.eval_every=3",
    "train.eval_episodes=4",
    "train.final_episodes=4",
    "checkpoint.every=2",
    "checkpoint.keep=2",
    "algo.minibatch=16",
    "algo.critic_steps=3",
    "algo.critic_warmup=1",
    "logger=json",
    "train.film=false",
)
TABLETOP = ("sim.horizon=8", "sim.image_size=16")
FILMED = tuple(word for word in SMALL if not word.startswith("train.film="))
REACHING = ("sim.name=reaching",)


def with_plan(arguments: Sequence[str]) -> list[str]:
    """The arguments; two ranks where they say nothing of the plan, so that nothing is measured first."""
    new = arguments[0] == "train" and not any(word.startswith(("plan=", "resume=")) for word in arguments)
    return [*arguments, "plan=colocated"] if new else [*arguments]


class Process:
    """`embodied-rl <arguments>` in a folder of its own.

    Args:
        folder: that folder. arguments: the words. environment: variables besides those of this process.
        fresh, children: see `forked.start`.
    """

    def __init__(
        self,
        folder: Path,
        arguments: tuple[str, ...],
        environment: Mapping[str, str],
        *,
        fresh: bool = False,
        children: bool = False,
    ) -> None:
        self.folder = folder
        self._out = (folder / "output.txt").open("w+")
        variables = {**os.environ, **environment}
        self.process = start(
            "embodied_rl", with_plan(arguments), folder, variables, self._out, fresh=fresh, children=children
        )
        self._segments = segments()

    @property
    def run(self) -> Path | None:
        """The newest run folder, once there is one."""
        found = sorted((self.folder / "runs").glob("*/*"), key=lambda path: path.stat().st_mtime)
        return found[-1] if found else None

    def iterations(self) -> int:
        """Lines of its metrics."""
        return 0 if self.run is None else len(read_metrics(self.run / "metrics.jsonl"))

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Poll closely; False where the process ended first."""
        until = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < until, f"waited in vain:\n{self.output()}"
            if self.process.poll() is not None:
                return False
            time.sleep(0.01)
        return True

    def kill(self) -> None:
        """As `kill -9`, or the system when memory runs out; the other processes have to notice by themselves."""
        self.process.kill()
        self.process.wait(DEADLINE)
        self.check_nothing_is_left()

    def signal_everybody(self, number: signal.Signals) -> None:
        """As Ctrl-C does, and a scheduler that ends a job."""
        os.killpg(self.process.pid, number)

    def finish(self, within: float = DEADLINE) -> tuple[int, str]:
        """Exit code and everything it said."""
        code = self.process.wait(within)
        self.check_nothing_is_left()
        return code, self.output()

    def complete(self) -> Path:
        """Its run's folder, once it has come to a good end."""
        code, output = self.finish()
        assert code == 0, output
        assert self.run is not None
        return self.run

    def output(self) -> str:
        return (self.folder / "output.txt").read_text()

    def children(self) -> list[psutil.Process]:
        """Every process below it, but those that fork them for it."""
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in found if not is_fork_server(each.pid)]

    def check_nothing_is_left(self) -> None:
        """No process of the run outlives it by more than a few seconds, and no shared memory."""
        until = time.monotonic() + 120
        while alive := self._session():
            assert time.monotonic() < until, f"left behind: {[process.cmdline() for process in alive]}"
            time.sleep(0.02)
        left = [name for name in segments() - self._segments if not _is_used(name)]
        assert not left, f"shared memory {left} was left behind"

    def end(self) -> None:
        """Whatever happened, leave nothing running."""
        for process in self._session():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(DEADLINE)
        self._out.close()

    def _session(self) -> list[psutil.Process]:
        """Those that run of all that the command started, whoever their parent is by now: they share its session."""
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def segments() -> set[str]:
    """Names of shared memory on this machine, but for that of Isaac Lab's client for assets, which keeps it."""
    folder = Path("/dev/shm")
    names = os.listdir(folder) if folder.is_dir() else []
    return {name for name in names if not name.startswith("sem.carb")}


def _is_used(segment: str) -> bool:
    """Whether a process that runs has it mapped: then it is somebody else's."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if f"/dev/shm/{segment}" in maps.read_text():
                return True
    return False


@contextmanager
def started(folder: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    """A running command; ended with everything it started, if it has not ended by itself. Its processes are forks."""
    with ending(Process(make(folder), arguments, environment, children=True)) as process:
        yield process


@contextmanager
def started_apart(folder: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    """The same where the processes that it starts are new interpreters, which have command lines of their own."""
    with ending(Process(make(folder), arguments, environment)) as process:
        yield process


@contextmanager
def started_anew(folder: Path, *arguments: str, **environment: str) -> Iterator[Process]:
    """The same in a new interpreter, for what a fork of another one could hide: see `forked.py`."""
    with ending(Process(make(folder), arguments, environment, fresh=True)) as process:
        yield process


@contextmanager
def ending(process: Process) -> Iterator[Process]:
    """The process, ended with everything it started, if it has not ended by itself."""
    try:
        yield process
    finally:
        process.end()


def make(folder: Path) -> Path:
    """The folder, which is there afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def complete(folder: Path, *arguments: str, **environment: str) -> Path:
    """Run a command to its end, which must be a good one; returns the run's folder. Its processes are forks."""
    with ending(Process(make(folder), arguments, environment, children=True)) as process:
        return process.complete()


def complete_anew(folder: Path, *arguments: str, **environment: str) -> Path:
    """The same with new interpreters."""
    with started_anew(folder, *arguments, **environment) as process:
        return process.complete()


def figures(run: Path) -> list[dict[str, Any]]:
    """All metrics but those that depend on the clock."""
    return [{k: v for k, v in row.items() if not k.startswith("time/")} for row in read_metrics(run / "metrics.jsonl")]


def assert_learned_alike(run: Path, expected: Path) -> None:
    """Equal metrics and final weights, to the bit, whoever collected, and whoever had to be replaced."""
    assert [_learned(row) for row in figures(run)] == [_learned(row) for row in figures(expected)]
    assert (run / "policy.safetensors").read_bytes() == (expected / "policy.safetensors").read_bytes()


def _learned(row: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in row.items() if not k.startswith(("staleness/", "workers/restarts"))}


def read_bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor of any type: NumPy has no bfloat16."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def assert_same(run: Path, expected: Path) -> None:
    """Equal metrics, evaluations and final weights, optimiser and environments: to the bit."""
    assert figures(run) == figures(expected)
    for name in ("before", "after"):
        results = [json.loads((each / "eval" / name / "report.json").read_text()) for each in (run, expected)]
        assert results[0]["success"] == results[1]["success"], name
    last = [each / "checkpoints" / (each / "checkpoints" / "last").read_text().strip() for each in (run, expected)]
    assert last[0].name == last[1].name
    for file in ("tensors.safetensors", "policy.safetensors"):
        found, wanted = (load_file(folder / file) for folder in last)
        assert found.keys() == wanted.keys()
        different = [name for name in wanted if not torch.equal(read_bits(found[name]), read_bits(wanted[name]))]
        assert not different, different
    assert (run / "policy.safetensors").read_bytes() == (expected / "policy.safetensors").read_bytes()


def in_chunk(folder: Path, number: int) -> list[int]:
    """Processes whose simulators have begun this chunk of training, and not ended it."""
    words = ["begin", "end"] * (number - 1) + ["begin"]
    return [int(path.name) for path in folder.glob("[0-9]*") if path.read_text().split() == words]
