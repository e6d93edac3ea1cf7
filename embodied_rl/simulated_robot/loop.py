"""Main loops of a simulated robot: real time, and lockstep with commands."""

import time
from collections.abc import Callable

from embodied_rl.simulated_robot.node import SimulatedRobot

MOST_BEHIND_S = 0.25
"""Largest delay in seconds that the real-time loop makes up for; a longer delay is dropped and reported."""
LOOKING_S = 0.1
"""Seconds between runs of slow tasks in lockstep."""

Wait = Callable[[float], None]
"""Waits for a number of seconds, possibly 0, while callbacks run."""


def spin_for(robot: SimulatedRobot) -> Wait:
    """Return a function that spins the robot's node for a number of seconds, at least once."""

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
        robot: the simulated robot.
        ended: returns whether to stop; called before each step.
        clock: the robot's monotonic clock in seconds.
        wait: spins the robot's node.
    """
    wait = wait or spin_for(robot)
    period, due = robot.robot.servo_s, clock()
    while not ended():
        wait(0.0)  # also if late, so that received commands are processed in time
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
    """Answer commands until `ended()`; without commands, repeat the last answer. Arguments as in `run_in_real_time`."""
    wait = wait or spin_for(robot)
    repeated = clock()
    while not ended():
        wait(LOOKING_S)
        robot.run_slow_tasks()
        now, waited = clock(), clock() - robot.progress_s
        if waited > robot.settings.deadline_s and robot.episode_requested:
            robot.give_up()
        elif min(waited, now - repeated) >= robot.settings.repeat_s:
            repeated = now
            robot.repeat()
