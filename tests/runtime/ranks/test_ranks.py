"""Ranks: averaged gradients, gathered values, the first failure, and their end with rank 0."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from embodied_rl.runtime.ranks.collective import make_store
from embodied_rl.runtime.ranks.launch import (
    RankFailed,
    RankFailure,
    Ranks,
    Stopped,
    find_first_cause,
    launch_ranks,
    raise_on_signals,
    stop_on_signals,
)
from tests.support import rank_functions
from tests.support.ended import gone, wait_for


@pytest.mark.thorough
@pytest.mark.process
def test_three_ranks_average_sum_and_gather() -> None:
    """Gradients equal those of the whole batch, also with unequal shares; one that no rank computed stays None."""
    threads = torch.get_num_threads()
    x, y = torch.randn(12, 3), torch.randn(12, 1)
    shares = [(x[:5], y[:5]), (x[5:6], y[5:6]), (x[6:], y[6:])]
    result = launch_ranks(rank_functions.operations, {"rows": shares}, 3, timeout=200, threads=1)
    model = rank_functions.small_model()
    (model(x) - y).square().mean().backward()
    for parameter, gradient in zip(model.parameters(), result["gradients"][:-1], strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-5, atol=1e-7)
    assert result["gradients"][-1] is None
    assert result["sum"] == 1 + 2 + 3
    assert result["gather"] == [{"rank": rank, "text": "x" * rank * 1000} for rank in range(3)]
    assert (result["any"], result["none"], result["threads"]) == (True, False, 1)
    assert torch.get_num_threads() == threads


def test_one_rank_needs_no_torch_distributed(monkeypatch) -> None:
    monkeypatch.setattr(torch.distributed, "TCPStore", None)
    monkeypatch.setattr(torch.distributed, "ProcessGroupGloo", None)
    result = launch_ranks(rank_functions.operations, None, 1)
    assert (result["sum"], result["any"]) == (1, False)


@pytest.mark.thorough
@pytest.mark.process
def test_the_exception_of_another_rank_is_raised() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 failed first(.|\n)*KeyError: 'the first cause'") as caught:
        launch_ranks(rank_functions.fail, {"rank": 1, "how": "raise"}, 2, timeout=200)
    assert "PeerLost" not in str(caught.value) and caught.value.__suppress_context__


@pytest.mark.thorough
@pytest.mark.process
def test_an_exception_on_rank_0_is_raised_and_ends_the_others(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="the first cause"):
        launch_ranks(rank_functions.fail_beside_a_busy_rank, str(tmp_path), 2, timeout=200)
    assert gone(int((tmp_path / "1.pid").read_text()))


@pytest.mark.thorough
@pytest.mark.process
def test_a_killed_rank_is_reported_with_its_signal() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 .*killed by SIGKILL"):
        launch_ranks(rank_functions.fail, {"rank": 1, "how": "kill"}, 2, timeout=200)


@pytest.mark.thorough
@pytest.mark.process
def test_a_stalled_rank_fails_at_the_deadline(monkeypatch) -> None:
    monkeypatch.setattr("embodied_rl.runtime.ranks.launch.GRACE", 0.2)
    started = time.monotonic()
    with pytest.raises(RankFailed, match=r"rank 1 .*no answer within"):
        launch_ranks(rank_functions.stall, None, 2, timeout=1)
    assert time.monotonic() - started < 200


@pytest.mark.thorough
@pytest.mark.process
def test_the_error_of_rank_0_is_shown_with_that_of_a_silent_rank(monkeypatch) -> None:
    """The silent rank may have waited for rank 0."""
    monkeypatch.setattr("embodied_rl.runtime.ranks.launch.GRACE", 0.2)
    message = r"(?s)rank 1 .*rank 0.*no answer.*its storage cannot be resized"
    with pytest.raises(RankFailed, match=message):
        launch_ranks(rank_functions.fail_like_a_lost_peer, None, 2, timeout=200)


@pytest.mark.thorough
@pytest.mark.process
def test_rank_0_has_no_deadline_after_the_others_are_done() -> None:
    assert launch_ranks(rank_functions.finish_late, 6.0, 2, timeout=4) == "filmed"


@pytest.mark.thorough
@pytest.mark.process
def test_a_failure_at_the_end_is_reported() -> None:
    with pytest.raises(RankFailed, match=r"rank 1 failed at the end(.|\n)*KeyError: 'too late'"):
        launch_ranks(rank_functions.fail_at_the_end, None, 2, timeout=200)


def test_the_store_listens_on_the_loopback_interface_only() -> None:
    before = {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections() if c.status == "LISTEN"}
    store = make_store(2, 5.0)
    after = {(c.laddr.ip, c.laddr.port) for c in psutil.Process().net_connections() if c.status == "LISTEN"}
    assert after - before == {("127.0.0.1", store.port)}
    other = make_store(2, 5.0, store.port)
    other.set("here", "yes")
    assert store.get("here") == b"yes"


class FinishedChild:
    """A rank that has already reported."""

    def __init__(self, report: RankFailure | None):
        self.report = report

    def ready(self) -> bool:
        return True

    def receive(self, timeout: float, doing: str) -> RankFailure | None:
        return self.report


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"),
    [
        (RankFailure(0, 2.0, False, ""), [RankFailure(1, 1.0, False, ""), None], 1),
        (RankFailure(0, 1.0, False, ""), [RankFailure(1, 2.0, False, ""), None], 0),
        (RankFailure(0, 1.0, True, ""), [RankFailure(1, 0.5, True, ""), RankFailure(2, 3.0, False, "")], 2),
        (RankFailure(0, 1.0, True, ""), [RankFailure(1, 0.5, True, ""), None], 0),
    ],
)
def test_the_first_cause_is_the_earliest_failure_that_no_other_rank_caused(mine, theirs, expected: int) -> None:
    assert find_first_cause(mine, [FinishedChild(report) for report in theirs]).rank == expected


def start_ranks(function: str, folder: Path) -> subprocess.Popen:
    """Start rank 0 in a new process, with one other rank; return when both are running."""
    imports = "from embodied_rl.runtime.ranks import launch; from tests.support import rank_functions as functions"
    code = f"{imports}; launch.launch_ranks(functions.{function}, {str(folder)!r}, 2)"
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: all((folder / f"{rank}.pid").exists() for rank in range(2)), 200)
    return process


@pytest.mark.thorough
@pytest.mark.process
def test_the_other_ranks_end_when_rank_0_is_killed(tmp_path: Path) -> None:
    process = start_ranks("report_and_wait", tmp_path)
    process.kill()
    process.wait()
    other = int((tmp_path / "1.pid").read_text())
    wait_for(lambda: gone(other))


@pytest.mark.thorough
@pytest.mark.process
def test_signals_stop_all_ranks_after_the_same_iteration(tmp_path: Path) -> None:
    """Ctrl-C and schedulers send signals to all processes."""
    process = start_ranks("loop_until_stopped", tmp_path)
    os.kill(int((tmp_path / "1.pid").read_text()), signal.SIGTERM)
    os.kill(int((tmp_path / "1.pid").read_text()), signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert process.wait(200) == 0
    assert (tmp_path / "0.left").read_text() == (tmp_path / "1.left").read_text()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Install Python's handler of SIGINT, which a shell ignores for background processes."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_second_signal_acts_as_usual(interruptible: None) -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_signals(Ranks()) as stop_requested:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop_requested()
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)


def test_a_stop_that_python_ignores_is_not_lost(interruptible: None) -> None:
    """Python ignores exceptions in finalisers and fork callbacks."""

    class Finalised:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped), raise_on_signals(Ranks()):
        Finalised()
        time.sleep(60)
    with pytest.raises(Stopped), raise_on_signals(Ranks()):
        Finalised()


def test_a_stop_that_an_extension_replaces_is_not_lost(interruptible: None) -> None:
    """torch replaces an exception of a signal handler while it determines a shape."""

    class Asked:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, _: int) -> float:
            signal.raise_signal(signal.SIGTERM)
            return 0.0

    with pytest.raises(Stopped) as caught, raise_on_signals(Ranks()):
        torch.tensor(Asked())
    assert isinstance(caught.value.__cause__, ValueError), "torch no longer replaces it"


def test_an_error_without_a_stop_is_raised(interruptible: None) -> None:
    with pytest.raises(ValueError, match="an error"), raise_on_signals(Ranks()):
        raise ValueError("an error")


def test_a_second_hang_up_is_ignored() -> None:
    """The system and the shell each send one when a terminal is closed."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: arrived.append(number))
    try:
        with stop_on_signals(Ranks()) as stop_requested:
            signal.raise_signal(signal.SIGHUP)
            assert stop_requested()
            signal.raise_signal(signal.SIGHUP)
        assert not arrived
        signal.raise_signal(signal.SIGHUP)
        assert arrived == [signal.SIGHUP], "the earlier handler is restored"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_hang_up_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(Ranks()) as stop_requested:
            signal.raise_signal(signal.SIGHUP)
            assert not stop_requested()
    finally:
        signal.signal(signal.SIGHUP, before)


PRINTING_RUN = """
import sys, time
from pathlib import Path
from embodied_rl.runtime.ranks.launch import Ranks, stop_on_signals
with stop_on_signals(Ranks()) as stop_requested:
    Path(sys.argv[1], "begun").touch()
    while not stop_requested():
        time.sleep(0.01)
    print("lost", flush=True)
    Path(sys.argv[1], "saved").touch()
"""


@pytest.mark.thorough
@pytest.mark.process
def test_a_run_saves_after_its_terminal_was_closed(tmp_path: Path) -> None:
    """Writes to the terminal fail from then on."""
    command = [sys.executable, "-c", PRINTING_RUN, str(tmp_path)]
    terminal = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]
    with subprocess.Popen([*terminal, *command], stdin=subprocess.PIPE) as process:
        wait_for((tmp_path / "begun").exists, 200)
        process.kill()
    wait_for((tmp_path / "saved").exists, 200)
