"""The inference part of a `FlowActor`: observations in, actions out, also after committed actions.

Shapes: `n` rows, `H` predicted and `Hx` executed actions, `D` model and `A` simulator action dimensions.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from embodied_rl.actors.backbone import Keep, keep_inputs
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.prefix_continuation import (
    check_delay,
    check_strategy,
    check_trained,
    commit,
    continue_prefix,
    read_prefix,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, Context, FlowBackbone, NoiseKeys, PolicyInput
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow.committed import Committed
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.sampler import ode_sample

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
