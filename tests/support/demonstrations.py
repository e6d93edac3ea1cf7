"""Episodes' files as `collect` writes them, of numbers that a test gives."""

from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.datasets.record import ABOUT
from embodied_rl.interfaces.description import SI
from embodied_rl.interfaces.robot import Body
from embodied_rl.interfaces.sim import Array


def make_body(states: int, actions: int, control_hz: float = 12.5) -> Body:
    """A robot of so many entries: s0, s1 …, a0, a1 …"""
    names = tuple(f"s{n}" for n in range(states)), tuple(f"a{n}" for n in range(actions))
    return Body({}, *names, (-1.0,) * actions, (1.0,) * actions, control_hz)


def describe_episode(body: Body, **changes: Any) -> dict[str, Array]:
    """Whose episode it is; None takes an entry away."""
    said = {name: SI if name == "state_units" else getattr(body, name) for name in ABOUT} | changes
    return {name: np.array(value) for name, value in said.items() if value is not None}


def write_episode(path: Path, body: Body, actions: Array, state: Array, **changes: Any) -> Path:
    """Write actions [T, A] and state [T, S]."""
    np.savez(path, allow_pickle=False, actions=actions, state=state, **describe_episode(body, **changes))
    return path
