"""The loops that let a simulated robot's time pass: with the clock on the wall, or with the commands that come."""

import time
from collections.abc import Callable

from embodied_rl.deployment.simulated_robot.node import SimulatedRobot

MOST_BEHIND_S = 0.25
"""In real time a robot that is late makes up for it; what is beyond this is lost, and said."""
LOOKING_S = 0.1
"""In lockstep the loop looks so often for what else is to be done."""

Wait = Callable[[float], None]
"""Waits for so many seconds, 0 included, in which callbacks run."""


def spin_for(robot: SimulatedRobot) -> Wait:
    """Return a function that spins the robot's node for so many seconds, at least once."""

    def wait(seconds: float) -> None:
        robot.node.spin_once()
        robot.node.spin_until(lambda: False, seconds)

    return wait


def run_in_real_time(
    robot: SimulatedRobot,
    ended: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    wait: Wait | None = None,
) -> None:
    """Make the steps of the servo at absolute deadlines, until `ended()`.

    Args:
        robot: whose time passes.
        ended: asked before each step.
        clock: seconds, monotonic; that of the robot.
        wait: spins the robot's node.
    """
    wait = wait or spin_for(robot)
    period, due = robot.robot.servo_s, clock()
    while not ended():
        wait(0.0)  # even where it is late: a command that came is not late because of that
        robot.tick()
        due += period
        left = due - clock()
        if left < -MOST_BEHIND_S:
            robot.note_overrun(-left)
            due = clock()
        elif left > 0:
            wait(left)


def run_in_lockstep(
    robot: SimulatedRobot,
    ended: Callable[[], bool],
    clock: Callable[[], float] = time.monotonic,
    wait: Wait | None = None,
) -> None:
    """Answer commands, and repeat the last answer where none comes, until `ended()`; arguments as above."""
    wait = wait or spin_for(robot)
    repeated = clock()
    while not ended():
        wait(LOOKING_S)
        robot.tend()
        now, waited = clock(), clock() - robot.progress_s
        if waited > robot.settings.deadline_s and robot.awaited:
            robot.give_up()
        elif min(waited, now - repeated) >= robot.settings.repeat_s:
            repeated = now
            robot.repeat()
