"""Inference delay in simulation: an inference takes d control steps, during which the robot moves on or holds still.

The executor is the one that drives a robot (`embodied_rl.deployment.execution`), with a clock that counts control
steps. From one observation to the next, s control steps pass; with stop-and-go d + s. The actions of a decision
are executed from the d-th of them on. In the first d steps of an episode the robot holds still.

Shapes: m rows that decide, H predicted actions, A action dimensions, p actions of a prefix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from embodied_rl.deployment.execution.executor import Executor, Hold, make_hold
from embodied_rl.deployment.execution.messages import Chunk, ChunkRequest, RobotCommand
from embodied_rl.deployment.execution.settings import CONTINUING, Settings, Strategy, check_budget, choose_replan
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec


class ContinuingPolicy(Protocol):
    """A policy that can return all H actions and continue committed ones; see `Actor.infer`."""

    def infer(
        self,
        observation: Observation,
        keys: NoiseKeys,
        prefix: Array | None = None,
        committed: Array | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> Array:
        """Return a chunk for each row, float32 [m, H, A] in the simulator's units if `whole` is true."""
        ...


@dataclass(frozen=True)
class Delay:
    """Length of an inference, and the actions that the robot executes during it.

    Attributes:
        steps: d, control steps from an observation to the first of its actions.
        strategy: how a new chunk joins the plan; see `Settings.strategy`.
        replan: s, control steps between two observations; of "stop", actions of a chunk that are executed.
        horizon: H, actions that the policy predicts.
        hold: how the robot holds still.
        whole: whether to request all H actions of a policy that returns fewer by default.
    """

    steps: int
    strategy: Strategy
    replan: int
    horizon: int
    hold: Hold
    whole: bool = True

    @property
    def period(self) -> int:
        """Return the control steps between two decisions."""
        return self.steps + self.replan if self.strategy == "stop" else self.replan

    def as_metadata(self) -> dict[str, Any]:
        """Return the entries of a report's metadata."""
        return {"delay": self.steps, "strategy": self.strategy, "replan": self.replan}

    def describe(self) -> str:
        """Return a sentence for the user."""
        pause = " of standing still" if self.strategy == "stop" else ""
        every = f"{self.replan} actions of each chunk" if self.strategy == "stop" else f"one every {self.replan}"
        return f"Inference takes {self.steps} control steps{pause}; strategy={self.strategy}, {every}."


@dataclass
class DelayedEpisode:
    """The executor of one episode, and its clock: `ticks` control steps were planned since the episode began."""

    delay: Delay
    executor: Executor
    ticks: int = 0

    @staticmethod
    def begin(delay: Delay, spec: SimulatorSpec) -> "DelayedEpisode":
        """Return the executor of a new episode in a simulator."""
        low, high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
        settings = Settings(delay.horizon, low, high, delay.strategy, delay.replan, delay.steps)
        made = DelayedEpisode(delay, Executor(settings, lambda: made.ticks, delay.hold))
        made.executor.begin()
        return made

    def ask(self) -> ChunkRequest:
        """Return the request of a decision."""
        request = self.executor.request()
        assert request is not None, "decisions are made when the executor asks"
        return request

    def execute(self, request: ChunkRequest, actions: Array) -> list[RobotCommand]:
        """Return the commands of each control step until the next decision, if `actions` [H, A] arrive after d of them.

        Raises:
            UserError: the executor refused the actions; the message says why.
        """
        commands = self._run(self.delay.steps)
        chunk = Chunk(request.sequence, request.epoch, request.step, actions)
        if (refusal := self.executor.receive(chunk)) is not None:
            message = f"The policy's chunk was refused as {refusal.reason}: {refusal.message}."
            raise UserError(message, code="chunk-refused")
        return [*commands, *self._run(self.delay.period - self.delay.steps)]

    def _run(self, steps: int) -> list[RobotCommand]:
        commands = list[RobotCommand]()
        for _ in range(steps):
            commands.append(self.executor.act())
            self.ticks += 1
        return commands


def stack_actions(commands: Sequence[RobotCommand]) -> Array:
    """Return the actions of commands, float32 [steps, A]."""
    actions = [command.action for command in commands if command.action is not None]
    assert len(actions) == len(commands), "a simulated robot can hold still"
    return np.stack(actions)


def infer_under_delay(
    policy: ContinuingPolicy, observation: Observation, keys: NoiseKeys, requests: Sequence[ChunkRequest], delay: Delay
) -> Array:
    """Return the chunks float32 [m, H, A] that a policy answers m requests with.

    A policy that continues prefixes gets one of the same length for each row, even if nothing is committed yet, so that
    the operations for a row do not depend on the other rows.
    """
    options: dict[str, Any] = {"whole": True} if delay.whole else {}
    if delay.strategy not in CONTINUING or not delay.steps:
        return policy.infer(observation, keys, **options)
    length = delay.steps if delay.strategy == "prefix" else max(delay.steps, delay.horizon - delay.replan)
    prefix = np.zeros((len(requests), length, requests[0].prefix.shape[1]), np.float32)
    for row, request in enumerate(requests):
        prefix[row, : len(request.prefix)] = request.prefix
    committed = np.array([request.committed for request in requests], np.int64)
    return policy.infer(observation, keys, prefix, committed, strategy=delay.strategy, **options)


@dataclass(frozen=True)
class Chunks:
    """A policy's chunks: H predicted and Hx executed actions, and the longest prefix it was trained to continue."""

    horizon: int
    executed: int
    prefix_trained_to: int = 0


def read_chunks(policy: Any) -> Chunks:
    """Return the chunk sizes of a policy: an actor, or the client of a policy server.

    Raises:
        UserError: the number of predicted actions is unknown.
    """
    spec: Any = getattr(policy, "spec", None)
    if all(isinstance(getattr(spec, name, None), int) for name in ("horizon", "executed", "prefix_trained_to")):
        return Chunks(spec.horizon, spec.executed, spec.prefix_trained_to)
    horizon = getattr(getattr(getattr(policy, "network", None), "spec", None), "horizon", None)
    if not isinstance(horizon, int):
        message = "delay: this policy does not say how many actions it predicts; evaluate it without a delay."
        raise UserError(message, code="delay-unsupported")
    return Chunks(horizon, policy.embodiment.executed, int(getattr(policy, "prefix_trained_to", 0)))


def follow_training(policy: Any, spec: SimulatorSpec) -> Delay | None:
    """Return the delay with which to evaluate an actor: that of its training; None without.

    Raises:
        UserError: see `choose_delay`.
    """
    if not policy.delay:
        return None
    return choose_delay(policy.delay, "prefix", policy.embodiment.executed, None, read_chunks(policy), spec)


def choose_delay(
    delay: int,
    strategy: Literal["auto"] | Strategy,
    replan: int | None,
    hold: tuple[float, ...] | None,
    chunks: Chunks,
    spec: SimulatorSpec,
) -> Delay | None:
    """Return the delay to run a policy with; None without a delay and without `replan`.

    Args:
        delay: d, control steps of an inference.
        strategy: "auto" takes "prefix" where the policy was trained to continue d actions, else "naive".
        replan: s; None for the usual one.
        hold: see `make_hold`.

    Raises:
        UserError: the policy's chunks are too short, it was not trained for the strategy, or it is unknown how the
            robot holds still.
    """
    if delay == 0 and replan is None:
        return None
    trained = chunks.prefix_trained_to
    if strategy == "prefix" and trained < delay:
        to = f"to continue up to {trained} executed actions" if trained else "without executed actions"
        remedy = f"Train it with algo.prefix={delay}, or take strategy=naive."
        message = f"strategy=prefix: this policy was trained {to}, and delay={delay}. {remedy}"
        raise UserError(message, code="policy-not-trained-for-delay")
    chosen: Strategy = ("prefix" if trained >= delay > 0 else "naive") if strategy == "auto" else strategy
    every = choose_replan(delay, chosen, chunks.executed) if replan is None else replan
    check_budget(chunks.horizon, delay, every, chosen)
    # Without a delay the robot never holds still, so any hold fits.
    still = Hold(np.zeros(spec.action_dim, np.float32), np.zeros(spec.action_dim, bool))
    whole = chunks.horizon > chunks.executed
    return Delay(delay, chosen, every, chunks.horizon, make_hold(spec, hold) if delay else still, whole)
