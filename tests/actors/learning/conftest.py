"""A folder of checkpoints."""

from pathlib import Path

import pytest

from embodied_rl.actors.learning import checkpoint
from tests.support.stepped_tensors import tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Checkpoints 10 and 20."""
    for step in (10, 20):
        checkpoint.save_checkpoint(tmp_path, step, tensors(step), {"iteration": step})
    return tmp_path
