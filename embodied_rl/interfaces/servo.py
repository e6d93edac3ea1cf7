"""The interface of a simulator that is driven like a real robot. Imports NumPy and the standard library only.

A simulator's class says with `servo = "module:Class"` which class makes one of its environments such a robot; it is
built with the simulator's `Config`. A robot is driven in one of two ways. In lockstep, `control_step` makes exactly one
control step of the simulator, with the same states, pictures and outcomes to the bit. In real time, `servo` makes one
step of the robot's own servo, which is much shorter, and of which a control step has many.

Shapes: `A` action entries, `J` joints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec

Pose = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Position [3] in metres, and orientation [4] as a quaternion x, y, z, w, in the frame of the robot's base."""


@dataclass(frozen=True)
class RobotReading:
    """What a robot's own sensors measure. Its policy's state is computed from this.

    Attributes:
        position, velocity: float64 [J], of the joints in `ServoedRobot.joint_names`; rad and rad/s, or m and m/s.
        tool: the measured pose of the tool. commanded: the pose that it is commanded to have.
    """

    position: NDArray[np.float64]
    velocity: NDArray[np.float64]
    tool: Pose
    commanded: Pose


@dataclass(frozen=True)
class RobotOutcome:
    """How an episode ended, as the simulator judges it.

    Attributes:
        success: its goal held after any control step. failure: why it failed; empty for a success.
        truncated: the time limit ended it.
        steps: control steps. reward: their sum.
    """

    success: bool
    failure: str
    truncated: bool
    steps: int
    reward: float


class ServoedRobot(Protocol):
    """One environment of a simulator, driven like a robot.

    Attributes:
        spec: that of the simulator.
        joint_names: of the J joints.
        servo_s: seconds that a step of the servo takes.
        focal: pixels of each camera's focal length, for its calibration.
    """

    spec: SimulatorSpec
    joint_names: tuple[str, ...]
    servo_s: float
    focal: Mapping[str, float]

    def begin(self, episode: Episode) -> None:
        """Set up an episode: the scene, the robot at its start, at rest.

        Raises:
            UserError: there is no such task, split or initial state.
        """
        ...

    def control_step(self, action: Array) -> None:
        """Make one control step of the simulator with an action, float32 [A]; nothing happens once the episode ended.

        Raises:
            NotFinite: the physics became NaN or infinite.
        """
        ...

    def servo(self, command: Array | None) -> None:
        """Make one step of the servo.

        Time counts for the episode from the first command on, and physics goes on after the episode ended.

        Args:
            command: float64 [A], a speed per second where an action is a displacement, else what an action is; None
                before anybody commands: the robot holds still.

        Raises:
            NotFinite: the physics became NaN or infinite.
        """
        ...

    def brake(self) -> None:
        """Make one step of the servo while the robot stops by itself, whatever was commanded before.

        Called step after step it comes to rest where it is, within a ramp of its own, and stays there. Other entries
        than speeds, such as a gripper's, keep their last command.
        """
        ...

    def read(self) -> RobotReading:
        """Return what its sensors measure now; copies."""
        ...

    def take_pictures(self) -> dict[str, Array]:
        """Return what its cameras see now, uint8 [height, width, 3] by their names."""
        ...

    @property
    def instruction(self) -> str:
        """The present goal in words."""
        ...

    @property
    def outcome(self) -> RobotOutcome | None:
        """How the episode ended; None while it runs."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class Servoed(Protocol):
    """The class of a simulator that can be driven like a robot."""

    Config: type[Any]
    servo: str | None
    """Where its `ServoedRobot` is, as "module:Class"; None or absent: it has none."""
