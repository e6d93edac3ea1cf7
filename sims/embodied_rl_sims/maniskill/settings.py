"""Settings and instructions of ManiSkill's tasks. This module imports neither the package nor torch."""

import re
from dataclasses import dataclass
from typing import Literal

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import FilePath, Text
from embodied_rl_sims.maniskill.plate_scenes import SPLITS

REWARDS = ("sparse", "normalized_dense", "dense")
PLATE_CONTROL = "arm_pd_ee_target_delta_pose_align2_gripper_pd_joint_pos"
"""The control mode of the put-on-plate tasks: displacements of the hand's target, in metres and radians."""


@dataclass(frozen=True)
class ManiSkillConfig:
    """Settings of a ManiSkill 3 task."""

    task: Text = "PickCube-v1"
    """the package's id of a task, such as "PickCube-v1", or one of RL4VLA's put-on-plate tasks."""
    backend: Literal["cpu", "gpu"] = "cpu"
    """"cpu" runs single environments in turn, reproducible bit for bit; "gpu" runs all of them in one batch on a CUDA
    device; observations are tensors there, and rollouts store copies on the host."""
    observations: Literal["rgb", "state"] = "rgb"
    """"rgb" gives the cameras' pictures, the package's proprioception as the state and the simulator's truth as the
    privileged state; "state" gives the benchmark's flat state and no picture."""
    control_mode: Text = "pd_ee_delta_pose"
    """how actions move the robot, by the package's name. The default moves the hand by up to 0.1 m and 0.1 rad a step,
    and opens or closes the gripper."""
    robot: Text | None = None
    """the package's id of a robot, such as "panda_wristcam"; null for the task's default."""
    image_size: int = 128
    """pixels on each side of the cameras' pictures; in put-on-plate tasks the height, and the width is 4/3 of it."""
    shader: Literal["minimal", "default"] = "minimal"
    """"minimal" is fast; "default" has smoother light."""
    renderer: Literal["auto", "cpu", "gpu"] = "auto"
    """device that renders. "auto" takes a CUDA device if one exists, else the processor."""
    reward: Literal["sparse", "normalized_dense", "dense"] = "sparse"
    """of each control step. "sparse": 1 in success, -1 in failure; "normalized_dense" and "dense": the task's shaped
    reward, normalised to at most 1 or in its original scale."""
    horizon: int | None = None
    """control steps after which an episode is truncated; null for the benchmark's limit of the task."""
    terminate_on_success: bool = True
    """end an episode when its goal is reached; else run to the horizon. Failure always ends it."""
    reconfiguration_freq: int | None = None
    """1 rebuilds the scene for each episode, 0 never; null for the task's default. More than 1 is refused:
    an episode would depend on the episodes before it."""

    shapes: bool = False
    """replace the meshes, pictures and robot of a put-on-plate task by boxes and colours that this package holds."""
    assets: FilePath = "maniskill_assets"
    """folder of RLinf's assets, for put-on-plate tasks without shapes."""

    @property
    def has_plates(self) -> bool:
        """Return whether the task is one of RL4VLA's put-on-plate tasks."""
        return self.task in SPLITS

    @property
    def picture_size(self) -> tuple[int, int]:
        """Return width and height of the cameras' pictures."""
        return (round(self.image_size * 4 / 3) if self.has_plates else self.image_size), self.image_size

    def __post_init__(self) -> None:
        choices = {
            "backend": ("cpu", "gpu"),
            "observations": ("rgb", "state"),
            "shader": ("minimal", "default"),
            "renderer": ("auto", "cpu", "gpu"),
            "reward": REWARDS,
        }
        for key, known in choices.items():
            if getattr(self, key) not in known:
                raise UserError(
                    f"sim.{key}={getattr(self, key)}: give one of {', '.join(known)}.", code="choice-unknown"
                )
        if self.image_size < 1:
            raise UserError(
                f"sim.image_size={self.image_size}: a picture has at least one pixel.", code="value-out-of-range"
            )
        if self.horizon is not None and self.horizon < 1:
            raise UserError(
                f"sim.horizon={self.horizon}: give at least 1, or null for the benchmark's limit.",
                code="value-out-of-range",
            )
        if self.reconfiguration_freq not in (None, 0, 1):
            raise UserError(
                f"sim.reconfiguration_freq={self.reconfiguration_freq}: give 0, 1 or null; with any other value what "
                "an episode holds would depend on the episodes before it.",
                code="value-out-of-range",
            )
        if self.shapes and not self.has_plates:
            raise UserError(
                f"sim.shapes=true: there are no shapes for {self.task}, only for the put-on-plate tasks, such as "
                "PutOnPlateInScene25Main-v3.",
                code="shapes-missing",
            )
        if self.has_plates and (self.control_mode != PLATE_CONTROL or self.robot is not None):
            raise UserError(
                f"sim.task={self.task} has one robot and one control mode: sim=maniskill_plate, or "
                f"sim.control_mode={PLATE_CONTROL} sim.robot=null.",
                code="keys-contradict",
            )
        if not self.has_plates and self.control_mode == PLATE_CONTROL:
            raise UserError(
                f"sim.task={self.task} is none of the put-on-plate tasks, and {PLATE_CONTROL} is theirs: take "
                "sim=maniskill, or a task such as PutOnPlateInScene25Main-v3.",
                code="keys-contradict",
            )
        if self.backend == "gpu" and (self.reconfiguration_freq == 1 or self.renderer == "cpu"):
            raise UserError(
                "sim.backend=gpu steps one scene of all environments and draws it on the same device: leave out "
                "sim.reconfiguration_freq=1 and sim.renderer=cpu.",
                code="keys-contradict",
            )


_INSTRUCTIONS = {
    "DrawTriangle-v1": "draw the triangle that is shown on the canvas",
    "LiftPegUpright-v1": "lift the peg and stand it upright",
    "PegInsertionSide-v1": "insert the peg into the hole of the box from the side",
    "PickCube-v1": "pick up the red cube and move it to the goal position",
    "PickCubeSO100-v1": "pick up the red cube and move it to the goal position",
    "PickCubeWidowXAI-v1": "pick up the red cube and move it to the goal position",
    "PlaceSphere-v1": "pick up the blue sphere and place it into the bin",
    "PlugCharger-v1": "plug the charger into the receptacle",
    "PokeCube-v1": "poke the cube with the peg",
    "PullCube-v1": "pull the blue cube onto the red and white target",
    "PullCubeTool-v1": "pull the cube closer with the tool",
    "PushCube-v1": "push the blue cube onto the red and white target",
    "PushT-v1": "push the t block onto its outline",
    "RollBall-v1": "roll the ball to the goal region",
    "SO100GraspCube-v1": "grasp the cube and lift it",
    "StackCube-v1": "stack the red cube on the green cube",
    "StackPyramid-v1": "build a pyramid of the three cubes",
}


def make_instruction(task: str) -> str:
    """Return a task's instruction in lower case; derive it from the task's id if the table lacks the task.

    Args:
        task: the package's id, such as "PickCube-v1".
    """
    if task in _INSTRUCTIONS:
        return _INSTRUCTIONS[task]
    name = re.sub(r"^MS-|-v\d+$", "", task)
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
    return " ".join(words).lower()
