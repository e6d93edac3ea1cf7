"""Fixtures of transports: a reserved domain, and pairs of nodes in it."""

from collections.abc import Iterator

import pytest

from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.messages import Messages
from tests.support.rclpy_stand_in import install
from tests.support.transports import STAND_IN, Pair, borrow_environment, list_kinds, open_pair


@pytest.fixture(scope="session")
def environment() -> Iterator[RosEnvironment]:
    with borrow_environment() as environment:
        yield environment


@pytest.fixture(params=list_kinds())
def pair(
    request: pytest.FixtureRequest, environment: RosEnvironment, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pair]:
    monkeypatch.setenv("ROS_DOMAIN_ID", str(environment.domain))  # rclpy reads it
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    if request.param == STAND_IN:
        install(monkeypatch)
    with open_pair(request.param, environment) as pair:
        yield pair


@pytest.fixture(scope="session")
def messages() -> Messages:
    return Messages("jazzy")
