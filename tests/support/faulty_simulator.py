"""Simulators that worker processes of the tests import and that go wrong."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from embodied_rl.interfaces.sim import Episode, Observation
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
