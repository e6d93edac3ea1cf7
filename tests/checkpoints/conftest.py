"""A small robot, actors on a small pocket network, and a checkpoint of another project."""

from pathlib import Path

import pytest

from tests.support.pocket_actors import embodiment, keys, make_actor, observe, simulator_spec

__all__ = ["embodiment", "folder", "keys", "make_actor", "observe", "simulator_spec"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder of lerobot's π0."""
    from tests.support.building_checkpoints import lerobot  # needs tokenizers

    return lerobot(tmp_path / "folder", "pi0")
