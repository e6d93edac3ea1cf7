"""What a server says of itself when a client connects, and what a client is made with: what cannot be is refused."""

from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.wire import pack
from embodied_rl.interfaces.errors import UserError
from tests.support.faulty_policy_server import METADATA, faulty_server, reply
from tests.support.policy_serving import DEADLINE, make_observation

OURS = make_observation()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"horizon": np.inf}, "incomplete: OverflowError"),
        ({"protocol_version": True}, "uses version True"),
        ({"protocol_version": np.ones(2)}, "uses version array"),
        ({"rows": 0}, "sent rows=0, which is not a valid limit"),
        ({"rows": None}, "sent rows=None"),
        ({"message_bytes": "many"}, "sent message_bytes='many'"),
    ],
)
def test_metadata_that_cannot_be_are_refused(said: dict[str, Any], shown: str) -> None:
    with (
        faulty_server(lambda *_: None, greeting=pack({**METADATA, **said})) as url,
        pytest.raises(UserError, match=shown),
    ):
        PolicyClient(url)


def test_metadata_of_others_mean_nothing() -> None:
    odd = {"protocol": np.zeros(2), "message_bytes": "many", "rows": -1}
    with faulty_server(lambda number, asked: reply(asked), pack(odd)) as url, PolicyClient(url) as client:
        assert client.act(OURS).shape == (3, 2)


def test_who_greets_wrongly_is_asked_nothing() -> None:
    with faulty_server(lambda number, asked: reply(asked)) as url:
        client = PolicyClient(url)
    with faulty_server(
        lambda number, asked: reply(asked), pack({**METADATA, "cameras": 3}), int(url.rpartition(":")[2])
    ):
        for _ in range(2):
            with pytest.raises(UserError, match="incomplete"):
                client.act(OURS, deadline=DEADLINE)
    client.close()


@pytest.mark.parametrize("token", ["sixteen-characters\n", "sixteen-characters\r\nX: y", "zwölf Zeichen und mehr"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(UserError, match="such as the end of a line") as caught:
        PolicyClient("ws://127.0.0.1:1", token=token)
    assert token[:5] not in str(caught.value)


@pytest.mark.parametrize("deadline", [float("nan"), float("inf"), 1e12, 0.0])
def test_a_deadline_that_cannot_be_is_refused(deadline: float) -> None:
    with pytest.raises(UserError, match="must be positive, and at most 86400"):
        PolicyClient("ws://127.0.0.1:1", deadline=deadline)
    with (
        faulty_server(lambda number, asked: reply(asked)) as url,
        PolicyClient(url) as client,
        pytest.raises(UserError, match="must be positive, and at most 86400"),
    ):
        client.act(OURS, deadline=deadline)
