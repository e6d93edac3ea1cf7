"""However a run ends, nothing of it stays behind: no process, and no shared memory."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.running import REACHING, SMALL, Process, in_chunk, started, started_apart

pytestmark = [pytest.mark.process, pytest.mark.thorough]

AHEAD = ("mode=async", "plan=split", "plan.ranks=1", "plan.rollout_workers=2", "plan.workers=1")
PLANS = {"colocated": (), "split": ("plan=split", "plan.ranks=2", "plan.workers=2"), "ahead": AHEAD}
DESCENDANTS = {"colocated": 1, "split": 1 + 2 * (2 + 2), "ahead": 2 * 2 + 1}
"""The other rank; each rank's simulators, those of evaluations too; rollout workers with their simulators."""

SHORT = {"train.eval_every": "0", "train.eval_episodes": "2", "train.final_episodes": "2", "train.iterations": "400"}


def training(plan: str, **changes: str) -> tuple[str, ...]:
    """A run that is long, unless it is ended."""
    chosen = SHORT | {name.replace("__", "."): value for name, value in changes.items()}
    kept = [word for word in SMALL if word.partition("=")[0] not in chosen]
    return ("train", *kept, *REACHING, *(f"{key}={value}" for key, value in chosen.items()), *PLANS[plan])


@pytest.fixture(params=PLANS)
def plan(request: pytest.FixtureRequest) -> str:
    return request.param


def wait_until_it_trains(process: Process, plan: str) -> None:
    """All its processes are there, and it is somewhere in an iteration."""
    assert process.wait_until(lambda: process.iterations() >= 1), process.output()
    assert len(process.children()) == DESCENDANTS[plan]


@pytest.mark.parametrize(
    "plan", ["split", *(pytest.param(plan, marks=pytest.mark.slow) for plan in ("colocated", "ahead"))]
)
def test_after_success(plan: str, plugin_path: str, tmp_path: Path) -> None:
    """All other plans are run to their end by other tests, which look for what is left as well."""
    with started(tmp_path, *training(plan, train__iterations="2"), PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: len(process.children()) == DESCENDANTS[plan]), process.output()
        code, output = process.finish()
        assert code == 0, output


@pytest.mark.parametrize("plan", ["colocated", "split", pytest.param("ahead", marks=pytest.mark.slow)])
def test_after_a_simulator_raised(plan: str, plugin_path: str, tmp_path: Path) -> None:
    """In the fourth chunk of each: where they are apart, one message says so."""
    settings = training(plan, sim__fault="raise", sim__fault_call="3", train__final_episodes="1")
    with started(tmp_path, *settings, PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: len(process.children()) == DESCENDANTS[plan]), process.output()
        code, output = process.finish()
    assert code == 1 and "the fake simulator was told to fail" in output
    assert output.count("Traceback (most recent call last)") == 1


SIGNALS: dict[str, tuple[signal.Signals, Callable[[Process, signal.Signals], None]]] = {
    "Ctrl-C": (signal.SIGINT, Process.signal_everybody),
    "SIGTERM to everybody": (signal.SIGTERM, Process.signal_everybody),
    "SIGTERM to the driver": (signal.SIGTERM, lambda process, number: os.kill(process.process.pid, number)),
    "a closed terminal": (signal.SIGHUP, Process.signal_everybody),
}


@pytest.mark.parametrize(
    ("plan", "kind"),
    [
        pytest.param(plan, kind, marks=[] if (row + column) % 3 == 0 else pytest.mark.slow)
        for row, plan in enumerate(PLANS)
        for column, kind in enumerate(SIGNALS)
    ],
)
def test_after_a_signal(kind: str, plan: str, plugin_path: str, tmp_path: Path) -> None:
    with started(tmp_path, *training(plan), PYTHONPATH=plugin_path) as process:
        wait_until_it_trains(process, plan)
        number, send = SIGNALS[kind]
        send(process, number)
        code, output = process.finish()
        assert code == 128 + number and "Stopped and saved" in output, output


def test_after_the_driver_was_killed(plan: str, plugin_path: str, tmp_path: Path) -> None:
    """While every simulator is in a chunk that takes an hour: nobody can read that the other end is gone."""
    hanging = {"sim__fault": "hang", "sim__fault_call": "8", "sim__marks": str(tmp_path)}
    with started_apart(tmp_path, *training(plan, **hanging), PYTHONPATH=plugin_path) as process:
        simulators = {"colocated": 2, "split": 4, "ahead": 2}[plan]
        assert process.wait_until(lambda: len(in_chunk(tmp_path, 9)) == simulators), process.output()
        assert len(process.children()) == DESCENDANTS[plan]
        process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_after_a_signal_while_it_starts(number: signal.Signals, plugin_path: str, tmp_path: Path) -> None:
    """Before there is anything to save: the signal ends the driver, which says so, and with it everybody."""
    with started(tmp_path, *training("split", sim__gate="never"), PYTHONPATH=plugin_path) as process:
        assert process.wait_until(lambda: len(process.children()) >= 1), process.output()
        process.signal_everybody(number)
        code, output = process.finish()
    assert code == -number
    assert f"embodied-rl: ended by {number.name}; what was not saved by now is lost." in output
