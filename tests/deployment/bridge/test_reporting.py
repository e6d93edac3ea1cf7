"""Reports of the bridge: one console line per change, and neither a terminal nor a topic blocks the robot."""

import threading
from typing import Any

import pytest

from embodied_rl.deployment.bridge.reporting import MAX_LINES, BridgeReporter, StatusPrinter, format_status_line
from embodied_rl.deployment.transport.in_process import Bus, InProcessPublisher, InProcessTransport
from embodied_rl.interfaces.errors import TransportError
from tests.deployment.bridge.test_activation import StillPolicy
from tests.support.bridging import RealTimeBench
from tests.support.ended import wait_for


def test_failed_sends_are_counted(monkeypatch) -> None:
    reporter = BridgeReporter(InProcessTransport(Bus(lambda: 1), "policy_bridge"))
    reporter.publish_status({"state": "active"})
    assert reporter.unsent == 0

    def hang(self: InProcessPublisher, raw: bytes) -> None:
        raise TransportError(f"{self.topic}: a message was not published, a reliable subscription does not keep up")

    monkeypatch.setattr(InProcessPublisher, "send", hang)
    reporter.publish_status({"state": "active"})
    assert reporter.unsent == 1
    assert "does not keep up" in reporter.last_unsent and "/policy_bridge/status" in reporter.last_unsent


def print_lines(said: list[tuple[float, str]]) -> list[str]:
    """Return the lines that are printed for statuses at times in seconds."""
    printed, now = list[str](), [0.0]
    with StatusPrinter(printed.append, lambda: now[0]) as printer:
        for now[0], words in said:
            printer.update(words)
    return printed


def test_a_lasting_status_is_printed_once_and_changed_numbers_do_not_count() -> None:
    silent = [(0.1 * n, f"hold: silent for {0.1 * n:.2f} s") for n in range(20)]
    assert print_lines(silent) == ["hold: silent for 0.50 s"]
    assert print_lines([*silent, (2.0, "run"), (2.1, "hold: silent for 9.00 s"), (3.0, "hold: silent for 9.90 s")]) == [
        "hold: silent for 0.50 s"
    ], "the run was too short"
    assert print_lines([(0, "run"), (1, "run"), (2, "hold"), (3, "hold"), (4, "run"), (5, "run")]) == [
        "run", "hold", "run",
    ]  # fmt: skip


def test_a_blocked_terminal_does_not_block_the_caller() -> None:
    blocked, now, printed = threading.Event(), [0.0], list[str]()

    def hang(line: str) -> None:
        blocked.wait(60)
        printed.append(line)

    printer = StatusPrinter(hang, lambda: now[0])
    for number in range(2 * MAX_LINES):
        for now[0] in (2.0 * number, 2.0 * number + 1):
            printer.update("run" if number % 2 else "hold")
    assert printed == []
    blocked.set()
    wait_for(lambda: len(printed) >= MAX_LINES)
    printer.close()
    assert len(printed) <= MAX_LINES + 1, "further lines are dropped"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "hold: the policy does not answer"),
        ({"why": "", "mode": "run"}, "run: the policy drives the robot"),
        ({"why": "", "mode": "run", "dry_run": True}, "run: the policy would drive the robot"),
        ({"waiting": True, "why": ""}, "waits for an episode"),
        ({"state": "inactive"}, "nothing is commanded: the policy does not answer"),
    ],
)
def test_status_lines(changes: dict[str, Any], said: str) -> None:
    status = {"state": "active", "mode": "hold", "why": "the policy does not answer", "waiting": False}
    assert format_status_line({**status, "dry_run": False, **changes}) == said


def test_a_released_dead_man_s_switch_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    bench, printed = RealTimeBench(StillPolicy(), {"deadman": True}), list[str]()
    bench.prepare()
    assert "while the dead man's switch is held (true on /deadman; deadman=false removes" in capsys.readouterr().out
    bench.bridge.print_status = printed.append
    bench.run(0.5)
    assert printed[-1] == "hold: no mode was asked for; run was refused: the dead man's switch is released"


def test_lines_are_printed_each_time_and_made_printable() -> None:
    printed: list[str] = []
    with StatusPrinter(printed.append) as printer:
        for _ in range(2):
            printer.add_line("a return point was \x1b[31mkept")
    assert len(printed) == 2 and "\x1b" not in printed[0]
