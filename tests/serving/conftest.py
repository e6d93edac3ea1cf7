"""Servers that the tests of a file share."""

from collections.abc import Iterator

import pytest

from tests.support.serving import Running, ToldModel, make_critic, running


@pytest.fixture(scope="module")
def critic() -> Iterator[Running]:
    """An embedded critic behind a server."""
    with running(make_critic()) as server:
        yield server


@pytest.fixture(scope="module")
def told() -> Iterator[Running]:
    """A model that repeats its prompt."""
    with running(ToldModel()) as server:
        yield server
