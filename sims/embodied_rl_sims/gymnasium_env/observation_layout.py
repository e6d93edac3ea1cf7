"""Convert an environment's spaces to the names and limits of a specification."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
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
        paths: keys that lead to each array of numbers, in the space's order; one empty path if the observation is one.
        names: names of all numbers, array by array: the privileged state.
        chosen: int64 [S], positions of the state's entries in `names`.
    """

    paths: tuple[tuple[str, ...], ...]
    names: tuple[str, ...]
    chosen: Array

    @property
    def state_names(self) -> tuple[str, ...]:
        return tuple(self.names[position] for position in self.chosen)

    def flat(self, observation: Any) -> Array:
        """Return all numbers of an observation, float32 [P]."""
        parts = [np.ravel(reduce(getitem, path, observation)) for path in self.paths]
        return np.concatenate([np.zeros(0, np.float32), *parts]).astype(np.float32)


def make_observation_layout(config: GymnasiumConfig, space: Any) -> ObservationLayout:
    """Determine the layout of the observations of `space` (a `gymnasium.spaces.Space`).

    A dict within a dict is flattened: its entries are called "outer.inner". Entries that are not
    numeric are omitted unless they are chosen.

    Raises:
        UserError: `sim.state_keys` or `sim.state_entries` do not fit this space, or choose a non-numeric entry.
    """
    leaves = {".".join(path): (path, leaf) for path, leaf in _leaves(space)}
    chosen = _keys(config, list(leaves))
    for key in chosen:
        if not _is_numbers(space := leaves[key][1]):
            raise UserError(
                f"sim.id={config.id}: its observation{f' {key!r}' if key else ''} is {space}, which is no list of "
                "numbers. Arrays of one or two dimensions, and dicts of them, can make a state; pictures are drawn by "
                "`render`. " + ("Choose others: sim.state_keys=[…]" if key else "sim.state_keys=[] leaves it out."),
                code="observation-space-unsupported",
            )
    leaves = {key: (path, leaf) for key, (path, leaf) in leaves.items() if _is_numbers(leaf)}
    names, place = [], {}
    for key, (_, leaf) in leaves.items():
        count = int(np.prod(leaf.shape))
        place[key] = np.arange(len(names), len(names) + count)
        names += fetch.name_entries(config.id, key, count) or [f"{key or 'state'}_{number}" for number in range(count)]
    positions = np.concatenate([np.zeros(0, np.int64), *(place[key] for key in chosen)])
    entries = config.state_entries
    if entries is None and config.observations == "rgb" and config.state_keys is None:
        entries = fetch.find_robot_entries(config.id, len(positions))
    if entries is not None:
        if max(entries, default=0) >= len(positions):
            raise UserError(
                f"sim.state_entries={list(entries)}: the state of {config.id} has {len(positions)} numbers.",
                code="observation-entry-unknown",
            )
        positions = positions[np.array(entries, np.int64)]
    return ObservationLayout(tuple(path for path, _ in leaves.values()), tuple(names), positions)


def find_action_limits(config: GymnasiumConfig, space: Any) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the lowest and the highest action of `space` (a `gymnasium.spaces.Space`), each of length A.

    Raises:
        UserError: actions are not continuous, or not bounded.
    """
    if type(space).__name__ != "Box" or np.dtype(space.dtype).kind != "f":
        raise UserError(
            f"sim.id={config.id}: its actions are {space}. Policies here choose continuous ones, a Box of floats. "
            "Look for a continuous variant; LunarLander-v3, for instance, takes sim.options={continuous: true}.",
            code="action-space-unsupported",
        )
    low, high = (np.ravel(limit).astype(np.float32) for limit in (space.low, space.high))
    if not (np.isfinite(low) & np.isfinite(high)).all():
        raise UserError(
            f"sim.id={config.id}: its actions have no limits ({space}). Register a variant of it that is wrapped in "
            "gymnasium.wrappers.RescaleAction or TransformAction, and name it in sim.id.",
            code="action-space-unsupported",
        )
    return tuple(low.tolist()), tuple(high.tolist())


def _leaves(space: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the spaces that are not dicts, with the keys that lead to them."""
    parts = getattr(space, "spaces", None)
    if not isinstance(parts, Mapping):
        yield path, space
        return
    for key, part in parts.items():
        yield from _leaves(part, (*path, key))


def _is_numbers(space: Any) -> bool:
    shape = getattr(space, "shape", None)
    return bool(shape) and len(shape) <= 2 and np.dtype(space.dtype).kind in "fiub"


def _keys(config: GymnasiumConfig, known: Sequence[str]) -> list[str]:
    """Return the names of the arrays that form the state."""
    if config.state_keys is None:
        alone = config.observations == "rgb" and "observation" in known
        return ["observation"] if alone else [key for key in known if key.partition(".")[0] != _ACHIEVED]
    found = {
        asked: [key for key in known if key == asked or key.startswith(f"{asked}.")] for asked in config.state_keys
    }
    if unknown := [asked for asked, keys in found.items() if not keys or asked == ""]:
        has = "none: its observation is one array" if list(known) == [""] else ", ".join(known)
        raise UserError(
            f"sim.state_keys={unknown}: the observation of {config.id} has {has}.", code="observation-entry-unknown"
        )
    chosen = [key for keys in found.values() for key in keys]
    if twice := [key for key in dict.fromkeys(chosen) if chosen.count(key) > 1]:
        raise UserError(
            f"sim.state_keys={list(config.state_keys)}: {', '.join(twice)} would occur twice.",
            code="observation-entry-twice",
        )
    return chosen
