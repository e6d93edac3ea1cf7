"""The configuration of the command `robot`: a simulated robot, and what is wrong with it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from embodied_rl.config.freeze import at_least
from embodied_rl.config.schema.nodes import SimNode
from embodied_rl.interfaces.trust import FilePath, Text, Trust


@dataclass(frozen=True)
class FaultsNode:
    """What is wrong with a simulated robot; also a message on /simulation/faults, as JSON of these keys."""

    states: Literal[
        "none", "frozen", "nan", "dropped", "duplicated", "delayed", "reordered", "other_order", "missing_joint"
    ] = "none"
    """Of joint states and poses. frozen: the same values with new stamps; nan: no numbers; reordered: each two change
    places; other_order: the joints' names and values begin with the last; missing_joint: the last one is not there."""
    cameras: Literal["none", "frozen", "frozen_stamps", "dead", "delayed"] = "none"
    """Of pictures. frozen: the same picture with new stamps; frozen_stamps: with its old stamp, too; dead: none
    come."""
    share: float = at_least(0.0, 1.0, at_most=1.0)
    """Of the messages that nan, dropped and duplicated befall, drawn from `seed`."""
    delay: float = at_least(0.0, 0.2, at_most=60.0)
    """Seconds by which delayed messages come late; their stamps are right."""
    clock_jump: float = at_least(-1e6, 0.0, at_most=1e6)
    """Seconds by which all stamps and /clock are wrong from now on."""
    command_delay: float = at_least(0.0, 0.0, at_most=60.0)
    """Seconds until a command takes effect; in real time alone."""
    restart: float = at_least(0.0, 0.0, at_most=60.0)
    """Above 0: the robot's node leaves all topics now, and comes back after so many seconds with no command and no
    episode's end."""
    seed: int = at_least(0, 0)
    """Of what befalls which message."""


@dataclass(frozen=True)
class RobotConfig:
    sim: SimNode
    """Who simulates it."""
    robot: FilePath = "tabletop"
    """Its description: a name of `configs/robot`, or the path of a YAML file."""
    transport: Literal["dds", "rclpy"] = "dds"
    """dds needs no ROS 2; rclpy uses the one that is installed."""
    lockstep: bool = False
    """Time stands still until a command comes, which makes exactly one control step of the simulator."""
    task: Text | None = None
    """Of the episode that is there when it starts, or its family; null takes the first. /simulation/reset asks for
    others."""
    seed: int = at_least(0, 0)
    """Of that episode."""
    split: Text = "train"
    """Conditions of that episode."""
    episodes: int | None = at_least(1, None)
    """End after so many episodes; null: at a signal."""
    timeout: float | None = at_least(0.008, None)
    """Seconds without a command after which the robot stops by itself; null takes its description's
    command.timeout_s."""
    deadline: float = at_least(0.1, 60.0)
    """In lockstep: seconds until an episode that gets no command is given up."""
    faults: FaultsNode = field(default_factory=FaultsNode)
    """What is wrong with it from the start."""
    film: Annotated[Path, Trust.PATH] | None = None
    """Write a film of the episodes that ended, as their first camera saw them, to this .mp4 file."""
