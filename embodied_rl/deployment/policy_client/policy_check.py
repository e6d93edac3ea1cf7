"""Checks of a served policy against a robot, and its inference times: `embodied-rl doctor robot=… policy=ws://…`."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.deployment.execution.settings import Strategy
from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.policy_client.client_messages import NoPolicyAnswer
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fitting import check_open_loop, check_policy
from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE, PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Diagnosis

WARM = 3
"""Number of requests before the measurement: the first ones may compile the network."""


@dataclass(frozen=True)
class InferenceTimes:
    """Milliseconds from request to response, over `count` requests."""

    p50_ms: float
    p99_ms: float
    count: int


def measure_inference_times(client: PolicyClient, requests: int, within_s: float) -> InferenceTimes:
    """Measure the times of sequential requests with synthetic observations.

    Args:
        requests: maximum number of measured ones. within_s: seconds after which no further request is sent.

    Raises:
        UserError: the server does not describe its policy. NoPolicyAnswer: a response is missing.
    """
    if client.spec is None:
        raise UserError(
            f"{client.url} does not describe its observations, so inference cannot be measured.",
            code="server-without-description",
        )
    times: list[float] = []
    until = time.monotonic() + within_s
    for index in range(WARM + requests):
        if len(times) > 0 and time.monotonic() > until:
            break
        observation = draw_observation(client.spec, index)
        began = time.monotonic()
        client.act(observation)
        if index >= WARM:
            times.append((time.monotonic() - began) * 1e3)
    p50, p99 = np.percentile(times, [50, 99], method="higher")
    return InferenceTimes(float(p50), float(p99), len(times))


def draw_observation(spec: PolicyDescription, seed: int) -> dict[str, Any]:
    """Return a synthetic observation: noise images, a state of zeros, a known word as prompt."""
    random = np.random.default_rng(seed)
    shown = {IMAGES + name: random.integers(0, 256, (*size, 3), dtype=np.uint8) for name, size in spec.cameras.items()}
    return {**shown, STATE: np.zeros(len(spec.state_names), np.float32), PROMPT: (spec.words or ("move",))[0]}


def check_served_policy(
    client: PolicyClient, robot: RobotDescription, requests: int, within_s: float, strategy: Strategy = "naive"
) -> list[Diagnosis]:
    """Check that a served policy fits a robot, and that a chunk lasts longer than inference."""
    if client.spec is None:
        remedy = "serve it with embodied-rl serve, or compare cameras, state, actions and rate by hand"
        return [Diagnosis("policy", "warn", f"{client.url} does not describe its policy", remedy)]
    checks: list[Diagnosis] = []
    try:
        check_policy(robot, client.spec)
        fits = f"{client.url} was made for cameras, state and actions of {robot.name}"
        checks.append(Diagnosis("policy", "ok", fits))
    except UserError as error:
        found, _, remedy = str(error).rpartition(": ")
        checks.append(Diagnosis("policy", "fail", found or str(error), remedy))
    try:
        times = measure_inference_times(client, requests, within_s)
    except (UserError, NoPolicyAnswer) as error:
        return [*checks, Diagnosis("answers", "fail", str(error), "see the output of the server")]
    found = f"{times.p50_ms:.0f} ms (p50), {times.p99_ms:.0f} ms (p99) of {times.count} requests"
    try:
        budget = check_open_loop(robot, client.spec, times.p99_ms * 1e-3, strategy)
    except UserError as error:
        return [*checks, Diagnosis("answers", "fail", found, str(error))]
    return [*checks, Diagnosis("answers", "ok", f"{found}; a chunk lasts {budget.lasts_s * 1e3:.0f} ms")]
