"""A policy behind a websocket: what is answered, in whose names, and that clients do not disturb each other."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.request import WireNames
from embodied_rl.deployment.policy_client.wire import pack, unpack
from embodied_rl.interfaces.errors import UserError
from embodied_rl.policy_server.served import ServedWeights
from tests.support.policy_serving import (
    DEADLINE,
    SPEC,
    FakePolicy,
    RefusingPolicy,
    RunningPolicy,
    ask,
    expect,
    make_observation,
    open_raw,
    running_policy,
)
from tests.support.recorded_messages import OPENPI


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
    assert first["actions"].dtype == np.float32
    assert np.array_equal(first["actions"], expect(make_observation(), whole=True)), "all that the policy predicts"
    assert first["version"] == 7 and first["server_timing"]["infer_ms"] >= 0 and "infer_ms" in first["policy_timing"]
    assert second["server_timing"]["prev_total_ms"] >= second["server_timing"].get("infer_ms") * 0
    assert not first.keys() & {"seq", "epoch"}, "nothing is echoed that was not sent"


@pytest.mark.parametrize("send", ["horizon", "executed"])
def test_send_chooses_the_actions_for_clients_of_others_alone(send: str) -> None:
    given = make_observation()
    with running_policy(send=send) as running, PolicyClient(running.url) as client, open_raw(running.url) as other:
        assert client.act(given).shape == (SPEC.executed, 2)
        assert client.act(given, whole=True).shape == (SPEC.horizon, 2)
        assert np.array_equal(ask(other, given)["actions"], expect(given, whole=send == "horizon"))
        assert np.array_equal(ask(other, given | {"whole": True})["actions"], expect(given, whole=True))


def test_what_is_sent_beside_the_observation_is_used(running: RunningPolicy) -> None:
    prefix = np.full((2, 2), 0.25, np.float32)
    given = make_observation() | {"protocol_version": 1}
    with open_raw(running.url) as connection:
        echoed = ask(connection, given | {"seq": 5, "epoch": 3})
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
        ({"observation/state": 1}, "'observation/state', which the policy does not take"),
        ({"prompt": "fly"}, "does not know the word 'fly'"),
        ({"endpoint": "train"}, "endpoint is one of infer, reset"),
        ({"endpoint": 1}, "endpoint is one of infer, reset"),
        ({"seq": -1}, "seq is an integer"),
        ({"seq": 1.5}, "seq is an integer"),
        ({"decision": 1}, "need seed"),
        ({"seed": 1, "episode": [1, 2]}, "one for each of 1 rows"),
        ({"committed": 1}, "needs prefix"),
        ({"prefix": np.zeros((5, 2), np.float32)}, "[at most 4, 2] fits"),
        ({"prefix": np.zeros((1, 3), np.float32)}, "fits"),
        ({"prefix": np.zeros((1, 2), np.int64)}, "fits"),
        ({"prefix": [["a", "b"]]}, "fits"),
        ({"prefix": np.full((1, 2), np.nan, np.float32)}, "NaN"),
        ({"prefix": np.zeros((1, 2), np.float32), "committed": 2}, "from 0 to 1"),
        ({"prefix": np.zeros((3, 2), np.float32)}, "commits 3 actions, but the policy is trai"),
        ({"strategy": "naive"}, "strategy is one of prefix, replacement, guided"),
        ({"whole": 1}, "whole is true or false"),
        ({"protocol_version": 2}, "uses version 2 of the protocol, the server 1"),
        ({"protocol_version": np.ones(2)}, "uses version array([1., 1.]) of the protocol"),
        ({"protocol_version": True}, "uses version True of the protocol"),
        ({"prefix": [[0.0], [0.0, 0.0]]}, "prefix is not an array"),
        ({"prefix": np.full((1, 2), 1e300)}, "prefix has NaN or infinity"),
        ({"strategy": np.zeros(2)}, "strategy is one of prefix, replacement, guided"),
        ({"seed": 1, "episode": [[1], [1, 2]]}, "episode is not an array"),
        ({"state": [[1], [1, 2]]}, "state is not an array"),
        ({"state": [1e300, 0.0, 0.0]}, "NaN or infinity in 'x'"),
        ({"images": {"front": 1}}, "'images/front' twice"),
        (pack(make_observation(rows=257)), "at most 256 rows"),
    ],
)
def test_what_does_not_fit_is_answered_in_words(
    running: RunningPolicy, message: bytes | str | dict[str, Any], said: str
) -> None:
    connection = open_raw(running.url)
    answer = ask(connection, make_observation() | message if isinstance(message, dict) else message)
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
    with running_policy(FakePolicy(fails=5.0)) as running:
        broken = make_observation() | {"state": np.array([5.0, 0, 0], np.float32)}
        with PolicyClient(running.url) as client:
            with pytest.raises(UserError, match="The policy failed: RuntimeError: told to fail"):
                client.act(broken)
            assert client.act(make_observation()).shape == (3, 2), "with a new connection"
    assert "told to fail" in caplog.text, "the cause is on the server's screen"


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        (RefusingPolicy(), "99 tokens"),
        (FakePolicy(factor=float("nan")), "NaN or infinity: its weights are unusable"),
    ],
)
def test_what_the_policy_refuses_and_actions_that_are_none_are_said(policy: Any, said: str) -> None:
    with (
        running_policy(policy) as running,
        PolicyClient(running.url) as client,
        pytest.raises(UserError, match=said),
    ):
        client.act(make_observation())


def test_a_policy_that_hangs_is_given_up_and_the_connection_told() -> None:
    gate = threading.Event()
    with running_policy(FakePolicy(gate), deadline=0.2) as running:
        try:
            assert "did not respond within 0.2 s" in ask(open_raw(running.url), make_observation())
        finally:
            gate.set()


def test_clients_are_answered_together_and_as_if_alone() -> None:
    gate, policy = threading.Event(), FakePolicy()
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
    gate, policy = threading.Event(), FakePolicy()
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


@pytest.mark.parametrize(("batch", "calls"), [(8, [1, 4, 8]), (1, [1, 1, 5])])
def test_rows_are_filled_up_while_another_client_is_connected(batch: int, calls: list[int]) -> None:
    """Unless there are no batches."""
    policy = FakePolicy()
    with running_policy(policy, batch=batch) as running, PolicyClient(running.url) as client:
        client.act(make_observation())
        with open_raw(running.url):
            client.act(make_observation())
            client.act(make_observation(rows=5))
    assert policy.calls == calls


def test_new_weights_answer_from_the_next_question_on(running: RunningPolicy) -> None:
    with PolicyClient(running.url) as client:
        before = client.act(make_observation())
        running.served.replace(ServedWeights(FakePolicy(factor=2.0), SPEC, 8))
        after = client.act(make_observation())
        assert client.version == 8 and client.versions == {7, 8}
    assert (before == expect(make_observation())).all()
    assert (after == expect(make_observation(), FakePolicy(factor=2.0))).all()


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
        assert (said["actions"] == expect(given, whole=True)).all()
    with running_policy(names=NAMES) as running:
        assert "session_idd" in ask(open_raw(running.url), rename(given) | {"session_idd": "x"})
        missing = {name: value for name, value in rename(given).items() if name != "observation/gripper"}
        assert "lacks 'state'" in ask(open_raw(running.url), missing), "a part alone is no state"
        both = {**rename(given), "state": given["state"]}
        assert "both 'state' and 'observation/joint+" in ask(open_raw(running.url), both)


@pytest.mark.parametrize(
    ("part", "said"),
    [("open", "<U4 [1]"), (np.zeros((2, 1), np.float32), "float32 [2, 1]"), ([[1], [1, 2]], "state is not an array")],
)
def test_parts_of_a_state_that_do_not_fit_together_are_refused_in_words(part: Any, said: str) -> None:
    with running_policy(names=NAMES) as running:
        assert said in ask(open_raw(running.url), rename(make_observation()) | {"observation/gripper": part})


JOINED = {"state": "observation/joint:2+observation/gripper:1"}


@pytest.mark.parametrize("rows", [None, 2])
def test_client_and_server_take_the_same_names_for_a_joined_state(rows: int | None) -> None:
    given = make_observation(rows=rows)
    with running_policy(names=WireNames(JOINED)) as running, PolicyClient(running.url, names=JOINED) as client:
        assert np.array_equal(client.act(given), expect(given))


@pytest.mark.parametrize(
    ("names", "state", "said"),
    [
        ("joint+gripper", [1.0, 2.0, 3.0], "joint:2"),
        ("joint:2+gripper", [1.0, 2.0, 3.0], "joint:2"),
        ("joint:2+gripper:2", [1.0, 2.0, 3.0], "state"),
        ("joint:2+gripper:1", {"x": 1.0}, "state"),
        ("joint:2+gripper:1", [[1.0], [1.0, 2.0]], "state"),
    ],
)
def test_a_state_that_cannot_be_split_is_refused(names: str, state: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        WireNames({"state": names}).to_theirs({"state": state})


def test_a_part_of_another_size_than_its_name_says_is_refused() -> None:
    with running_policy(names=WireNames(JOINED)) as running:
        parts = {"observation/joint": np.zeros(1, np.float32), "observation/gripper": np.zeros(2, np.float32)}
        given = {name: value for name, value in make_observation().items() if name != "state"}
        assert "observation/joint" in ask(open_raw(running.url), given | parts)


def test_a_fault_of_the_server_is_on_its_screen(
    running: RunningPolicy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("embodied_rl.policy_server.server.read_request", None)
    with open_raw(running.url) as connection, pytest.raises(ConnectionClosed, match="1011"):
        ask(connection, make_observation())
    assert "ended by an error of the server" in caplog.text and "TypeError" in caplog.text


def test_names_of_nothing_are_refused() -> None:
    with (
        pytest.raises(UserError, match="the policy has no 'images/frnt'; it takes images/front"),
        running_policy(names=WireNames({"images/frnt": "observation/image"})),
    ):
        pass
