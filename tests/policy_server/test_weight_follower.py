"""Newer weights of a run are found, loaded and swapped in; those that cannot be used change nothing."""

import dataclasses
from pathlib import Path

import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.policy_server.served import ServedPolicy, ServedWeights
from embodied_rl.policy_server.weight_follower import WeightFollower
from tests.support.policy_serving import SPEC, FakePolicy


class Run:
    """A run whose newest file a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.told, self.loaded = folder, list[str](), list[int]()
        self.newest = self.write(1)
        self.served = ServedPolicy(self.load(self.newest))
        self.follower = WeightFollower(self.served, self.newest, lambda: self.newest, self.load, self.told.append)

    def write(self, version: int) -> Path:
        file = self.folder / f"{version:08d}"
        file.write_text(str(version))
        return file

    def load(self, file: Path) -> ServedWeights:
        if not file.exists():
            raise UserError(f"There is no policy file {file}.")
        self.loaded.append(int(file.name))
        spec = SPEC if int(file.name) < 90 else dataclasses.replace(SPEC, state_names=("y", "x", "grip"))
        return ServedWeights(FakePolicy(factor=float(file.name)), spec, int(file.name))

    @property
    def version(self) -> int:
        return self.served.weights.version


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_newer_weights_are_swapped_in_once(run: Run) -> None:
    assert not run.follower.update() and run.version == 1
    run.newest = run.write(2)
    assert run.follower.update() and run.version == 2
    assert not run.follower.update() and run.loaded == [1, 2]
    assert run.told == [f"Weights are now version 2, of {run.newest}"]


def test_weights_of_another_robot_are_told_of_once_and_not_taken(run: Run) -> None:
    run.newest = run.write(90)
    assert not run.follower.update() and not run.follower.update()
    assert run.version == 1 and len(run.told) == 1 and "stay at version 1: the new weights belong" in run.told[0]
    run.newest = run.write(3)
    assert run.follower.update() and run.version == 3


def test_a_file_that_fails_in_a_way_that_nobody_foresaw_ends_no_following(run: Run) -> None:
    run.newest = run.folder / "damaged"
    run.newest.write_text("")
    assert not run.follower.update() and run.told[-1].startswith("Weights stay at version 1: ValueError: invalid")
    run.newest = run.write(3)
    assert run.follower.update() and run.version == 3


@pytest.mark.parametrize("policy", [FakePolicy(factor=float("nan")), FakePolicy(fails=0.0)], ids=["NaN", "error"])
def test_weights_that_fail_on_a_fixed_observation_are_not_taken(run: Run, policy: FakePolicy) -> None:
    run.follower._load = lambda file: ServedWeights(policy, SPEC, 2)
    run.newest = run.write(2)
    assert not run.follower.update() and not run.follower.update()
    assert run.version == 1 and len(run.told) == 1 and len(policy.calls) == 1


def test_a_run_that_is_gone_is_told_of_once(run: Run) -> None:
    there, run.newest = run.newest, run.folder / f"{5:08d}"
    assert [run.follower.update() for _ in range(3)] == [False] * 3
    assert len(run.told) == 1 and "There is no policy file" in run.told[0]
    run.write(5)
    assert run.follower.update() and run.version == 5 and len(run.told) == 2, "the same file is looked for again"
    run.newest = there.with_name(f"{7:08d}")
    assert not run.follower.update() and len(run.told) == 3


def test_it_looks_by_itself_and_ends(run: Run) -> None:
    import time

    follower = WeightFollower(run.served, run.newest, lambda: run.newest, run.load, run.told.append, period=0.01)
    with follower:
        run.newest = run.write(4)
        until = time.monotonic() + 60
        while run.version != 4 and time.monotonic() < until:
            time.sleep(0.01)
    assert run.version == 4
    assert not follower._thread.is_alive()
