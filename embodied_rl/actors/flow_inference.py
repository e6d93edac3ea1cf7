"""The inference part of a `FlowActor`: observations in, actions out, also after committed actions.

Shapes: `n` rows, `H` predicted and `Hx` executed actions, `D` model and `A` simulator action dimensions, `p` actions of
a prefix.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.network_actor import Keep, NetworkActor, autocast_method
from embodied_rl.actors.start_noise import StartNoise
from embodied_rl.interfaces.backbone import Context, FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow.continuation import PlannedActions, guide_sample, replace_sample, weigh_plan
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl.mathematics.flow.transition import Committed

STRATEGIES = ("prefix", "replacement", "guided")
"""Ways to continue a prefix; see `Actor.infer`."""


class DeployedFlow(NetworkActor):
    """A flow policy for inference; `FlowActor` adds learning."""

    backbone: FlowBackbone
    random_deployed = True

    def __init__(
        self,
        backbone: FlowBackbone,
        sampler: Any,
        embodiment: Embodiment,
        keep: Keep,
        delay: int,
        start_noise: StartNoise | None = None,
    ) -> None:
        """Combine network, sampler, robot and, where it is learned, the policy over start noise; see `FlowActor`.

        Raises:
            UserError: the policy cannot act with this delay.
        """
        super().__init__(backbone, embodiment, keep)
        self.sampler, self.start_noise = sampler, start_noise
        self.delay = delay

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
        executed, horizon = self.embodiment.executed, self.backbone.spec.horizon
        if steps < 0:
            raise UserError(f"delay={steps} must be at least 0.", code="delay-out-of-range")
        if steps + executed > horizon:
            raise UserError(
                f"delay={steps}: {steps} committed and {executed} executed actions (policy.executed) are more than the "
                f"{horizon} of a chunk; lower one of them, or train a policy with a larger policy.horizon.",
                code="delay-too-long",
            )
        if steps > self.prefix_trained_to:
            raise UserError(
                f"delay={steps}: this policy is trained to continue {self.prefix_trained_to} committed actions "
                f"(prefix_trained_to); train it with sft algo.prefix={steps} first, or lower the delay.",
                code="policy-not-trained-for-delay",
            )
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
        if strategy not in STRATEGIES:
            raise UserError(f"strategy={strategy} is not one of {', '.join(STRATEGIES)}.", code="strategy-unknown")
        robot, state, steps = self.embodiment, observation.state, self.sampler.denoise_steps
        context = None if self.start_noise is None else self.backbone.encode(self._inputs(observation))
        velocity = self._deployed_velocity(observation, context)
        start = self._find_start(len(observation), context, keys)
        if prefix is None:
            chunk = robot.all_actions(ode_sample(velocity, start, steps), state)
            return chunk if whole else chunk[:, : robot.executed]
        given, known = self._read_prefix(prefix, committed, observation, start.shape[1], strategy == "prefix")
        length = given.shape[1]
        if strategy == "prefix":
            drawn = ode_sample(velocity, start, steps, known)
        else:  # near the actions beyond the committed ones, too, which come from the last chunk
            weight = weigh_plan(known.counts, length, start.shape[1])[..., None].repeat(1, 1, start.shape[2])
            weight[..., len(robot.action_names) :] = 0
            sample = replace_sample if strategy == "replacement" else guide_sample
            drawn = sample(velocity, start, steps, PlannedActions(known.actions, weight))
        chunk = robot.all_actions(drawn, state)
        held = np.arange(length) < known.counts.cpu().numpy()[:, None]
        chunk[:, :length] = np.where(held[..., None], given, chunk[:, :length])
        return chunk if whole else chunk[:, : robot.executed]

    @autocast_method
    @torch.no_grad()
    def denoise(self, context: Context, start: Tensor) -> Tensor:
        """Integrate the deterministic flow from x₁ to actions, float32 [n, H, D] each in the model's units."""
        return ode_sample(self._velocity(context), start, self.sampler.denoise_steps)

    def _find_start(self, rows: int, context: Context | None, keys: NoiseKeys | None) -> Tensor:
        """Return x₁ [n, H, D] of the deployed policy: its start-noise policy's, or else drawn; 0 without keys."""
        if self.start_noise is not None and context is not None:
            return self.start_noise.expand(self.start_noise.find_centre(context.pooled))
        zeros = torch.zeros(rows, *self._chunk)
        return (zeros if keys is None else draw_normal(keys, NoiseStream.INITIAL, self._chunk)).to(self.device)

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
        prefix = np.zeros((len(observation), 0, len(self.embodiment.action_names))) if prefix is None else prefix
        return self._read_prefix(prefix, committed, observation, self.delay, True)[1]

    def _read_prefix(
        self, prefix: np.ndarray, committed: np.ndarray | None, observation: Observation, most: int, must_know: bool
    ) -> tuple[NDArray[np.float32], Committed]:
        """Check a prefix [n, p, A] in the simulator's units, `committed` int64 [n] actions of it given (None: all).

        Args:
            observation: the new one; relative actions become relative to its state.
            most: upper bound of p.
            must_know: whether the policy must be trained to continue as many.

        Returns:
            The prefix, clipped to the simulator's limits, and the committed actions in the model's units.

        Raises:
            UserError: the prefix is too long or does not fit, or the policy is not trained for it.
        """
        robot, rows, prefix = self.embodiment, len(observation), np.asarray(prefix)
        length = prefix.shape[1] if prefix.ndim == 3 else -1
        counts = np.full(rows, length) if committed is None else np.asarray(committed)
        if prefix.shape != (rows, length, len(robot.action_names)) or length > most:
            raise UserError(
                f"prefix has the shape {prefix.shape}; [{rows}, at most {most}, {len(robot.action_names)}] fits.",
                code="prefix-shape-mismatch",
            )
        if counts.shape != (rows,) or counts.min(initial=0) < 0 or counts.max(initial=0) > length:
            raise UserError(
                f"committed must have for each of {rows} rows a number from 0 to {length}.",
                code="prefix-shape-mismatch",
            )
        if not np.isfinite(prefix).all():
            raise UserError("prefix holds NaN or infinity.", code="not-finite")
        longest, trained_to = int(counts.max(initial=0)), self.prefix_trained_to
        if must_know and longest > trained_to:
            trained = f"at most {trained_to} committed actions" if trained_to else "no committed actions"
            raise UserError(
                f"prefix commits {longest} actions, and this policy is trained to continue {trained} "
                f"(prefix_trained_to={trained_to}): commit fewer, train it with algo.prefix={longest}, or give "
                "strategy=replacement or guided.",
                code="policy-not-trained-for-delay",
            )
        low, high = np.array(robot.action_low, np.float32), np.array(robot.action_high, np.float32)
        clipped = np.clip(prefix, low, high).astype(np.float32)
        actions = pad(
            robot.model_actions(clipped, observation.state, self._chunk[1]), (0, 0, 0, self._chunk[0] - length)
        )
        return clipped, Committed(actions, torch.from_numpy(counts.astype(np.int64))).to(self.device)

    @property
    def _chunk(self) -> tuple[int, int]:
        """Return (H, D), the shape of a chunk in the model's units."""
        return self.backbone.spec.horizon, self.backbone.spec.action_dim

    def _deployed_velocity(self, observation: Observation, context: Context | None = None) -> Any:
        """Return the velocity v_null + w (v_condition - v_null) with the embodiment's guidance w.

        Without a condition, or with w = 1 or 0, it is that of one encoding, to the bit. `context` is the encoding under
        the condition, if it is known.
        """
        weight = self.embodiment.guidance
        if weight == 0:
            return self._velocity(self.backbone.encode(self._inputs(observation, "")))
        conditioned = self._velocity(self.backbone.encode(self._inputs(observation)) if context is None else context)
        if weight == 1:
            return conditioned
        plain = self._velocity(self.backbone.encode(self._inputs(observation, "")))

        def guided(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            without, (value, features) = plain(x, t)[0], conditioned(x, t)
            return without + weight * (value - without), features

        return guided

    def _velocity(self, context: Context) -> Any:
        def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            value, features = self.backbone.velocity(x, t, context)
            return value.float(), features.float()

        return velocity
