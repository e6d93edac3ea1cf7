"""The batch on one device, against a package's environment small enough to know by heart."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.sim import Camera, Episode, NotFinite, SimulatorSpec, Source, Task
from embodied_rl_sims.maniskill import ManiSkillConfig, batched

ROWS, HORIZON = 3, 4


class Counter:
    """A `BaseEnv` of rows that add up their actions; a row's task is solved above 10 and failed below -10."""

    def __init__(self) -> None:
        self.num_envs, self.device = ROWS, torch.device("cpu")
        self.total, self.started, self.stepped = torch.zeros(ROWS), [], []
        self.picture = torch.zeros((ROWS, 2, 2, 3), dtype=torch.uint8)
        self.drawn = 0
        self.scene, self.reconfiguration_freq, self._episode_seed = SimpleNamespace(), 0, np.zeros(ROWS, np.int64)
        self._batched_episode_rng = SimpleNamespace(rngs=[np.random.RandomState() for _ in range(ROWS)])

    def reset(self, options: dict[str, Any]) -> None:
        self._initialize_episode(options["env_idx"], options)

    def _initialize_episode(self, rows: torch.Tensor, _: dict[str, Any]) -> None:
        self.total[rows] = torch.from_numpy(self._episode_seed[rows.numpy()]).float()
        self.started += zip(rows.tolist(), self._episode_seed[rows.numpy()].tolist(), strict=True)

    def step(self, action: torch.Tensor) -> tuple[Any, ...]:
        self.stepped.append(action.clone())
        self.total = self.total + action[:, 0]
        return None, self.total.clone(), None, None, self.get_info()

    def get_info(self) -> dict[str, Any]:
        return {"success": self.total > 10, "fail": self.total < -10}

    def close(self) -> None:
        pass


class CounterReader:
    def __init__(self, env: Counter, _: str) -> None:
        self.env = env

    def state(self, _: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"total": self.env.total[:, None]}, {"twice": 2 * self.env.total[:, None]}

    def pictures(self) -> dict[str, Any]:
        """Always the same memory, as on a device."""
        self.env.drawn += 1
        self.env.picture[:] = self.env.total.clamp(0, 255).byte()[:, None, None, None]
        return {"camera": self.env.picture}


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> batched.BatchedSimulator:
    monkeypatch.setattr(batched, "ObservationReader", CounterReader)
    spec = SimulatorSpec(
        cameras=(Camera("camera", 2, 2),),
        state_names=("total",),
        action_names=("add",),
        action_low=(-20.0,),
        action_high=(20.0,),
        control_hz=1.0,
        horizon=HORIZON,
        tasks=(Task("Count-v1", "count"),),
        privileged_names=("twice",),
    )
    return batched.BatchedSimulator(ManiSkillConfig(task="Count-v1"), spec, Counter())


def episode(seed: int) -> Episode:
    return Episode(seed, 0, seed)


def acts(*rows: list[float]) -> np.ndarray:
    return np.array(rows, np.float32)[..., None]


def test_each_row_starts_from_its_own_seed(simulator):
    shown = simulator.reset([episode(5), None, episode(7)])
    assert simulator.env.started == [(0, 5), (2, 7)]
    assert shown.state[:, 0].tolist() == [5, 0, 7] and shown.privileged[:, 0].tolist() == [10, 0, 14]
    assert shown.images["camera"][:, 0, 0, 0].tolist() == [5, 0, 7]
    assert shown.instruction == ("count", "", "count")


def test_a_row_that_ends_in_mid_chunk_is_held_and_its_end_is_kept(simulator):
    simulator.reset([episode(0), episode(1), episode(2)])
    result = simulator.step(acts([1, 1, 1], [1, 20, 9], [-15, 9, 9]), [episode(100), None, episode(102)])
    assert result.steps.tolist() == [3, 2, 1]
    assert result.terminated.tolist() == [False, True, True] and result.ended.tolist() == [1, 2]
    assert result.reward.tolist() == [[1, 2, 3], [2, 22, 0], [-13, 0, 0]]
    assert result.success.tolist() == [[False] * 3, [False, True, False], [False] * 3]
    assert result.source.tolist() == [[Source.POLICY] * 3, [0, 0, Source.HOLD], [0, Source.HOLD, Source.HOLD]]
    assert result.final_observation.state[:, 0].tolist() == [22, -13]
    assert result.observation.state[:, 0].tolist() == [3, 0, 102]
    assert simulator.env.stepped[2][:, 0].tolist() == [1, 0, 0], "rows that have ended are given no more actions"


def test_termination_has_no_picture_and_truncation_has_that_of_its_step(simulator):
    simulator.reset([episode(1), episode(2), None])
    simulator.step(acts([0, 0], [0, 0], [0, 0]), [None] * 3)
    result = simulator.step(acts([0, 1, 5, 5], [0, 9, 0, 0], [0] * 4), [episode(50), episode(60), None])
    assert result.truncated.tolist() == [True, False, False] and result.terminated.tolist() == [False, True, False]
    assert result.final_observation.images["camera"][:, 0, 0, 0].tolist() == [2, 0]
    assert result.observation.images["camera"][:, 0, 0, 0].tolist() == [50, 60, 0]


def test_who_asks_gets_the_picture_of_a_termination(simulator):
    simulator.reset([episode(1), replace(episode(2), final_picture=True), None])
    simulator.step(acts([0, 0], [0, 0], [0, 0]), [None] * 3)
    result = simulator.step(acts([0, 1, 5, 5], [0, 9, 0, 0], [0] * 4), [episode(50), episode(60), None])
    assert result.terminated.tolist() == [False, True, False]
    assert result.final_observation.images["camera"][1, 0, 0, 0] != 0


def test_pictures_are_copies_and_drawn_once_a_chunk(simulator):
    first = simulator.reset([episode(0), episode(0), episode(0)])
    drawn = simulator.env.drawn
    simulator.step(acts([1, 1, 1], [1, 1, 1], [1, 1, 1]), [None] * 3)
    assert simulator.env.drawn == drawn + 1
    assert not first.images["camera"].any() and first.images["camera"].dtype == torch.uint8


def test_a_state_that_is_no_number_is_refused_by_row(simulator):
    simulator.reset([episode(0), None, episode(0)])
    simulator.env.total[1] = float("nan")  # parked: nobody's affair
    simulator.step(acts([1], [1], [1]), [None] * 3)
    simulator.env.total[2] = float("nan")
    with pytest.raises(NotFinite) as caught:
        simulator.step(acts([1], [1], [1]), [None] * 3)
    assert caught.value.row == 2
