"""What tests of collection share."""

import pytest

from embodied_rl.runtime.handle import Handle


@pytest.fixture
def closing():
    """Closes handles that a test made."""
    opened: list[Handle] = []
    yield lambda handles: opened.extend(handles) or handles
    for handle in opened:
        handle.close()
