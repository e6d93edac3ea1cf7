"""A served policy is compared with a robot, and asked how long it takes, for the doctor."""

import time
from dataclasses import replace
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
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.interfaces.errors import UserError
from tests.support.policy_serving import SPEC, FakePolicy, running_policy

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


def test_a_policy_for_another_robot_and_one_that_is_too_slow() -> None:
    with running_policy(Slow(), replace(FITTING, control_hz=20.0)) as running, PolicyClient(running.url) as client:
        fit, answers = check_served_policy(client, ROBOT, 2, 30.0)
    assert fit.status == "fail" and "acts 20 times a second, robot tabletop 12.5" in f"{fit.found} {fit.remedy}"
    assert answers.status == "fail" and "A chunk lasts 320 ms" in answers.remedy and "of 2 requests" in answers.found


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
