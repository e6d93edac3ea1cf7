"""Which initial state an episode starts from, when it ends and who operates it, without the simulator's package."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl_sims.libero import Libero, LiberoConfig, package
from embodied_rl_sims.libero.environment import LiberoEnvironment

STATES = 10.0 + np.arange(50)[:, None]


class Room:
    """A scene whose goal holds from its third control step on."""

    def begin(self, seed: int, state: Array) -> None:
        self.began, self.steps = (seed, float(state[0])), 0

    def step(self, action: Array) -> tuple[float, bool]:
        self.steps += 1
        return 0.5, self.steps >= 3


def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **options: Any) -> tuple[LiberoEnvironment, Room]:
    monkeypatch.setattr(package, "read_initial_states", lambda path: STATES)
    (tmp_path / "task.bddl").write_text("(:obj_of_interest a_1)")
    room, problem = Room(), package.Problem("task", "do it", tmp_path / "task.bddl", tmp_path / "none")
    scenes: Any = SimpleNamespace(take=lambda task: room)
    return LiberoEnvironment(scenes, (problem,), LiberoConfig(**options), slots=1), room


def test_a_number_is_that_initial_state_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subject, room = environment(monkeypatch, tmp_path)
    for number in range(50):
        subject.begin(Episode(0, 0, 7, initial_state=number))
        assert room.began == (7, 10.0 + number)


@pytest.mark.parametrize("number", [-1, 50])
def test_another_number_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int) -> None:
    subject, _ = environment(monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=f"'task' has initial states 0 to 49, and no {number}"):
        subject.begin(Episode(0, 0, 7, initial_state=number))


def test_without_a_number_the_seed_draws_any_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    subject, room = environment(monkeypatch, tmp_path)
    drawn = {}
    for seed in [*range(600), 2**40]:
        subject.begin(Episode(0, 0, seed))
        drawn[seed] = room.began[1]
    assert set(drawn.values()) == set(STATES[:, 0])
    for seed in (599, 2**40, 0):
        subject.begin(Episode(9, 0, seed))
        assert room.began == (seed, drawn[seed]), "it follows from the seed alone"


@pytest.mark.parametrize(("ends", "terminated"), [(True, [False, False, True]), (False, [False, False, False])])
def test_success_ends_an_episode_if_it_is_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ends: bool, terminated: list[bool]
) -> None:
    subject, _ = environment(monkeypatch, tmp_path, terminate_on_success=ends)
    subject.begin(Episode(0, 0, 1, initial_state=0))
    outcomes = [subject.step(np.zeros(7, np.float32)) for _ in range(3)]
    assert [outcome.success for outcome in outcomes] == [False, False, True]
    assert [outcome.terminated for outcome in outcomes] == terminated


@pytest.mark.parametrize(("suite", "faulty"), [("libero_spatial", False), ("libero_object", True)])
def test_other_suites_and_faults_have_no_operator(suite: Any, faulty: bool) -> None:
    simulator: Any = SimpleNamespace(config=LiberoConfig(suite=suite))
    with pytest.raises(ValueError, match=rf"sim\.suite={suite}: .* is for libero_object, and has no faults"):
        Libero.expert(simulator, faulty)
