"""What every test of learning from demonstrations needs."""

import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Sums in a fixed order."""
    torch.set_num_threads(1)
