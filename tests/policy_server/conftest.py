"""A policy server of a test's own."""

from collections.abc import Iterator

import pytest

from tests.support.policy_serving import RunningPolicy, running_policy


@pytest.fixture
def running() -> Iterator[RunningPolicy]:
    """It answers as `FakePolicy` does, on this machine alone, without a token."""
    with running_policy() as server:
        yield server
