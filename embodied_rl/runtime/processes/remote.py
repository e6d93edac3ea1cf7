"""`Simulator` interface of a simulator in a worker process, for callers that do not use futures."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import Signature, signature
from typing import Any

from embodied_rl.interfaces.sim import Array, Episode, Observation, Rendered, SimulatorSpec, StepResult
from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.runtime.processes.worker import RemoteFunction

OPTIONAL = ("expert", "bare_loop")
"""Optional methods of simulators that return a function."""


class RemoteSimulator:
    """A simulator that is called through a handle. Images are copied, so that later calls do not change them.

    Args:
        handle: of the simulator; closed with this object.
        num_envs: n.
        simulator: its class. This object has the same methods of `OPTIONAL` and `Rendered` as that class.

    Attributes:
        waited: seconds that this process waited for steps.
        busy: seconds of `waited` in which the simulator computed; the rest was transport.
    """

    def __init__(self, handle: Handle, num_envs: int, simulator: type[Any]) -> None:
        self.num_envs = num_envs
        self.waited = self.busy = 0.0
        self._handle = handle
        for name in OPTIONAL:
            if hasattr(simulator, name):
                setattr(self, name, partial(self._get_function, name, signature(getattr(simulator, name))))
        if issubclass(simulator, Rendered):
            self.render = partial(self._call, "render")
        self.spec: SimulatorSpec = handle.spec

    @property
    def render_seconds(self) -> float:
        """The seconds spent on rendering; see `embodied_rl.interfaces.sim.Timed`."""
        return float(self._call("render_seconds"))

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        return _owned(self._call("reset", list(episodes)))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        began = time.perf_counter()
        future = self._handle.submit("step", actions, list(next_episodes))
        result: StepResult = future.result()
        final = None if result.final_observation is None else _owned(result.final_observation)
        result = replace(result, observation=_owned(result.observation), final_observation=final)
        self.waited, self.busy = self.waited + time.perf_counter() - began, self.busy + future.seconds
        return result

    def snapshot(self) -> dict[str, Array]:
        return self._call("snapshot")

    def restore(self, state: dict[str, Array]) -> Observation:
        return _owned(self._call("restore", state))

    def close(self) -> None:
        self._handle.close()

    def _get_function(self, method: str, takes: Signature, *args: Any, **named: Any) -> Callable[..., Any]:
        """Call a method that returns a function, and return a proxy: the function stays in the worker."""
        positional = takes.bind(self, *args, **named).args[1:]
        function: RemoteFunction = self._call(method, *positional)
        return lambda *given: self._call("call_function", function.number, *given)

    def _call(self, method: str, *args: Any) -> Any:
        return self._handle.submit(method, *args).result()


def _owned(observation: Observation) -> Observation:
    return replace(observation, images={name: image.copy() for name, image in observation.images.items()})
