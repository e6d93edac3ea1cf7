"""What tests of the tabletop on MuJoCo Warp share: simulators in a worker of its environment."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.runtime.processes.local import ProcessHandle
from tests.support.environments import python_of

SMALL = 8
"""Pixels on each side where a test does not look at pictures."""


class Guest:
    """One of the simulators in the worker; implements `embodied_rl.interfaces.sim.Simulator`."""

    def __init__(self, host: ProcessHandle, making: str, num_envs: int, *args: Any) -> None:
        self._host, self.num_envs = host, num_envs
        self._number, self.spec = host.submit(making, num_envs, *args).result()

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        return self._call("reset", list(episodes))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        return self._call("step", actions, list(next_episodes))

    def snapshot(self) -> dict[str, Array]:
        return self._call("snapshot")

    def restore(self, state: dict[str, Array]) -> Observation:
        return self._call("restore", state)

    def render(self, row: int, width: int, height: int) -> Array:
        return self._call("render", row, width, height)

    def close(self) -> None:
        self._call("close")

    def bare_loop(self, actions: Array) -> Callable[[], list[Array]]:
        """What it calls gives the joints' positions [n, 32] as of each picture."""
        number = self._host.submit("bare", self._number, actions).result()
        return lambda: self._host.submit("act", number).result()[0]

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        number = self._host.submit("operate", self._number, faulty).result()
        return lambda: self._host.submit("act", number).result()[0]

    def _call(self, method: str, *args: Any) -> Any:
        return self._host.submit("call", self._number, method, args).result()[0]


Make = Callable[..., Guest]


@pytest.fixture(scope="session")
def host() -> Iterator[ProcessHandle]:
    """The worker. Kernels stay compiled beside its environment: from the second session on, it starts in seconds."""
    python = python_of("tabletop_warp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARP_CACHE_PATH", str(python.parents[1] / "kernels"))
        packages = ("tests", "embodied_rl_sims")
        handle = ProcessHandle(
            "tests.support.warp_host:Several",
            {},
            call_timeout=290,
            interpreter=Interpreter.find(str(python)),
            packages=packages,
        )
        handle.submit("make", 1, {"image_size": SMALL, "device": "cpu"}).result()  # the environment is read by now
    yield handle
    handle.close()


@pytest.fixture(scope="session", params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def make(host: ProcessHandle, request: pytest.FixtureRequest) -> Make:
    """Builds simulators with small pictures: `make(num_envs, **settings)`."""
    plain = {"image_size": SMALL, "device": request.param}
    return lambda num_envs=1, **settings: Guest(host, "make", num_envs, plain | settings)


@pytest.fixture
def cramped(host: ProcessHandle) -> Callable[[int], Observation]:
    """Resets so many environments that have room for a few contacts only."""

    def reset(num_envs: int) -> Observation:
        tabletop = Guest(host, "make_cramped", num_envs)
        tabletop.reset([Episode(row, row, row) for row in range(num_envs)])
        return tabletop.step(np.zeros((num_envs, 1, 4), np.float32), [None] * num_envs).observation

    return reset
