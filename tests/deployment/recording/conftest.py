"""Fixtures of recordings."""

import pytest

from embodied_rl.deployment.transport.messages import Messages


@pytest.fixture(scope="session")
def messages() -> Messages:
    return Messages("jazzy")
