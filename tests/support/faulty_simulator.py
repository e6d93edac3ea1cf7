"""Simulators that worker processes of the tests import and that go wrong."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult
from embodied_rl.testing.fake_simulator import FakeSimulator


class Crash(FakeSimulator):
    """Leaves the process instead of being built."""

    def __init__(self, num_envs: int):
        print("the disk is on fire", file=sys.stderr)
        sys.exit(3)


class FailFirst(FakeSimulator):
    """Leaves the process the first two times it is built; counts in a file."""

    def __init__(self, num_envs: int, count: Path):
        tries = int(count.read_text()) if count.exists() else 0
        count.write_text(str(tries + 1))
        if tries < 2:
            sys.exit(1)
        super().__init__(num_envs)


class WrongImage(FakeSimulator):
    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        return replace(super().reset(episodes), images={"top": np.zeros((2, 4, 4, 3), np.uint8)})


class NoImage(FakeSimulator):
    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        return replace(super().reset(episodes), images={})


class WaitForFile(FakeSimulator):
    """Is built once a file is there."""

    def __init__(self, num_envs: int, gate: Path):
        print("waiting for the licence server", file=sys.stderr, flush=True)
        while not gate.exists():
            time.sleep(0.01)
        super().__init__(num_envs)


CHANGES: dict[str, Any] = {
    "none": lambda _: None,
    "column": lambda array: np.ravel(array)[: len(array), None],
    "double": lambda array: array.astype(np.float64),
    "objects": lambda array: array.astype(object),
    "fewer": lambda rows: rows[:-1],
    "texts": lambda _: ("", "", "", ""),
    "list": lambda _: ["dropped"],
    "numbers": lambda _: (0, 1, 2),
    "pairs": lambda _: ((), ((2, 40), (1, 3)), ()),
    "pairs of floats": lambda _: ((), ((2, 0.5),), ()),
    "another source": lambda _: ((), ((7, 40),), ()),
    "more": lambda observation: observation and observation.select([0, *range(len(observation))]),
}


class Changed(FakeSimulator):
    """Changes one part of what one of its methods returns, as `CHANGES` says."""

    def __init__(self, num_envs: int, method: str, part: str, change: str, config: Any = None):
        super().__init__(num_envs, config)
        self._method, self._part, self._change = method, part, CHANGES[change]

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        return self._changed("reset", super().reset(episodes))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        return self._changed("step", super().step(actions, next_episodes))

    def restore(self, state: dict[str, Array]) -> Observation:
        return self._changed("restore", super().restore(state))

    def snapshot(self) -> dict[str, Array]:
        return self._changed("snapshot", super().snapshot())

    def _changed(self, method: str, answer: Any) -> Any:
        if method != self._method:
            return answer
        if isinstance(answer, dict):
            return answer | {self._part: self._change(answer[self._part])}
        return replace(answer, **{self._part: self._change(getattr(answer, self._part))})
