"""Where tests find the Python environments of simulators."""

from pathlib import Path

import pytest

from embodied_rl.runtime.simulators import python_environments
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode


def python_of(name: str) -> Path:
    """The interpreter of a simulator's environment; skips where `embodied-rl sim install` has not made it."""
    found = python_environments.find_installed(name)
    if found is None:
        pytest.skip(f"no environment for {name}: embodied-rl sim install {name}")
    return found


def kind_of(name: str, **options: object) -> SimulatorKind:
    """A simulator as `sim=<name> sim.<key>=…` configures it, in its own environment."""
    python_of(name)
    return SimulatorKind.find(SimNode(name, options=options))
