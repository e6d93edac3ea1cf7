"""The protocol of the harness vla-eval: hello, observations, one action each."""

import dataclasses
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from embodied_rl.deployment.policy_client.request import WireNames
from embodied_rl.deployment.policy_client.wire import pack, unpack
from tests.support.policy_serving import (
    DEADLINE,
    SPEC,
    FakePolicy,
    RunningPolicy,
    expect,
    make_observation,
    running_policy,
)
from tests.support.recorded_messages import HARNESS, SMALL

NAMES = WireNames({"state": "states"}, ("controller_states",))


class Harness:
    """The harness's side of a connection."""

    def __init__(self, url: str) -> None:
        self.connection, self.seq = connect(f"{url}/vla-eval", max_size=None, proxy=None), 0

    def __enter__(self) -> "Harness":
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def send(self, kind: str, payload: dict[str, Any]) -> int:
        self.seq += 1
        message = {"type": kind, "payload": payload, "seq": self.seq, "timestamp": time.time()}
        self.connection.send(pack(message, text_keys=True))
        return self.seq

    def ask(self, kind: str, payload: dict[str, Any]) -> dict[str, Any]:
        seq = self.send(kind, payload)
        answer = unpack(self.connection.recv(DEADLINE))
        assert set(answer) == {"type", "payload", "seq", "timestamp"} and answer["seq"] == seq
        return answer

    def act(self, payload: dict[str, Any]) -> Any:
        answer = self.ask("observation", payload)
        assert answer["type"] == "action", answer
        return answer["payload"]["actions"]


def as_payload(seed: int, rows: int | None = None) -> dict[str, Any]:
    given = make_observation(seed, rows=rows)
    images = {name: given[f"images/{name}"] for name in SPEC.cameras}
    return {"images": images, "states": given["state"], "task_description": given["prompt"]}


@pytest.fixture
def running() -> Iterator[RunningPolicy]:
    with running_policy(names=NAMES) as server:
        yield server


def test_hello_is_answered_with_what_the_policy_is(running: RunningPolicy) -> None:
    with Harness(running.url) as harness:
        said = harness.ask("hello", {"harness_version": "0.1", "protocol_version": 1, "benchmark": "libero"})
    assert said["type"] == "hello" and said["payload"]["protocol_version"] == 1
    assert said["payload"]["model_server"].startswith("embodied-rl") and "harness_version" in said["payload"]
    for part in ("action_spec", "observation_spec"):
        for entry in said["payload"][part].values():
            assert {"name", "dims", "format"} <= entry.keys(), "what the harness reads of each"
    assert said["payload"]["action_spec"]["actions"]["dims"] == 2


def test_each_observation_has_one_action_of_the_chunk(running: RunningPolicy) -> None:
    with Harness(running.url) as harness:
        harness.send("episode_start", {"task": {"name": "t"}})
        found = [harness.act(as_payload(seed) | {"controller_states": np.zeros(9)}) for seed in range(4)]
    assert all(action.shape == (2,) and action.dtype == np.float32 for action in found)
    assert (np.stack(found[:3]) == expect(make_observation(0))).all(), "the chunk of the first observation"
    assert (found[3] == expect(make_observation(3))[0]).all(), "then that of the fourth"


def test_an_episode_begins_without_actions_of_the_last(running: RunningPolicy) -> None:
    with Harness(running.url) as harness:
        harness.act(as_payload(0))
        harness.send("episode_end", {"metrics": {"success": True}})
        harness.send("episode_start", {"task": {"name": "t"}})
        assert (harness.act(as_payload(1)) == expect(make_observation(1))[0]).all()


def test_connections_have_chunks_of_their_own(running: RunningPolicy) -> None:
    with Harness(running.url) as one, Harness(running.url) as other:
        one.act(as_payload(0))
        assert (other.act(as_payload(1)) == expect(make_observation(1))[0]).all()
        assert (one.act(as_payload(2)) == expect(make_observation(0))[1]).all()


@pytest.mark.parametrize("kind", ["observation png", "observation raw"])
def test_messages_of_the_harness_itself_are_answered(kind: str) -> None:
    words = ("pick", "up", "the", "red", "cube")
    spec = dataclasses.replace(
        SPEC, cameras={"front": (4, 4)}, state_names=("x", "y"), words=words, prompt_length=5
    )  # fmt: skip
    seen: list[Any] = []

    class Noting(FakePolicy):
        def infer(self, observation: Any, *args: Any, **options: Any) -> Any:
            seen.append(observation)
            return super().infer(observation, *args, **options)

    with running_policy(Noting(), spec) as running, Harness(running.url) as harness:
        harness.connection.send(bytes.fromhex(HARNESS["hello"]))
        assert unpack(harness.connection.recv(DEADLINE))["seq"] == 1
        harness.connection.send(bytes.fromhex(HARNESS["start"]))
        harness.connection.send(bytes.fromhex(HARNESS[kind]))
        said = unpack(harness.connection.recv(DEADLINE))
        harness.connection.send(bytes.fromhex(HARNESS["end"]))
    assert said["type"] == "action" and said["payload"]["actions"].shape == (2,)
    assert (seen[0].images["front"][0] == SMALL).all() and seen[0].state[0].tolist() == [0.5, -1.25]


@pytest.mark.parametrize(
    ("kind", "payload", "said"),
    [
        ("hello", {"protocol_version": 2}, "version 2"),
        ("observation", {"images": {}}, "lacks 'images/front'"),
        ("observation", as_payload(0) | {"task_description": "fly"}, "does not know the word"),
        ("observation", as_payload(0) | {"extra": 1}, "'extra', which the policy does not take"),
        ("observation", as_payload(0) | {"images": {"front": {"__image__": True, "format": "gif"}}}, "pictures are"),
        (
            "observation",
            as_payload(0) | {"images": {"front": {"__image__": True, "format": "png", "data": b"\x89PNG"}}},
            "a picture",
        ),
        ("hello", {"protocol_version": np.ones(2)}, "version array"),
        ("observation", as_payload(0, rows=2), "without a batch axis"),
        ("action", {}, "unexpected message type 'action'"),
        ("dance", {}, "type is one of"),
    ],
)
def test_what_does_not_fit_is_an_error_in_words(
    running: RunningPolicy, kind: str, payload: dict[str, Any], said: str
) -> None:
    with Harness(running.url) as harness:
        harness.send(kind, payload)
        answer = unpack(harness.connection.recv(DEADLINE))
        assert answer["type"] == "error" and said in answer["payload"]["error"], answer
        with pytest.raises(ConnectionClosed):
            harness.connection.recv(DEADLINE)


def test_observations_within_a_chunk_are_checked_too(running: RunningPolicy) -> None:
    with Harness(running.url) as harness:
        harness.act(as_payload(0))
        answer = harness.ask("observation", as_payload(1) | {"states": np.zeros(2)})
        assert answer["type"] == "error" and "takes 3 numbers" in answer["payload"]["error"]
