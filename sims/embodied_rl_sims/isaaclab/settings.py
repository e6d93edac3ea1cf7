"""Settings of the Isaac Lab simulator. This module does not import Isaac Lab."""

from dataclasses import dataclass, field
from typing import Literal

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Code, CodeKeys, Text

TIME_OUT = "time_out"


@dataclass(frozen=True)
class IsaacLabConfig:
    """Settings of an Isaac Lab environment, manager-based or direct."""

    id: Text = "Isaac-Cartpole-Camera-Direct"
    """the registered id, for instance "Isaac-Lift-Franka"."""
    package: Code = "isaaclab_tasks"
    """the module that registers it when it is imported."""
    physics: Text | None = "newton_mjwarp"
    """the preset of the task's physics; Isaac Sim's is "isaacsim_physx". null for the task's own."""
    renderer: Text | None = "newton_renderer"
    """the preset of the cameras' renderer; Isaac Sim's is "isaacsim_rtx". null for the task's own."""
    options: CodeKeys = field(default_factory=dict)
    """fields of its configuration, by their dotted path: {"scene.cartpole.spawn.usd_path": "cartpole.usda"}."""
    shapes: bool = False
    """replace the task's robot, which is on NVIDIA's server, by one of boxes that this package holds: the cart-pole."""
    cameras: tuple[Text, ...] = ()
    """names of the scene's cameras; a policy sees their RGB pictures. Empty if it sees only a state."""
    image_size: int = 64
    """pixels on each side of their pictures."""
    instruction: Text | None = None
    """the instruction; null derives it from the id."""
    horizon: int | None = None
    """control steps after which an episode is truncated; null for the environment's own."""
    success: Text | None = None
    """the termination term, or else the entry of `extras` (a bool per environment), that states whether the goal
    holds; success then ends an episode. "time_out": an episode succeeds that lasts until its time limit. null if
    neither exists."""
    reward: Literal["environment", "success"] = "environment"
    """"environment": its own; "success": 1 on the step that reaches the goal."""
    action_limit: float = 1.0
    """actions are -action_limit … action_limit; Isaac Lab itself sets no limits."""
    state_terms: tuple[Text, ...] | None = None
    """the terms of the observation group "policy" that form the state, those that a robot can measure; null for all
    except pictures."""
    seeded: bool = False
    """whether each episode is begun alone, from its own seed; for tasks that draw random numbers only at the start."""
    device: Text = "auto"
    """device of physics and pictures, "cpu" or "cuda:0"; auto: the GPU if there is one."""

    def __post_init__(self) -> None:
        if ":" in self.id:  # Gymnasium would import the module before the colon
            module, _, name = self.id.rpartition(":")
            raise UserError(
                f"sim.id={self.id}: give the module separately, sim.id={name} sim.package={module}.",
                code="package-in-id",
            )
        for name, value in (("image_size", self.image_size), ("horizon", self.horizon)):
            if value is not None and value < 1:
                raise UserError(f"sim.{name}={value}: it must be at least 1.", code="value-out-of-range")
        if self.action_limit <= 0:
            raise UserError(f"sim.action_limit={self.action_limit}: it must be positive.", code="value-out-of-range")
        if self.success is None and self.reward == "success":
            raise UserError(
                "sim.reward=success needs sim.success, which states when the goal is reached.", code="key-missing"
            )
        if len(set(self.cameras)) != len(self.cameras):
            raise UserError(f"sim.cameras={list(self.cameras)}: a name occurs twice.", code="camera-twice")
