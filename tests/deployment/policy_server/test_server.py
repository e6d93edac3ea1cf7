"""A policy behind a websocket: who may ask, what is answered, and that nobody disturbs the others."""

import socket
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import httpx2
import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from embodied_rl.deployment.policy_server.client import PolicyClient
from embodied_rl.deployment.policy_server.names import WireNames
from embodied_rl.deployment.policy_server.served import ServedWeights
from embodied_rl.deployment.policy_server.wire import pack, unpack
from embodied_rl.interfaces.errors import UserError
from tests.support.policy_serving import (
    DEADLINE,
    SPEC,
    RefusingPolicy,
    RunningPolicy,
    ToldPolicy,
    make_observation,
    running_policy,
)
from tests.support.recorded_messages import OPENPI


@pytest.fixture
def running() -> Iterator[RunningPolicy]:
    with running_policy() as server:
        yield server


def open_raw(url: str, **options: Any) -> ClientConnection:
    """A connection without our client; its first message, the metadata, is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # as openpi's client connects
        connection = connect(url, max_size=None, proxy=None, **options)
        unpack(connection.recv(DEADLINE))
    return connection


def ask(connection: ClientConnection, message: Any) -> Any:
    """The answer: a map, or the text of an error."""
    connection.send(message if isinstance(message, bytes | str) else pack(message))
    answer = connection.recv(DEADLINE)
    return answer if isinstance(answer, str) else unpack(answer)


def expect(given: dict[str, Any], policy: ToldPolicy | None = None, **keys: Any) -> Any:
    from embodied_rl.interfaces.given_observation import read_observation

    seen, single = read_observation(given, SPEC)
    actions = (policy or ToldPolicy()).infer(seen, **keys)
    return actions[0] if single else actions


def test_metadata_say_what_the_policy_expects(running: RunningPolicy) -> None:
    with connect(running.url, proxy=None) as connection:
        said = unpack(connection.recv(DEADLINE))
    assert said["cameras"] == {"front": [4, 5], "wrist": [4, 5]} and said["state_names"] == ["x", "y", "grip"]
    assert said["state_units"] == "SI" and said["action_high"] == [1.0, 1.0] and said["control_hz"] == 10.0
    assert said["normalisation"] == "0" * 64 and said["version"] == 7 and said["prefix_trained_to"] == 2
    assert (said["protocol"], said["protocol_version"], said["policy"]) == ("embodied-rl", 1, "told")
    assert said["observation_keys"] == ["images/front", "images/wrist", "state", "prompt"]


def test_an_observation_is_answered_as_openpi_does(running: RunningPolicy) -> None:
    with open_raw(running.url) as connection:
        first, second = (ask(connection, make_observation()) for _ in range(2))
    assert first["actions"].dtype == np.float32 and (first["actions"] == expect(make_observation())).all()
    assert first["version"] == 7 and first["server_timing"]["infer_ms"] >= 0 and "infer_ms" in first["policy_timing"]
    assert second["server_timing"]["prev_total_ms"] >= second["server_timing"].get("infer_ms") * 0
    assert not first.keys() & {"seq", "epoch"}, "nothing is echoed that was not sent"


def test_what_is_sent_beside_the_observation_is_used(running: RunningPolicy) -> None:
    prefix = np.full((2, 2), 0.25, np.float32)
    given = make_observation()
    with open_raw(running.url) as connection:
        echoed = ask(connection, given | {"seq": 5, "epoch": 3, "protocol_version": 1})
        drawn = ask(connection, given | {"seed": 4, "episode": 2, "decision": 1})
        whole = ask(connection, given | {"prefix": prefix})
        half = ask(connection, given | {"prefix": prefix, "committed": 1})
        longer = ask(connection, given | {"whole": True})
    assert (echoed["seq"], echoed["epoch"]) == (5, 3)
    assert not (drawn["actions"] == echoed["actions"]).all()
    assert (whole["actions"][:2] == prefix).all() and (whole["actions"][2] == echoed["actions"][2]).all()
    assert longer["actions"].shape == (4, 2) and (longer["actions"][:3] == echoed["actions"]).all()
    assert (half["actions"][:1] == prefix[:1]).all() and (half["actions"][1:] == echoed["actions"][1:]).all()


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (b"\xc1", "no msgpack"),
        ("hello", "binary frame"),
        (pack([1]), "A request is a map"),
        (pack({}), "lacks 'images/front'"),
        (bytes.fromhex(OPENPI["observation"]), "lacks 'images/wrist'"),
        (pack(make_observation() | {"observation/state": 1}), "'observation/state', which the policy does not take"),
        (pack(make_observation() | {"prompt": "fly"}), "does not know the word 'fly'"),
        (pack(make_observation() | {"seq": -1}), "seq is a whole number"),
        (pack(make_observation() | {"seq": 1.5}), "seq is a whole number"),
        (pack(make_observation() | {"decision": 1}), "keys of the noise, beside a seed"),
        (pack(make_observation() | {"seed": 1, "episode": [1, 2]}), "one for each of 1 rows"),
        (pack(make_observation() | {"committed": 1}), "send the prefix, too"),
        (pack(make_observation() | {"prefix": np.zeros((5, 2), np.float32)}), "[at most 4, 2] fits"),
        (pack(make_observation() | {"prefix": np.zeros((1, 3), np.float32)}), "fits"),
        (pack(make_observation() | {"prefix": np.zeros((1, 2), np.int64)}), "fits"),
        (pack(make_observation() | {"prefix": [["a", "b"]]}), "fits"),
        (pack(make_observation() | {"prefix": np.full((1, 2), np.nan, np.float32)}), "NaN"),
        (pack(make_observation() | {"prefix": np.zeros((1, 2), np.float32), "committed": 2}), "from 0 to 1"),
        (
            pack(make_observation() | {"prefix": np.zeros((3, 2), np.float32)}),
            "commits 3 actions, and the policy is trai",
        ),
        (pack(make_observation() | {"strategy": "naive"}), "strategy is one of prefix, replacement, guided"),
        (pack(make_observation() | {"whole": 1}), "whole is true or false"),
        (pack(make_observation() | {"protocol_version": 2}), "speaks version 2 of the protocol, the server 1"),
        (pack(make_observation(rows=257)), "at most 256 rows"),
    ],
)
def test_what_does_not_fit_is_answered_in_words(running: RunningPolicy, message: bytes | str, said: str) -> None:
    connection = open_raw(running.url)
    answer = ask(connection, message)
    with pytest.raises(ConnectionClosed):
        connection.recv(DEADLINE)
    assert (isinstance(answer, str) and said in answer.replace("\n", " ")) or pytest.fail(answer)
    with open_raw(running.url) as other:
        assert "actions" in ask(other, make_observation()), "the server goes on"


def test_a_message_beyond_the_limit_ends_its_connection_alone() -> None:
    with running_policy(message=2000) as running, open_raw(running.url) as other:
        connection = open_raw(running.url)
        connection.send(b"\0" * 3000)
        with pytest.raises(ConnectionClosed, match="1009"):
            connection.recv(DEADLINE)
        assert "actions" in ask(other, make_observation())


def test_a_policy_that_fails_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    with running_policy(ToldPolicy(fails=5.0)) as running:
        broken = make_observation() | {"state": np.array([5.0, 0, 0], np.float32)}
        with PolicyClient(running.url) as client:
            with pytest.raises(UserError, match="The policy failed: RuntimeError: told to fail"):
                client.act(broken)
            assert client.act(make_observation()).shape == (3, 2), "with a new connection"
    assert "told to fail" in caplog.text, "the cause is on the server's screen"


def test_what_the_policy_itself_refuses_is_said_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    with (
        running_policy(RefusingPolicy()) as running,
        PolicyClient(running.url) as client,
        pytest.raises(UserError, match="99 tokens"),
    ):
        client.act(make_observation())
    assert "Traceback" not in caplog.text


def test_actions_that_are_none_are_not_sent() -> None:
    policy = ToldPolicy(factor=float("nan"))
    with (
        running_policy(policy) as running,
        PolicyClient(running.url) as client,
        pytest.raises(UserError, match="NaN or infinity: its weights are of no use"),
    ):
        client.act(make_observation())


def test_a_policy_that_hangs_is_given_up_and_the_connection_told() -> None:
    gate = threading.Event()
    with running_policy(ToldPolicy(gate), deadline=0.2) as running:
        try:
            assert "no answer within 0.2 s" in ask(open_raw(running.url), make_observation())
        finally:
            gate.set()


def test_clients_are_answered_together_and_as_if_alone() -> None:
    gate, policy = threading.Event(), ToldPolicy()
    policy.gate = gate
    with running_policy(policy, batch=8) as running, ThreadPoolExecutor(9) as pool:
        clients = [PolicyClient(running.url, deadline=DEADLINE) for _ in range(9)]
        answers = [pool.submit(clients[8].act, make_observation(8))]
        while not policy.calls:
            pass
        answers = [pool.submit(client.act, make_observation(row)) for row, client in enumerate(clients[:8])] + answers
        while running.server.batcher.waiting < 8:
            pass
        gate.set()
        found = [answer.result(DEADLINE) for answer in answers]
        for client in clients:
            client.close()
    assert policy.calls == [4, 8], "one alone, filled up to 4 rows, then eight together"
    for row, actions in enumerate(found):
        assert (actions == expect(make_observation(row))).all()


def test_other_draws_and_prefixes_are_not_mixed() -> None:
    gate, policy = threading.Event(), ToldPolicy()
    policy.gate = gate
    prefix = np.full((2, 2), 0.5, np.float32)
    asked = [{}, {"seed": 1}, {"seed": 2}, {"prefix": prefix}, {"prefix": prefix[:1]}]
    with running_policy(policy) as running, ThreadPoolExecutor(5) as pool:
        clients = [PolicyClient(running.url, deadline=DEADLINE) for _ in asked]
        pairs = zip(clients, asked, strict=True)
        answers = [pool.submit(client.act, make_observation(), **more) for client, more in pairs]
        gate.set()
        found = [answer.result(DEADLINE) for answer in answers]
        again = [client.act(make_observation(), **more) for client, more in zip(clients, asked, strict=True)]
        for client in clients:
            client.close()
    assert all((one == other).all() for one, other in zip(found, again, strict=True))
    assert len({actions.tobytes() for actions in found}) == 5


def test_without_batches_nothing_is_filled_up() -> None:
    policy = ToldPolicy()
    with running_policy(policy, batch=1) as running, PolicyClient(running.url) as client:
        client.act(make_observation())
        client.act(make_observation(rows=3))
    assert policy.calls == [1, 3]


def test_new_weights_answer_from_the_next_question_on(running: RunningPolicy) -> None:
    with PolicyClient(running.url) as client:
        before = client.act(make_observation())
        running.served.replace(ServedWeights(ToldPolicy(factor=2.0), SPEC, 8))
        after = client.act(make_observation())
        assert client.version == 8 and client.versions == {7, 8}
    assert (before == expect(make_observation())).all()
    assert (after == expect(make_observation(), ToldPolicy(factor=2.0))).all()


def test_weights_of_another_robot_are_not_swapped_in(running: RunningPolicy) -> None:
    import dataclasses

    with pytest.raises(UserError, match="another robot"):
        running.served.replace(ServedWeights(ToldPolicy(), dataclasses.replace(SPEC, normalisation="1" * 64), 8))
    assert running.served.weights.version == 7


# -- names ------------------------------------------------------------------------------------------------------------


def rename(given: dict[str, Any]) -> dict[str, Any]:
    return {
        "observation/image": given["images/front"],
        "observation/wrist_image": given["images/wrist"],
        "observation/joint": given["state"][:2],
        "observation/gripper": given["state"][2:],
        "prompt": given["prompt"],
    }


NAMES = WireNames(
    {
        "images/front": "observation/image",
        "images/wrist": "observation/wrist_image",
        "state": "observation/joint+observation/gripper",
    },
    ("session_id",),
)


def test_others_names_are_taken_where_they_are_said() -> None:
    given = make_observation()
    with running_policy(names=NAMES) as running, open_raw(running.url) as connection:
        said = ask(connection, rename(given) | {"session_id": "x"})
        assert (said["actions"] == expect(given)).all()
    with running_policy(names=NAMES) as running:
        assert "session_idd" in ask(open_raw(running.url), rename(given) | {"session_idd": "x"})
        missing = {name: value for name, value in rename(given).items() if name != "observation/gripper"}
        assert "lacks 'state'" in ask(open_raw(running.url), missing), "a part alone is no state"


def test_names_of_nothing_are_refused() -> None:
    with (
        pytest.raises(UserError, match="the policy has no 'images/frnt'; it takes images/front"),
        running_policy(names=WireNames({"images/frnt": "observation/image"})),
    ):
        pass


# -- who may ask ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/healthz", "/health"])
def test_health_is_answered_without_a_token(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "0123456789abcdef")
    with running_policy(token_variable="TOKEN") as running:
        answer = httpx2.get(running.url.replace("ws", "http", 1) + path)
    assert (answer.status_code, answer.text) == (200, "OK\n")


@pytest.mark.parametrize("path", ["/evil", "/vla-evaluation", "/metrics"])
def test_other_paths_are_refused_in_words(running: RunningPolicy, path: str) -> None:
    with pytest.raises(InvalidStatus, match="404"):
        connect(running.url + path, proxy=None)


def test_another_address_needs_a_token() -> None:
    with pytest.raises(UserError, match="token is needed"), running_policy(host="0.0.0.0"):
        pass


@pytest.mark.parametrize("kind", ["Bearer", "Api-Key"])
def test_the_token_is_asked_for(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "0123456789abcdef")
    with running_policy(token_variable="TOKEN") as running:
        with open_raw(running.url, additional_headers={"Authorization": f"{kind} 0123456789abcdef"}) as connection:
            assert "actions" in ask(connection, make_observation())
        for sent in (None, f"{kind} 0123456789abcdeg", f"{kind} ", "0123456789abcdef"):
            with pytest.raises(InvalidStatus, match="401"):
                connect(running.url, proxy=None, additional_headers={"Authorization": sent} if sent else {})
        with PolicyClient(running.url, token="0123456789abcdef") as client:
            assert client.is_ours
        with pytest.raises(RuntimeError, match="401 The token is missing or wrong"):
            PolicyClient(running.url, token="wrong")


def test_web_pages_cannot_connect(running: RunningPolicy) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        connect(running.url, proxy=None, origin="http://127.0.0.1")  # type: ignore[arg-type]


def test_more_clients_than_places_are_told_so() -> None:
    with running_policy(clients=2) as running:
        first, second = open_raw(running.url), open_raw(running.url)
        with pytest.raises(InvalidStatus, match="503"):
            connect(running.url, proxy=None)
        first.close()
        second.close()
        with PolicyClient(running.url) as client:
            assert client.act(make_observation()).shape == (3, 2), "a place is free again"


def test_a_port_in_use_is_one_line(running: RunningPolicy) -> None:
    with (
        pytest.raises(UserError, match=rf"port={running.port} cannot be listened on.*port=0 takes a free one"),
        running_policy(port=running.port),
    ):
        pass


# -- strangers --------------------------------------------------------------------------------------------------------


def mutate(random: Random) -> bytes:
    """A message that is random, or a good one in which something is other."""
    good = bytearray(pack(make_observation(random.randrange(10))))
    kind = random.randrange(4)
    if kind == 0:
        return random.randbytes(random.randrange(200))
    if kind == 1:
        return bytes(good[: random.randrange(len(good))])
    if kind == 2:
        for _ in range(random.randint(1, 8)):
            good[random.randrange(len(good))] = random.randrange(256)
        return bytes(good)
    values = [None, -1, 2**63, 1e308, "evil", b"evil", [], {}, [[]], {"a": {}}, np.zeros(0), np.zeros((2, 3), np.int8)]
    given: dict[str, Any] = {**make_observation(), "seed": 1, "prefix": np.zeros((1, 2), np.float32)}
    given[random.choice([*given, "seq", "epoch", "episode", "decision", "committed", "more"])] = random.choice(values)
    return pack(given)


def test_a_thousand_random_messages_are_answered_or_refused(running: RunningPolicy) -> None:
    random, answered, refused = Random(3), 0, 0
    connection = open_raw(running.url)
    for _ in range(1000):
        said = ask(connection, mutate(random))
        if isinstance(said, str):
            assert said and "Traceback" not in said
            refused += 1
            connection.close()
            connection = open_raw(running.url)
        else:
            assert said["actions"].shape[-2:] == (3, 2)
            answered += 1
    assert answered > 20 and refused > 500
    assert (ask(connection, make_observation())["actions"] == expect(make_observation())).all()
    connection.close()


def test_who_speaks_no_websocket_disturbs_nobody(running: RunningPolicy, caplog: pytest.LogCaptureFixture) -> None:
    random = Random(1)
    with PolicyClient(running.url) as client:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", running.port)) as stranger:
                stranger.sendall(random.randbytes(100) + b"\r\n\r\n")
        assert client.act(make_observation()).shape == (3, 2)
    assert "Traceback" not in caplog.text


def test_a_client_that_leaves_while_it_is_computed_for_disturbs_nobody() -> None:
    gate, policy = threading.Event(), ToldPolicy()
    policy.gate = gate
    with running_policy(policy) as running:
        gone = open_raw(running.url)
        gone.send(pack(make_observation()))
        while not policy.calls:
            pass
        gone.socket.shutdown(socket.SHUT_RDWR)
        gate.set()
        with PolicyClient(running.url) as client:
            assert client.act(make_observation()).shape == (3, 2)
