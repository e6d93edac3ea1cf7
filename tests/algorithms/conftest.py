"""What every test of the algorithms needs."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `experience`


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Sums in a fixed order."""
    torch.set_num_threads(1)
