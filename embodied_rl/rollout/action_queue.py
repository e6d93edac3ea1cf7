"""Queue of committed actions for rollouts under an inference delay of d control steps.

During an inference the robot executes the actions chosen before, or holds still at the start of an episode. So each
environment has a queue of d actions, to which decisions append. `embodied_rl.deployment.execution.executor` does the
same with strategy "prefix" at a constant delay; a collector needs no clock for it, and its queue can be saved.

Shapes: T decisions, N environments, n of one call, Hx executed actions of a chunk, A action dimensions.
"""

from collections.abc import Mapping

import numpy as np

from embodied_rl.deployment.execution.executor import make_hold
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, SimulatorSpec


class ActionQueue:
    """The actions that N environments will execute during the next inference of d = `delay` control steps; 0 for none.

    Raises:
        UserError: it is unknown how the robot holds still.
    """

    def __init__(self, spec: SimulatorSpec, num_envs: int, delay: int) -> None:
        self._hold = make_hold(spec).choose(None) if delay else np.zeros(spec.action_dim, np.float32)
        self._actions = np.zeros((num_envs, delay, spec.action_dim), np.float32)
        self._chosen = np.zeros(num_envs, bool)
        self.reset(np.arange(num_envs))

    def reset(self, columns: Array) -> None:
        """Let the environments hold still for their first inference, because a new episode begins."""
        self._actions[columns], self._chosen[columns] = self._hold, False

    def read(self, columns: Array) -> dict[str, Array]:
        """Return the actions that n environments will execute, as arguments of `Actor.act` and `Actor.value`.

        "prefix" is float32 [n, d, A] in the simulator's units, "committed" int64 [n] how many of them the policy chose:
        d, or 0 if the robot holds still. Without a delay there is neither.
        """
        delay = self._actions.shape[1]
        if not delay:
            return {}
        committed = np.where(self._chosen[columns], delay, 0).astype(np.int64)
        return {"prefix": self._actions[columns], "committed": committed}

    def push(self, columns: Array, chosen: Array) -> Array:
        """Append chosen actions, float32 [n, Hx, A], and return the next Hx actions to execute."""
        line = np.concatenate([self._actions[columns], chosen], axis=1)
        steps = chosen.shape[1]
        self._actions[columns], self._chosen[columns] = line[:, steps:], True
        return line[:, :steps]

    def state(self) -> dict[str, Array]:
        """Return copies of the arrays that `load` needs; none without a delay."""
        if not self._actions.shape[1]:
            return {}
        return {"plan/actions": self._actions.copy(), "plan/chosen": self._chosen.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`.

        Raises:
            UserError: it is of another delay or number of environments.
        """
        if not self._actions.shape[1]:
            return
        saved = state.get("plan/actions")
        if saved is None or saved.shape != self._actions.shape:
            found = "none" if saved is None else list(saved.shape)
            message = f"the saved collector has plans {found}, this one {list(self._actions.shape)}"
            raise UserError(message, code="checkpoint-state-mismatch")
        self._actions[:], self._chosen[:] = saved, state["plan/chosen"]


def check_rollout_delay(delay: int, executed: int | None, spec: SimulatorSpec, waits: object = None) -> None:
    """Check that rollouts can be collected with a delay (`policy.delay`).

    `executed` is `policy.executed` (None: the delay), `waits` the simulator's own `inference_delay`, if it has one.

    Raises:
        UserError: an inference would last longer than its chunk, the simulator waits itself, or the hold is unknown.
    """
    if not delay:
        return
    if executed is not None and executed < delay:
        raise UserError(
            f"policy.delay={delay}: the next inference begins after policy.executed={executed} control steps, before "
            f"this one is done. Give policy.executed={delay} or more.",
            code="delay-too-long",
        )
    if isinstance(waits, list | tuple) and any(waits):
        raise UserError(
            f"policy.delay={delay}: sim.inference_delay={list(waits)} already lets the robot wait. Add "
            "sim.inference_delay=[0,0], or drop policy.delay.",
            code="delay-twice",
        )
    make_hold(spec)
