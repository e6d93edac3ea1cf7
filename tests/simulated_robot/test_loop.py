"""The loop in real time has absolute deadlines, makes up for what is late, and says what it cannot make up for."""

from collections.abc import Callable

import pytest

from embodied_rl.simulated_robot.running import run_in_real_time
from tests.support.tabletop_robot import Bench

MOVE = [0.1, 0.0, 0.0, 1.0]


def run(bench: Bench, seconds: float, pauses: Callable[[int], float] = lambda _: 0.0) -> list[float]:
    """Run the loop; the k-th tick takes `pauses(k)` seconds. Return when each tick began."""
    began: list[float] = []
    tick, until = bench.robot.tick, bench.time.seconds() + seconds

    def timed() -> None:
        began.append(bench.time.seconds())
        tick()
        bench.time.pass_s(pauses(len(began)))

    bench.robot.tick = timed  # type: ignore[method-assign]

    def wait(left: float) -> None:
        bench.node.spin_once()
        bench.peer.node.spin_once()
        bench.time.pass_s(left)

    run_in_real_time(bench.robot, lambda: bench.time.seconds() > until, bench.time.seconds, wait)
    return began


def test_deadlines_do_not_drift(live: Bench) -> None:
    first = live.time.seconds()
    began = run(live, 4.0, lambda k: 0.001 * (k % 7))
    assert len(began) == 501
    assert began == pytest.approx([first + 0.008 * k for k in range(501)], abs=1e-6)
    assert live.robot.counts["overruns"] == 0 == live.robot.late_s


def test_a_late_step_is_made_up_for(live: Bench) -> None:
    began = run(live, 1.0, lambda k: 0.1 if k == 50 else 0.0)
    assert len(began) == 126 and live.robot.counts["overruns"] == 0
    late = [began[0] + 0.492] * 12
    assert began[50:62] == pytest.approx(late) and began[62:] == pytest.approx(
        [began[0] + 0.008 * k for k in range(62, 126)]
    )


def test_what_cannot_be_made_up_for_is_said(live: Bench) -> None:
    began = run(live, 2.0, lambda k: 0.5 if k == 50 else 0.0)
    assert 185 < len(began) < 195
    assert live.robot.counts["overruns"] == 1 and live.robot.late_s == pytest.approx(0.492)
    assert live.lines[-1] == "this machine was 0.49 s late; the simulated robot stood still meanwhile"


def test_a_command_that_waits_while_the_machine_is_late_is_not_late(live: Bench) -> None:
    """The robot was away for 200 ms, not its commander: it must not stop."""
    whys: list[str] = []
    tick = live.robot.tick

    def noted() -> None:
        tick()
        whys.append(live.robot._drive.why)
        live.peer.command(MOVE)

    live.robot.tick = noted  # type: ignore[method-assign]
    run(live, 1.0, lambda k: 0.2 if k == 50 else 0.0)
    assert len(whys) > 100 and set(whys) == {""}
