"""Qualities of service that contradict themselves are refused, and who meets whom."""

import itertools
from typing import Any

import pytest

from embodied_rl.deployment.transport.qos import PROFILES, QoS, find_incompatible, offer, request
from embodied_rl.interfaces.errors import UserError


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"reliability": "maybe"}, "reliability='maybe' of a topic is neither"),
        ({"durability": "persistent"}, "durability='persistent' of a topic is neither"),
        ({"depth": 0}, "depth=0 of a topic"),
        ({"lifespan_s": 0.0}, "lifespan_s=0.0 of a topic must be a time above 0"),
        ({"lifespan_s": float("nan")}, "lifespan_s=nan of a topic"),
    ],
)
def test_what_no_topic_can_have_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        QoS(**values)


def test_what_is_requested_must_be_offered() -> None:
    reliability, durability = ("best_effort", "reliable"), ("volatile", "transient_local")
    for offered, requested in itertools.product(itertools.product(reliability, durability), repeat=2):
        enough = all(
            ladder.index(mine) >= ladder.index(wanted)
            for ladder, mine, wanted in zip((reliability, durability), offered, requested, strict=True)
        )
        assert (find_incompatible(QoS(*offered), QoS(*requested)) is None) == enough  # type: ignore[arg-type]


def test_a_state_is_offered_to_everybody_and_asked_of_anybody() -> None:
    for other in (QoS("best_effort"), QoS("reliable")):
        assert find_incompatible(offer("state"), other) is None
        assert find_incompatible(other, request("state")) is None


def test_a_subscription_has_no_lifespan() -> None:
    assert request(QoS(lifespan_s=1.0)) == QoS()
    assert set(PROFILES) == {"sensor_data", "state", "command", "latched", "deadman", "clock"}
