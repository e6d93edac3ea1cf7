"""Inference in another process: `PolicyWorker` runs there, `RemotePolicy` is its client in the collector.

On one device policy and learner share one module, and nothing is sent.
"""

import logging
from typing import Any

import torch
from torch import Tensor

from embodied_rl.actors.learning.weights import Weights, load_weights, publish_weights
from embodied_rl.interfaces.policy import Actor, Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation
from embodied_rl.runtime.processes.handle import Handle, WorkerDied, restart_worker

log = logging.getLogger(__name__)


class PolicyWorker:
    """An actor's `act` and `value` with the weights that were loaded last."""

    def __init__(self, actor: Actor) -> None:
        torch.set_num_threads(1)
        self.actor = actor.eval()
        self.act, self.value = actor.act, actor.value

    def close(self) -> None:
        """Do nothing, as the end of the process frees everything."""

    def load(self, weights: Weights, exploration: dict[str, float]) -> int:
        """Load weights and exploration settings between two calls, and return the version of the weights."""
        load_weights(self.actor, weights)
        self.actor.explore_with(exploration)
        self.actor.version = weights.version
        return weights.version


class RemotePolicy:
    """Client of a `PolicyWorker` behind a handle, with the same network as `actor`, which the learner changes in place.

    A worker that dies is replaced, and the call is repeated: the same weights, observation and noise keys give the same
    action, so that nothing is lost. `restarts` counts the replaced workers.
    """

    def __init__(self, handle: Handle, actor: Actor) -> None:
        self.handle, self.actor, self.restarts = handle, actor, 0
        self._complete = False

    def refresh(self) -> None:
        """Send the newest weights: all tensors to a new worker, later only trainable ones and buffers."""
        while True:
            weights = publish_weights(self.actor, self.actor.version, everything=not self._complete)
            try:
                self.handle.submit("load", weights, self.actor.exploration()).result()
                self._complete = True
                return
            except WorkerDied as death:
                self._replace(death)

    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: Array | None = None,
        committed: Array | None = None,
    ) -> Decision:
        """Choose actions in the worker; see `Actor.act`."""
        return self._call("act", observation, keys, explore, prefix, committed)

    def value(
        self, observation: Observation, keys: NoiseKeys, prefix: Array | None = None, committed: Array | None = None
    ) -> Tensor:
        """Compute values in the worker; see `Actor.value`."""
        return self._call("value", observation, keys, prefix, committed)

    def _call(self, method: str, *args: Any) -> Any:
        while True:
            try:
                return self.handle.submit(method, *args).result()
            except WorkerDied as death:
                self._replace(death)
                self.refresh()

    def _replace(self, death: WorkerDied) -> None:
        log.warning("%s\nA new worker takes over with the same weights; nothing is lost.", death)
        self._complete = False
        self.restarts += restart_worker(self.handle)
