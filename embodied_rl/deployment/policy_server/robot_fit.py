"""Whether a served policy fits a robot, and how fast it answers: rows of `embodied-rl doctor robot=… policy=ws://…`."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.deployment.execution.settings import Strategy
from embodied_rl.deployment.policy_server.client import PolicyClient
from embodied_rl.deployment.policy_server.exchange import NoPolicyAnswer
from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fitting import check_open_loop, check_policy
from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE, PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Diagnosis

WARM = 3
"""Questions before anything is measured: the first ones may compile the network."""


@dataclass(frozen=True)
class AnswerTimes:
    """Milliseconds from a question to its answer, of `count` questions."""

    p50_ms: float
    p99_ms: float
    count: int


def measure_answers(client: PolicyClient, questions: int, within_s: float) -> AnswerTimes:
    """Ask with synthetic observations, one after the other, and measure.

    Args:
        client: whose server says what it expects. questions: most that are asked.
        within_s: no further question begins after this; one takes the client's deadline at most.

    Raises:
        UserError: the server does not say what it expects. NoPolicyAnswer: an answer did not come.
    """
    if client.spec is None:
        raise UserError(f"{client.url} does not say which observations it expects, so that none can be made up.")
    times: list[float] = []
    until = time.monotonic() + within_s
    for index in range(WARM + questions):
        if len(times) > 0 and time.monotonic() > until:
            break
        observation = draw_observation(client.spec, index)
        began = time.monotonic()
        client.act(observation)
        if index >= WARM:
            times.append((time.monotonic() - began) * 1e3)
    p50, p99 = np.percentile(times, [50, 99], method="higher")
    return AnswerTimes(float(p50), float(p99), len(times))


def draw_observation(spec: PolicyDescription, seed: int) -> dict[str, Any]:
    """Return a synthetic observation: noise in its pictures, a state of zeros, a word that the policy knows."""
    random = np.random.default_rng(seed)
    shown = {IMAGES + name: random.integers(0, 256, (*size, 3), dtype=np.uint8) for name, size in spec.cameras.items()}
    return {**shown, STATE: np.zeros(len(spec.state_names), np.float32), PROMPT: (spec.words or ("move",))[0]}


def examine_policy(
    client: PolicyClient, robot: RobotDescription, questions: int, within_s: float, strategy: Strategy = "naive"
) -> list[Diagnosis]:
    """Check that a served policy fits a robot, and that its chunks last until the next ones come."""
    if client.spec is None:
        remedy = "serve it with embodied-rl serve, or compare cameras, state, actions and rate by hand"
        return [Diagnosis("policy", "warn", f"{client.url} does not say what it expects and means", remedy)]
    checks: list[Diagnosis] = []
    try:
        check_policy(robot, client.spec)
        checks.append(
            Diagnosis("policy", "ok", f"{client.url} was made for cameras, state and actions of {robot.name}")
        )
    except UserError as error:
        found, _, remedy = str(error).rpartition(": ")
        checks.append(Diagnosis("policy", "fail", found or str(error), remedy))
    return [*checks, _examine_answers(client, robot, questions, within_s, strategy)]


def _examine_answers(
    client: PolicyClient, robot: RobotDescription, questions: int, within_s: float, strategy: Strategy
) -> Diagnosis:
    assert client.spec is not None, "the caller asked"
    try:
        times = measure_answers(client, questions, within_s)
    except (UserError, NoPolicyAnswer) as error:
        return Diagnosis("answers", "fail", str(error), "see on the server's screen what it does")
    found = f"{times.p50_ms:.0f} ms (p50), {times.p99_ms:.0f} ms (p99) of {times.count} questions"
    try:
        budget = check_open_loop(robot, client.spec, times.p99_ms * 1e-3, strategy)
    except UserError as error:
        return Diagnosis("answers", "fail", found, str(error))
    return Diagnosis("answers", "ok", f"{found}; a chunk lasts {budget.lasts_s * 1e3:.0f} ms")
