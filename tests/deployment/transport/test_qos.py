"""Validation and matching of QoS."""

import itertools
from typing import Any

import pytest

from embodied_rl.deployment.transport.qos import PROFILES, QoS, find_incompatible, offer, request
from tests.support.refusals import refuses


@pytest.mark.parametrize(
    ("values", "data"),
    [
        ({"reliability": "maybe"}, "reliability='maybe'"),
        ({"durability": "persistent"}, "durability='persistent'"),
        ({"depth": 0}, "depth=0"),
        ({"lifespan_s": 0.0}, "lifespan_s=0.0"),
        ({"lifespan_s": float("nan")}, "lifespan_s=nan"),
    ],
)
def test_invalid_values_are_refused(values: dict[str, Any], data: str) -> None:
    with refuses("qos-invalid", data):
        QoS(**values)


def test_requested_policies_must_be_offered() -> None:
    reliability, durability = ("best_effort", "reliable"), ("volatile", "transient_local")
    for offered, requested in itertools.product(itertools.product(reliability, durability), repeat=2):
        enough = all(
            ladder.index(mine) >= ladder.index(wanted)
            for ladder, mine, wanted in zip((reliability, durability), offered, requested, strict=True)
        )
        assert (find_incompatible(QoS(*offered), QoS(*requested)) is None) == enough  # type: ignore[arg-type]


def test_state_matches_both_reliabilities() -> None:
    for other in (QoS("best_effort"), QoS("reliable")):
        assert find_incompatible(offer("state"), other) is None
        assert find_incompatible(other, request("state")) is None


def test_profiles_match_themselves_and_a_subscription_has_no_lifespan() -> None:
    assert not [name for name in PROFILES if find_incompatible(offer(name), request(name))]
    assert request(QoS(lifespan_s=1.0)) == QoS()
    assert set(PROFILES) == {"sensor_data", "state", "command", "latched", "deadman", "clock"}
