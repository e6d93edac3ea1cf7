"""The inference part of a `FlowActor`: observations in, actions out, also after committed actions.

Shapes: `n` rows, `H` predicted and `Hx` executed actions, `D` model and `A` simulator action dimensions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from embodied_rl.actors.backbone import Keep, keep_inputs
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, Context, FlowBackbone, NoiseKeys, PolicyInput
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow.continuation import PlannedActions, guide_sample, replace_sample, weigh_plan
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import Velocity, ode_sample
from embodied_rl.mathematics.flow.transition import Committed

STRATEGIES = ("prefix", "replacement", "guided")
"""Ways to continue a prefix; see `Actor.infer`."""


@dataclass(frozen=True)
class GivenPrefix:
    """A checked prefix, within the simulator's limits.

    Attributes:
        actions: float32 [n, p, A] in the simulator's units.
        counts: int64 [n], number of committed actions.
    """

    actions: NDArray[np.float32]
    counts: NDArray[np.int64]

    def impose(self, chunk: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a chunk [n, H, A] that begins with the committed actions to the bit."""
        length = self.actions.shape[1]
        mask = np.arange(length) < self.counts[:, None]
        beginning = np.where(mask[..., None], self.actions, chunk[:, :length])
        return np.concatenate([beginning, chunk[:, length:]], axis=1)


def read_prefix(
    prefix: NDArray[np.float32], committed: NDArray[np.int64] | None, robot: Embodiment, rows: int, most: int
) -> GivenPrefix:
    """Check a prefix of `rows` rows and at most `most` actions, and clip it to the simulator's limits.

    Raises:
        UserError: the prefix has another shape, is longer or not finite, or `committed` does not fit.
    """
    prefix, entries = np.asarray(prefix), len(robot.action_names)
    length = prefix.shape[1] if prefix.ndim == 3 else -1
    counts = np.full(rows, length) if committed is None else np.asarray(committed)
    if prefix.shape != (rows, length, entries) or length > most:
        raise UserError(
            f"prefix has the shape {prefix.shape}; [{rows}, at most {most}, {entries}] fits.",
            code="prefix-shape-mismatch",
        )
    if counts.shape != (rows,) or counts.min(initial=0) < 0 or counts.max(initial=0) > length:
        raise UserError(
            f"committed must have for each of {rows} rows a number from 0 to {length}.", code="prefix-shape-mismatch"
        )
    if not np.isfinite(prefix).all():
        raise UserError("prefix holds NaN or infinity.", code="not-finite")
    clipped = np.clip(prefix, np.array(robot.action_low, np.float32), np.array(robot.action_high, np.float32))
    return GivenPrefix(clipped.astype(np.float32), counts.astype(np.int64))


def check_strategy(strategy: str) -> None:
    """Check that a strategy is one of `STRATEGIES`.

    Raises:
        UserError: it is not one of them.
    """
    if strategy not in STRATEGIES:
        raise UserError(f"strategy={strategy} is not one of {', '.join(STRATEGIES)}.", code="strategy-unknown")


def check_trained(given: GivenPrefix, trained_to: int) -> None:
    """Check that a policy is trained to continue the committed actions.

    Raises:
        UserError: it is trained to continue fewer.
    """
    longest = int(given.counts.max(initial=0))
    if longest > trained_to:
        trained = f"at most {trained_to} committed actions" if trained_to else "no committed actions"
        raise UserError(
            f"prefix commits {longest} actions, and this policy is trained to continue {trained} "
            f"(prefix_trained_to={trained_to}): commit fewer, train it with algo.prefix={longest}, or give "
            "strategy=replacement or guided.",
            code="policy-not-trained-for-delay",
        )


def commit(given: GivenPrefix, robot: Embodiment, state: NDArray[np.float32], chunk: tuple[int, int]) -> Committed:
    """Convert a prefix to the units of a model with chunks [H, D]; on the host.

    Relative actions become relative to `state` [n, S], that of the new observation.
    """
    known = robot.model_actions(given.actions, state, chunk[1])
    return Committed(pad(known, (0, 0, 0, chunk[0] - known.shape[1])), torch.from_numpy(given.counts))


def continue_prefix(
    velocity: Velocity,
    start: Tensor,
    denoise_steps: int,
    given: GivenPrefix,
    strategy: str,
    robot: Embodiment,
    state: NDArray[np.float32],
    trained_to: int,
) -> NDArray[np.float32]:
    """Denoise chunks float32 [n, H, A] in the simulator's units that begin with a prefix and continue it.

    Args:
        velocity: of the policy.
        start: x₁ [n, H, D].
        denoise_steps: K.
        given: the prefix. Actions beyond the committed ones come from the last chunk; strategies other than "prefix"
            stay near them, too.
        strategy: one of `STRATEGIES`.
        robot: of the actions.
        state: [n, S], of the new observation.
        trained_to: the most committed actions that the policy is trained to continue.

    Raises:
        UserError: the policy is not trained for the strategy "prefix".
    """
    known = commit(given, robot, state, (start.shape[1], start.shape[2])).to(start.device)
    if strategy == "prefix":
        check_trained(given, trained_to)
        drawn = ode_sample(velocity, start, denoise_steps, known)
    else:
        weight = weigh_plan(known.counts, given.actions.shape[1], start.shape[1])[..., None].repeat(
            1, 1, start.shape[2]
        )
        weight[..., len(robot.action_names) :] = 0
        sample = replace_sample if strategy == "replacement" else guide_sample
        drawn = sample(velocity, start, denoise_steps, PlannedActions(known.actions, weight))
    return given.impose(robot.all_actions(drawn, state))


def check_delay(delay: int, executed: int, network: FlowBackbone) -> None:
    """Check that a policy can act with a delay.

    Raises:
        UserError: the delay is negative, the chunk too short for it, or the policy is not trained for it.
    """
    horizon, trained_to = network.spec.horizon, network.prefix_trained_to
    if delay < 0:
        raise UserError(f"delay={delay} must be at least 0.", code="delay-out-of-range")
    if delay + executed > horizon:
        raise UserError(
            f"delay={delay}: {delay} committed and {executed} executed actions (policy.executed) are more than the "
            f"{horizon} of a chunk; lower one of them, or train a policy with a larger policy.horizon.",
            code="delay-too-long",
        )
    if delay > trained_to:
        raise UserError(
            f"delay={delay}: this policy is trained to continue {trained_to} committed actions (prefix_trained_to); "
            f"train it with sft algo.prefix={delay} first, or lower the delay.",
            code="policy-not-trained-for-delay",
        )


Result = TypeVar("Result")


def autocast_method(method: Callable[..., Result]) -> Callable[..., Result]:
    """Make a method of an actor compute matrix products in bfloat16 if `actor.autocast` is set (`torch.autocast`).

    Acting, values and evaluation are all wrapped: otherwise an update would start from other log-probabilities than
    its rollout.
    """

    @wraps(method)
    def cast(actor: Any, *args: Any, **kwargs: Any) -> Result:
        if not actor.autocast:
            return method(actor, *args, **kwargs)
        with torch.autocast(actor.device.type, torch.bfloat16):
            return method(actor, *args, **kwargs)

    return cast


class DeployedFlow(Actor):
    """A flow policy for inference; `FlowActor` adds learning."""

    def __init__(self, backbone: FlowBackbone, sampler: Any, embodiment: Embodiment, keep: Keep, delay: int) -> None:
        """Combine network, sampler and robot; see `FlowActor`.

        Raises:
            UserError: the policy cannot act with this delay.
        """
        super().__init__()
        self.backbone, self.sampler, self.embodiment = backbone, sampler, embodiment
        self.keep: Keep = keep
        self.delay = delay

    @property
    def network(self) -> FlowBackbone:
        return self.backbone

    @property
    def prefix_trained_to(self) -> int:
        """Return the most committed actions that the network is trained to continue; see `FlowBackbone`."""
        return self.backbone.prefix_trained_to

    @property
    def delay(self) -> int:  # type: ignore[override]
        """Return d, how many of a chunk's first actions `act` takes as committed; see `Actor`."""
        return self._delay

    @delay.setter
    def delay(self, steps: int) -> None:
        check_delay(steps, self.embodiment.executed, self.backbone)
        self._delay = steps

    @autocast_method
    @torch.no_grad()
    def infer(
        self,
        observation: Observation,
        keys: NoiseKeys | None = None,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> np.ndarray:
        """Infer actions; see `Actor.infer`."""
        check_strategy(strategy)
        robot, state, steps = self.embodiment, observation.state, self.sampler.denoise_steps
        velocity = self._velocity(self.backbone.encode(self._inputs(observation)))
        zeros = torch.zeros(len(observation), *self._chunk)
        start = (zeros if keys is None else draw_normal(keys, NoiseStream.INITIAL, self._chunk)).to(self.device)
        if prefix is None:
            chunk = robot.all_actions(ode_sample(velocity, start, steps), state)
        else:
            given = read_prefix(prefix, committed, robot, len(observation), len(start[0]))
            chunk = continue_prefix(velocity, start, steps, given, strategy, robot, state, self.prefix_trained_to)
        return chunk if whole else chunk[:, : robot.executed]

    def observation_inputs(self, observation: Observation) -> PolicyInput:
        """Convert an observation to inputs on the network's device, with images even if perception is frozen."""
        return self.embodiment.inputs(observation, self.backbone).to(self.device)

    def _inputs(self, observation: Observation) -> PolicyInput:
        return keep_inputs(self.backbone, self.observation_inputs(observation), self.keep)

    def _commit(
        self, prefix: np.ndarray | None, committed: np.ndarray | None, observation: Observation
    ) -> Committed | None:
        """Return the actions that `act` continues; None without a delay."""
        if not self.delay:
            if prefix is not None:
                raise UserError(
                    "prefix: this actor acts without a delay; set its `delay` to the prefix's length.",
                    code="prefix-without-delay",
                )
            return None
        rows, robot = len(observation), self.embodiment
        prefix = np.zeros((rows, 0, len(robot.action_names)), np.float32) if prefix is None else prefix
        given = read_prefix(prefix, committed, robot, rows, self.delay)
        check_trained(given, self.prefix_trained_to)  # which may have been loaded after the delay was set
        return commit(given, robot, observation.state, self._chunk).to(self.device)

    @property
    def _chunk(self) -> tuple[int, int]:
        """Return (H, D), the shape of a chunk in the model's units."""
        return self.backbone.spec.horizon, self.backbone.spec.action_dim

    def _velocity(self, context: Context) -> Any:
        def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            value, features = self.backbone.velocity(x, t, context)
            return value.float(), features.float()

        return velocity
