"""A client's answers are those of the policy; what a server says of itself is checked, also against a robot."""

import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.policy_check import (
    WARM,
    check_served_policy,
    draw_observation,
    measure_inference_times,
)
from embodied_rl.deployment.policy_client.wire import pack
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from tests.support.faulty_policy_server import METADATA, faulty_server, reply
from tests.support.policy_serving import DEADLINE, SPEC, FakePolicy, as_batch, make_observation, running_policy

OURS = make_observation()


def test_answers_are_those_of_the_policy_itself() -> None:
    given, policy = make_observation(rows=11), FakePolicy()
    keys = NoiseKeys(2**63, np.arange(11) * 10**12, np.arange(11))
    with running_policy() as running, PolicyClient(running.url) as client:
        assert (client.infer(as_batch(given), keys) == policy.infer(as_batch(given), keys)).all()
        assert (client.infer(as_batch(given)) == client.act(given)).all()
        assert client.version == 7 and client.spec == SPEC and client.timing["total_ms"] > 0


def test_a_prefix_travels() -> None:
    given, policy = make_observation(rows=6), FakePolicy()
    prefix, committed = np.full((6, 2, 2), 0.5, np.float32), np.array([0, 1, 2, 0, 1, 2])
    with running_policy(message=20_000) as running, PolicyClient(running.url) as client:
        found = client.infer(as_batch(given), None, prefix, committed, whole=True)
        assert (found == policy.infer(as_batch(given), None, prefix, committed, whole=True)).all()
        one = client.act(OURS, prefix=prefix[0], committed=1, strategy="replacement")
        assert (one[:1] == 0.5).all() and one.shape == (3, 2)


def test_rows_beyond_a_message_are_sent_in_several() -> None:
    given = make_observation(rows=11)
    keys = NoiseKeys(5, np.arange(11), np.arange(11))
    policy = FakePolicy()
    with running_policy(policy, message=20_000) as running, PolicyClient(running.url) as client:
        found = client.infer(as_batch(given), keys)
        assert policy.calls == [4, 4, 3]
        assert (found == FakePolicy().infer(as_batch(given), keys)).all()


def test_an_observation_that_does_not_fit_is_refused_before_it_is_sent() -> None:
    def refuse(number: int, asked: dict[str, Any]) -> bytes:
        raise AssertionError("nothing was to be sent")

    with faulty_server(refuse) as url, PolicyClient(url) as client, pytest.raises(UserError, match="lacks 'prompt'"):
        client.act({name: value for name, value in OURS.items() if name != "prompt"})


def test_a_server_of_others_is_asked_row_by_row_under_its_names() -> None:
    asked_of: list[dict[str, Any]] = []

    def answer(number: int, asked: dict[str, Any]) -> bytes:
        asked_of.append(asked)
        return pack({"action": np.full((3, 2), number, np.float64)})

    names = {"images/front": "observation/image", "images/wrist": "observation/wrist", "state": "observation/state"}
    with (
        faulty_server(answer, pack({"reset_pose": [0, 1]})) as url,
        PolicyClient(url, names=names, key="action") as client,
    ):
        assert client.spec is None and not client.is_ours and client.metadata == {"reset_pose": [0, 1]}
        found = client.infer(as_batch(make_observation(rows=2)), NoiseKeys(0, np.arange(2), np.arange(2)))
        with pytest.raises(UserError, match="accepts neither a prefix nor a seed"):
            client.act(OURS, seed=3)
        assert "cameras" in client.check_body(None)[0]  # type: ignore[arg-type]
    assert found.dtype == np.float32 and found[:, 0, 0].tolist() == [0, 1]
    assert set(asked_of[0]) == {"observation/image", "observation/wrist", "observation/state", "prompt"}
    assert asked_of[0]["observation/image"].shape == (4, 5, 3) and isinstance(asked_of[0]["prompt"], str)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"horizon": np.inf}, "incomplete: OverflowError"),
        ({"cameras": 3}, "incomplete"),
        ({"protocol_version": 2}, "uses version 2 of the protocol, this client 1: install the same"),
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


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("deployment.policy_client.client, embodied_rl.deployment.policy_client.websocket_client", "torch"),
        ("commands.eval, embodied_rl.commands.serve", "msgpack"),
    ],
)
def test_what_is_imported_without_an_extra(modules: str, absent: str) -> None:
    code = f"import sys, embodied_rl.{modules}; print({absent!r} in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert said.stdout.strip() == "False", said.stderr


def test_the_former_place_of_the_client_names_the_new_one() -> None:
    with pytest.raises(ImportError, match=r"embodied_rl\.deployment\.policy_client\.client import PolicyClient"):
        import_module("embodied_rl.deployment.policy_server.client")


ROBOT = load_robot("tabletop")
BODY = ROBOT.body
FITTING = replace(
    SPEC,
    cameras={"front": (64, 64)},
    state_names=BODY.state_names,
    action_names=BODY.action_names,
    action_low=BODY.action_low,
    action_high=BODY.action_high,
    control_hz=12.5,
)


class FourActions(FakePolicy):
    """Acts with four entries, after `pause_s`."""

    pause_s = 0.0

    def infer(self, observation: Any, *told: Any, **options: Any) -> Any:
        time.sleep(self.pause_s)
        self.calls.append(len(observation))
        return np.zeros((len(observation), 3, 4), np.float32)


class Slow(FourActions):
    pause_s = 0.2


def test_a_policy_that_fits_and_is_fast_enough() -> None:
    policy = FourActions()
    with running_policy(policy, FITTING) as running, PolicyClient(running.url) as client:
        fit, answers = check_served_policy(client, ROBOT, 5, 30.0, "stop")
        times = measure_inference_times(client, 5, 30.0)
    assert (fit.name, fit.status) == ("policy", "ok") and running.url in fit.found
    assert (answers.name, answers.status) == (
        "answers",
        "ok",
    ) and "of 5 requests; a chunk lasts 320 ms" in answers.found
    assert times.count == 5 and 0 < times.p50_ms <= times.p99_ms
    assert len(policy.calls) == 2 * (WARM + 5)


@pytest.mark.thorough
def test_a_policy_for_another_robot_and_one_that_is_too_slow() -> None:
    with running_policy(Slow(), replace(FITTING, control_hz=20.0)) as running, PolicyClient(running.url) as client:
        fit, answers = check_served_policy(client, ROBOT, 2, 30.0)
    assert fit.status == "fail" and "acts 20 times a second, robot tabletop 12.5" in f"{fit.found} {fit.remedy}"
    assert answers.status == "fail" and "A chunk lasts 320 ms" in answers.remedy and "of 2 requests" in answers.found


@pytest.mark.thorough
def test_questions_end_when_the_time_is_over() -> None:
    policy = Slow()
    with running_policy(policy, FITTING) as running, PolicyClient(running.url) as client:
        assert measure_inference_times(client, 1000, 0.1).count == 1
    assert len(policy.calls) == WARM + 1


def test_a_server_that_says_nothing_of_its_policy_is_not_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_policy(FourActions(), FITTING) as running, PolicyClient(running.url) as client:
        monkeypatch.setattr(client, "spec", None)
        (row,) = check_served_policy(client, ROBOT, 2, 1.0)
        assert row.status == "warn" and row.remedy
        with pytest.raises(UserError, match="does not describe its observations"):
            measure_inference_times(client, 1, 1.0)


def test_synthetic_observations_fit_and_differ() -> None:
    one, other = draw_observation(FITTING, 0), draw_observation(FITTING, 1)
    assert one["images/front"].shape == (64, 64, 3) and not np.array_equal(one["images/front"], other["images/front"])
    assert one["state"].shape == (7,) and one["prompt"] == "go"
