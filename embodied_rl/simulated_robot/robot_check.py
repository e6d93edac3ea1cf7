"""Checks of a simulated robot against a robot description."""

import re

import numpy as np

from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.servo import ServoedRobot
from embodied_rl.simulated_robot.topics import check_topics

_JOINT = re.compile(r"\[([^\]]+)\]")


def check_fit(description: RobotDescription, robot: ServoedRobot) -> None:
    """Check that the simulated robot equals the description, as far as a policy can observe.

    Raises:
        UserError: they differ; the message names the difference.
    """
    described, simulated = description.body, robot.spec.body
    for what in ("cameras", "state_names", "action_names", "action_low", "action_high", "control_hz"):
        ours, theirs = getattr(described, what), getattr(simulated, what)
        if what in ("action_low", "action_high", "control_hz"):
            same = np.shape(ours) == np.shape(theirs) and bool(np.allclose(ours, theirs, rtol=1e-9, atol=0))
        else:
            same = ours == theirs
        if not same:
            raise UserError(
                f"robot={description.name} does not match the simulator: its {what} are {ours}, those of the simulator "
                f"{theirs}. Choose another robot, or another simulator: sim=<name>.",
                code="robot-simulator-mismatch",
            )
    _check_joints(description, robot)
    check_topics(description)


def _check_joints(description: RobotDescription, robot: ServoedRobot) -> None:
    read = (name for entry in description.state for term in entry.terms for name in _JOINT.findall(term.field))
    missing = next((name for name in read if name not in robot.joint_names), None)
    if missing is not None:
        raise UserError(
            f"robot={description.name} reads the joint {missing}, which the simulated robot does not have; it has "
            f"{', '.join(robot.joint_names)}.",
            code="robot-simulator-mismatch",
        )
