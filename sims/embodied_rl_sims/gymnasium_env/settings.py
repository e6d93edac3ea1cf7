"""Settings of the Gymnasium simulator. This module does not import Gymnasium."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Code, CodeKeys, Text

SUCCESS = {"AdroitHand": "success", "FrankaKitchen": "tasks_to_complete"}
"""Start of an environment's id → the entry of `info` for `success="auto"`; others have `is_success`."""
_OURS = {"render_mode": "sim.observations", "width": "sim.image_size", "height": "sim.image_size"}


@dataclass(frozen=True)
class GymnasiumConfig:
    """Settings of a Gymnasium environment."""

    id: Text = "FetchPickAndPlace-v4"
    """the registered id, for instance "FetchPickAndPlace-v4" or "HalfCheetah-v5"."""
    package: Code | None = "gymnasium_robotics"
    """the module that registers it when it is imported; null for those of Gymnasium itself."""
    options: CodeKeys = field(default_factory=dict)
    """keyword arguments of the environment for `gymnasium.make`, for instance {reward_type: dense}."""
    observations: Literal["rgb", "state"] = "rgb"
    """"rgb": one picture, and a state; "state": no picture."""
    image_size: int = 64
    """pixels on each side of the picture. Environments that take `width` and `height` draw in that size; the picture of
    any other is averaged down to it."""
    camera: Text = "front"
    """name of the picture. The environment determines the camera's pose; see `options`."""
    instruction: Text | None = None
    """the instruction; null derives it from the id."""
    horizon: int | None = None
    """control steps after which an episode is truncated; null for the registered `max_episode_steps`."""
    control_hz: float | None = None
    """control steps per simulated second; null for 1 / `env.dt`, or the environment's `render_fps`."""
    success: Text | None = "auto"
    """the entry of `info` that states whether the goal holds; null if it does not exist. "auto" takes that of the
    environments of gymnasium-robotics: `is_success`; of Adroit's `success`; of FrankaKitchen an empty
    `tasks_to_complete`."""
    terminate_on_success: bool = True
    """end an episode when its goal is reached; else run on to the horizon."""
    reward: Literal["environment", "success"] = "environment"
    """"environment": its own; "success": 1 on the first step on which the goal holds."""
    state_keys: tuple[Text, ...] | None = None
    """which entries of a dict observation form the state; null for all but `achieved_goal` when observations=state, and
    for `observation` alone when observations=rgb. An entry of a dict within is called "desired_goal.microwave";
    "desired_goal" takes all of it; [] takes none, for a policy that sees the picture alone."""
    state_entries: tuple[int, ...] | None = None
    """which numbers of that state a policy sees, for instance [0, 1, 2]; null for all of them, or, where a Fetch
    environment is seen by pictures, for those that its robot can measure."""

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
        if self.control_hz is not None and self.control_hz <= 0:
            raise UserError(f"sim.control_hz={self.control_hz}: it must be positive.", code="value-out-of-range")
        if self.success is None and self.reward == "success":
            raise UserError(
                "sim.reward=success needs sim.success, the entry of `info` that states success.", code="key-missing"
            )
        for name, key in _OURS.items():
            if name in self.options:
                raise UserError(f"sim.options.{name}: set {key} instead.", code="option-invalid")
        entries = self.state_entries or ()
        if len(set(entries)) != len(entries) or min(entries, default=0) < 0:
            raise UserError(
                f"sim.state_entries={list(entries)}: they count from 0, and none can occur twice.",
                code="observation-entry-twice",
            )


def read_success(config: GymnasiumConfig, info: Mapping[str, Any]) -> bool:
    """Return whether the goal holds, by the entry of `info` that `config.success` names.

    Raises:
        UserError: `info` has no such entry.
    """
    key = config.success
    if key == "auto":
        key = next((entry for start, entry in SUCCESS.items() if config.id.startswith(start)), "is_success")
    if key is None:
        return False
    if key not in info:
        known = ", ".join(map(str, info)) or "nothing"
        raise UserError(
            f"sim.success={key}: the `info` of {config.id} has {known}. Name the entry that states success, "
            "or set sim.success=null.",
            code="success-entry-unknown",
        )
    return not info[key] if key == "tasks_to_complete" else bool(np.all(info[key]))
