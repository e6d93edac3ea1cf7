"""The interface of a simulator that is driven like a real robot. Imports NumPy and the standard library only.

A simulator's class names with `servo = "module:Class"` a `ServoedRobot`, which is built with the simulator's `Config`.
It is driven in one of two ways. In lockstep, `control_step` makes exactly one control step of the simulator, with the
same states, pictures and outcomes to the bit. In real time, `servo` makes one step of the robot's servo; a control step
has many of them.

Shapes: `A` action entries, `J` joints.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec

Pose = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Position [3] in metres, and orientation [4] as a quaternion x, y, z, w, in the frame of the robot's base."""


@dataclass(frozen=True)
class RobotReading:
    """Measurements of a robot's sensors, from which the policy's state is computed.

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
    """The outcome of an episode, as judged by the simulator.

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
            UserError: unknown task, split or initial state.
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
                before the first command: the robot holds still.

        Raises:
            NotFinite: the physics became NaN or infinite.
        """
        ...

    def brake(self) -> None:
        """Make one step of the servo while the robot brakes, independently of the last command.

        Repeated calls bring it to rest along a ramp, and keep it there. Other entries than speeds, such as a gripper's,
        keep their last command.
        """
        ...

    def read(self) -> RobotReading:
        """Return copies of the sensors' present measurements."""
        ...

    def take_pictures(self) -> dict[str, Array]:
        """Return camera → its present image, uint8 [height, width, 3]."""
        ...

    @property
    def instruction(self) -> str:
        """The present goal as text."""
        ...

    @property
    def outcome(self) -> RobotOutcome | None:
        """How the episode ended; None while it runs."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...
