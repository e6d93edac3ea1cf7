"""Convert an environment's spaces to the names and limits of a specification."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.gymnasium_env import fetch
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig

_ACHIEVED = "achieved_goal"


@dataclass(frozen=True)
class ObservationLayout:
    """The meaning of the numbers of an observation.

    Attributes:
        keys: the entries of a dict observation, in the space's order; empty if the observation is one array.
        names: names of all numbers, key by key: the privileged state.
        chosen: int64 [S], positions of the state's entries in `names`.
    """

    keys: tuple[str, ...]
    names: tuple[str, ...]
    chosen: Array

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(self.names[position] for position in self.chosen)

    def flat(self, observation: Any) -> Array:
        """Return all numbers of an observation, float32 [P]."""
        parts = [observation[key] for key in self.keys] if self.keys else [observation]
        return np.concatenate([np.ravel(part) for part in parts]).astype(np.float32)


def lay_out_observation(config: GymnasiumConfig, space: Any) -> ObservationLayout:
    """Determine the layout of the observations of `space` (a `gymnasium.spaces.Space`).

    Raises:
        UserError: `sim.state_keys` or `sim.state_entries` do not fit this space, or it holds no numbers.
    """
    keys: tuple[str, ...] = tuple(getattr(space, "spaces", ()))
    shapes = {key: _shape(config, space[key], key) for key in keys} if keys else {"": _shape(config, space, "")}
    names, place = [], {}
    for key, shape in shapes.items():
        count = int(np.prod(shape))
        place[key] = np.arange(len(names), len(names) + count)
        names += fetch.name_entries(config.id, key, count) or [f"{key or 'state'}_{number}" for number in range(count)]
    return ObservationLayout(
        keys, tuple(names), _entries(config, np.concatenate([place[key] for key in _keys(config, shapes)]))
    )


def find_action_limits(config: GymnasiumConfig, space: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lowest and the highest action of `space` (a `gymnasium.spaces.Space`), each of length A.

    Raises:
        UserError: actions are not continuous, or not bounded.
    """
    if type(space).__name__ != "Box" or np.dtype(space.dtype).kind != "f":
        raise UserError(
            f"sim.id={config.id}: its actions are {space}. Policies here choose continuous ones, a Box of floats. "
            "Look for a continuous variant; LunarLander-v3, for instance, takes sim.options={continuous: true}."
        )
    low, high = (np.ravel(limit).astype(np.float32) for limit in (space.low, space.high))
    if not (np.isfinite(low) & np.isfinite(high)).all():
        raise UserError(
            f"sim.id={config.id}: its actions have no limits ({space}). Register a variant of it that is wrapped in "
            "gymnasium.wrappers.RescaleAction or TransformAction, and name it in sim.id."
        )
    return tuple(low.tolist()), tuple(high.tolist())


def _shape(config: GymnasiumConfig, space: Any, key: str) -> tuple[int, ...]:
    shape = getattr(space, "shape", None)
    if not shape or len(shape) > 2 or np.dtype(space.dtype).kind not in "fiub":
        raise UserError(
            f"sim.id={config.id}: its observation{f' {key!r}' if key else ''} is {space}, which is no list of numbers. "
            "Arrays of one or two dimensions, and dicts of them, can make a state; pictures are drawn by `render`."
        )
    return shape


def _keys(config: GymnasiumConfig, shapes: dict[str, Any]) -> Sequence[str]:
    if config.state_keys is None:
        alone = config.observations == "rgb" and "observation" in shapes
        return ["observation"] if alone else [key for key in shapes if key != _ACHIEVED]
    if unknown := [key for key in config.state_keys if key not in shapes]:
        known = ", ".join(shapes) if "" not in shapes else "none: its observation is one array"
        raise UserError(f"sim.state_keys={unknown}: the observation of {config.id} has {known}.")
    return config.state_keys


def _entries(config: GymnasiumConfig, positions: Array) -> Array:
    entries = config.state_entries
    if entries is None and config.observations == "rgb" and config.state_keys is None:
        entries = fetch.find_robot_entries(config.id, len(positions))
    if entries is None:
        return positions
    if max(entries, default=0) >= len(positions):
        raise UserError(f"sim.state_entries={list(entries)}: the state of {config.id} has {len(positions)} numbers.")
    return positions[np.array(entries, np.int64)]
