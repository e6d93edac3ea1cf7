"""Whoever started the bridge reads how the robot fares, once for each change; no robot waits for the terminal."""

import threading
from typing import Any

import pytest

from embodied_rl.deployment.bridge.announcing import MOST_LINES, Announcer, describe_fare
from tests.deployment.bridge.test_activation import StillPolicy
from tests.support.bridging import RealTimeBench
from tests.support.ended import wait_for


def list_told(said: list[tuple[float, str]]) -> list[str]:
    """Return the lines that are told of what was so at these seconds."""
    told, now = list[str](), [0.0]
    with Announcer(told.append, lambda: now[0]) as announcer:
        for now[0], words in said:
            announcer.note(words)
    return told


def test_what_lasts_is_told_once_and_numbers_make_no_news() -> None:
    silent = [(0.1 * n, f"hold: silent for {0.1 * n:.2f} s") for n in range(20)]
    assert list_told(silent) == ["hold: silent for 0.50 s"]
    assert list_told([*silent, (2.0, "run"), (2.1, "hold: silent for 9.00 s"), (3.0, "hold: silent for 9.90 s")]) == [
        "hold: silent for 0.50 s"
    ], "the run was too short to be told"
    assert list_told([(0, "run"), (1, "run"), (2, "hold"), (3, "hold"), (4, "run"), (5, "run")]) == [
        "run", "hold", "run",
    ]  # fmt: skip


def test_a_terminal_that_takes_nothing_stops_nobody() -> None:
    blocked, now, told = threading.Event(), [0.0], list[str]()

    def hang(line: str) -> None:
        blocked.wait(60)
        told.append(line)

    announcer = Announcer(hang, lambda: now[0])
    for number in range(2 * MOST_LINES):
        for now[0] in (2.0 * number, 2.0 * number + 1):
            announcer.note("run" if number % 2 else "hold")
    assert told == [], "it took what it was given, and waited for nobody"
    blocked.set()
    wait_for(lambda: len(told) >= MOST_LINES)
    announcer.close()
    assert len(told) <= MOST_LINES + 1, "and kept no more than that"


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
def test_what_is_said_of_a_status(changes: dict[str, Any], said: str) -> None:
    status = {"state": "active", "mode": "hold", "why": "the policy does not answer", "waiting": False}
    assert describe_fare({**status, "dry_run": False, **changes}) == said


def test_a_dead_man_s_switch_that_nobody_holds_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    bench, told = RealTimeBench(StillPolicy(), {"deadman": True}), list[str]()
    bench.prepare()
    assert "while the dead man's switch is held (true on /deadman; deadman=false leaves" in capsys.readouterr().out
    bench.bridge.tell = told.append
    bench.run(0.5)
    assert told[-1] == "hold: no mode was asked for; run was refused: the dead man's switch is released"


def test_what_became_of_something_is_told_each_time() -> None:
    told: list[str] = []
    with Announcer(told.append) as announcer:
        for _ in range(2):
            announcer.add_line("a return point was \x1b[31mkept")
    assert len(told) == 2 and "\x1b" not in told[0]
