"""Settings and specification of the tabletop. This module does not import MuJoCo."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec
from embodied_rl_sims.tabletop.layout import FAMILIES, SPLITS, TASKS, WORDS

TIMESTEP, SUBSTEPS = 0.008, 10  # seconds; 12.5 control steps a second
MOVE = 0.03  # metres a control step on each axis
WORKSPACE_LOW, WORKSPACE_HIGH = np.array([0.28, -0.28, 0.02]), np.array([0.68, 0.28, 0.25])
MOST_GOALS = 3  # of an episode: a scene has three objects and two fixtures
LAG = 0.05  # metres that the commanded point may run ahead of the tool


@dataclass(frozen=True)
class TabletopConfig:
    """Settings of the tabletop."""

    horizon: int = 50
    """control steps after which an episode is truncated."""
    image_size: int = 64
    """pixels on each side of the camera's picture."""
    renderer: Literal["raycast", "egl"] = "raycast"
    """renderer of videos. "raycast" needs no OpenGL and is bit-reproducible; "egl" uses OpenGL."""
    randomise: bool = True
    """vary colours and light within the training range."""
    terminate_on_success: bool = True
    """end an episode when its goal is reached; else run to the horizon."""
    inference_delay: tuple[int, int] = (0, 0)
    """(min, max) control steps that the arm holds still before each chunk, drawn once per episode."""
    state_noise: float = 0.0
    """standard deviation added to the state, in metres."""
    image_noise: float = 0.0
    """standard deviation added to pixels, in 0…255."""
    progress: bool = False
    """report the progress of each task, for experiments with rewards."""
    goals: int = 1
    """goals of an episode, 1 … 3, given in sequence; only the last one is rewarded. Increase sim.horizon as well."""

    def __post_init__(self) -> None:
        least, most = self.inference_delay
        if min(self.horizon, self.image_size) < 1 or min(self.state_noise, self.image_noise) < 0:
            raise UserError(
                "sim.horizon and sim.image_size must be at least 1, sim.state_noise and image_noise 0.",
                code="value-out-of-range",
            )
        if not 0 <= least <= most:
            raise UserError(
                f"sim.inference_delay=[{least},{most}]: it is (least, most), both at least 0.",
                code="value-out-of-range",
            )
        if not 1 <= self.goals <= MOST_GOALS:
            raise UserError(
                f"sim.goals={self.goals}: an episode has 1 … {MOST_GOALS} goals, one after the other.",
                code="value-out-of-range",
            )


def spec_of(config: TabletopConfig) -> SimulatorSpec:
    """Return the tabletop's specification, without building it."""
    others = [f"other{i}_{axis}" for i in range(2) for axis in "xy"]
    return SimulatorSpec(
        cameras=(Camera("front", config.image_size, config.image_size),),
        state_names=("tool_x", "tool_y", "tool_z", "gripper_width", "command_x", "command_y", "command_z"),
        action_names=("move_x", "move_y", "move_z", "gripper"),
        action_low=(-MOVE, -MOVE, -MOVE, -1.0),
        action_high=(MOVE, MOVE, MOVE, 1.0),
        control_hz=1 / (SUBSTEPS * TIMESTEP),
        horizon=config.horizon,
        tasks=TASKS,
        words=WORDS,
        splits=SPLITS,
        privileged_names=(
            "tool_x", "tool_y", "tool_z", "gripper_width", "target_x", "target_y", "target_z",
            "to_target_x", "to_target_y", "to_target_z", "goal_x", "goal_y", "to_goal_x", "to_goal_y",
            *others, *(f"is_{family}" for family in FAMILIES), "clock", *(("goals_done",) if config.goals > 1 else ()),
        ),
        can_snapshot=True, can_replay=True, reports_progress=config.progress, hold=(0.0, 0.0, 0.0, 1.0),
        kept_while_holding=("gripper",),
    )  # fmt: skip
