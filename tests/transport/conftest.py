"""What tests of transports share: a domain of this process's own, and pairs of nodes in it."""

from collections.abc import Iterator

import pytest

from embodied_rl.transport.environment import RosEnvironment
from embodied_rl.transport.messages import Messages
from tests.support.transports import Pair, borrow_environment, list_kinds, open_pair


@pytest.fixture(scope="session")
def environment() -> Iterator[RosEnvironment]:
    with borrow_environment() as environment:
        yield environment


@pytest.fixture(params=list_kinds())
def pair(request: pytest.FixtureRequest, environment: RosEnvironment) -> Iterator[Pair]:
    with open_pair(request.param, environment) as pair:
        yield pair


@pytest.fixture(scope="session")
def messages() -> Messages:
    return Messages("jazzy")
