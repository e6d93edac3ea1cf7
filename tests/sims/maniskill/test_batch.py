"""The batch on one device, against a package's environment small enough to know by heart."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.sim import Camera, Episode, NotFinite, SimulatorSpec, Source, Task
from embodied_rl_sims.maniskill import ManiSkillConfig, batched
from embodied_rl_sims.maniskill.batch_reset import RowResetter

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


MANY_ROWS = 40


class DrawingTask:
    """A `BaseEnv` that keeps what each row has drawn; `draw` is the task's own way."""

    def __init__(self, draw: Any, rows: int = MANY_ROWS) -> None:
        self.draw, self.num_envs, self.device, self.reconfiguration_freq = draw, rows, torch.device("cpu"), 0
        self.scene, self._episode_seed = SimpleNamespace(), np.zeros(rows, np.int64)
        self._batched_episode_rng = SimpleNamespace(rngs=[np.random.RandomState() for _ in range(rows)])
        self._episode_rng: Any = None
        self.drawn, self.masks, self.resets, self.calls = {}, [], 0, 0

    def reset(self, options: dict[str, Any]) -> None:
        self.resets += 1
        self._initialize_episode(options["env_idx"], options)

    def _initialize_episode(self, rows: torch.Tensor, _: dict[str, Any]) -> None:
        self.calls += 1
        numbers = rows.tolist()
        self.masks.append(self.scene._reset_mask.nonzero()[:, 0].tolist() == numbers)
        with torch.device(self.device):
            drawn = self.draw(self, rows, len(rows))
        self.drawn |= dict(zip(numbers, np.asarray(drawn).tolist(), strict=True))


def uniform(env: DrawingTask, rows: Any, b: int) -> Any:
    """As most tasks: positions, an angle, then NumPy's noise of the joints."""
    torch.randint(0, 4, (b,))
    place = torch.zeros((b, 4))
    place[:, :2] = torch.rand((b, 2)) * 0.2 - 0.1
    place[:, 2] = torch.rand(b, device=env.device)
    place[:, 3] = torch.rand(b)
    return np.concatenate([place, env._episode_rng.normal(0, 0.02, (b, 9))], axis=1)


def normal(env: DrawingTask, rows: Any, b: int) -> Any:
    """Many numbers are drawn by another algorithm than few; and NumPy's generators are shared with those by rows."""
    states = [env._batched_episode_rng.rngs[row] for row in rows.tolist()]
    few, many, none = torch.randn((b, 3)), torch.randn(size=(b, 20), dtype=torch.float), np.zeros((b, 0))
    noise = env._episode_rng.uniform(-1, 1, size=(b, 2))
    return np.concatenate([few, many, none, noise, np.stack([state.normal(0, 1, 2) for state in states])], axis=1)


def whole(env: DrawingTask, rows: Any, b: int) -> Any:
    pairs = torch.stack([torch.randint(5, (b,)), torch.randint(2, 9, size=(b,)), torch.randint(high=99, size=(b,))], 1)
    return torch.cat([pairs.float(), torch.rand(size=(b, 1))], dim=1)


def rejected(env: DrawingTask, rows: Any, b: int) -> Any:
    """As the package's sampler of places apart from each other: drawn for all rows until the last one is content."""
    found, done = torch.zeros(b), torch.zeros(b, dtype=torch.bool)
    while not torch.all(done):
        tried = torch.rand(b)
        found = torch.where(done, found, tried)
        done |= tried > 0.7
    return torch.stack([found, torch.rand(b)], dim=1)


def unknown(env: DrawingTask, rows: Any, b: int) -> Any:
    return torch.cat([torch.rand((b, 1)), torch.normal(0.0, 1.0, (b, 2)), torch.zeros((b, 2)).uniform_(2, 3)], dim=1)


def chosen(env: DrawingTask, rows: Any, b: int) -> Any:
    return np.stack([env._episode_rng.choice(9, 3) for _ in range(b)])


def one_for_all(env: DrawingTask, rows: Any, b: int) -> Any:
    return torch.rand(3).expand(b, 3)


TOGETHER = (uniform, normal, whole)
APART = (rejected, unknown, chosen, one_for_all)


def draw_alone(draw: Any, seed: int) -> list[float]:
    """As the package's reset of a single environment: everything from one seed."""
    env, state = DrawingTask(draw, 1), np.random.RandomState(seed)
    env._episode_rng, env._batched_episode_rng.rngs[0] = state, state
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return np.asarray(draw(env, torch.tensor([0]), 1)).tolist()[0]


@pytest.mark.parametrize("draw", TOGETHER + APART)
@pytest.mark.parametrize("rows", [[7], [3, 9, 4], list(range(1, 31)), list(range(MANY_ROWS))], ids=len)
def test_each_row_draws_what_it_would_alone(draw, rows) -> None:
    env = DrawingTask(draw)
    resetter = RowResetter(env)
    before = torch.random.get_rng_state()
    for first in (100, 2**32 - MANY_ROWS):  # a second time, from generators that were used
        seeds = [first + 3 * row % MANY_ROWS for row in rows]
        env.drawn.clear()
        resetter.begin(rows, seeds)
        assert env.drawn == {row: draw_alone(draw, seed) for row, seed in zip(rows, seeds, strict=True)}
    assert torch.equal(before, torch.random.get_rng_state()), "torch's own generator was not put back"
    assert all(env.masks), "what a task sets goes to other rows than those that begin"


@pytest.mark.parametrize("draw", TOGETHER)
def test_many_rows_take_one_reset_and_make_no_generators(draw, monkeypatch) -> None:
    env = DrawingTask(draw)
    resetter = RowResetter(env)
    monkeypatch.setattr(np.random, "RandomState", None)
    monkeypatch.setattr(torch, "Generator", None)
    resetter.begin(range(30), range(30))
    assert (env.resets, env.calls) == (1, 1)
    resetter.begin(range(MANY_ROWS), range(MANY_ROWS))
    assert (env.resets, env.calls) == (2, 3), "all rows are two calls: one shape would be that of rows and of the batch"


@pytest.mark.parametrize("draw", APART)
def test_a_task_that_cannot_be_drawn_together_is_tried_once(draw) -> None:
    env = DrawingTask(draw)
    resetter = RowResetter(env)
    resetter.begin(range(20), range(20))
    env.calls = 0
    resetter.begin(range(20), range(20))
    assert (env.resets, env.calls) == (2, 20)


def test_a_scene_that_is_rebuilt_is_seeded_by_the_package() -> None:
    env = DrawingTask(uniform, 3)
    given = []
    env.reconfiguration_freq, env.reset = 1, lambda seed, options: given.append((seed, options["env_idx"].tolist()))
    RowResetter(env).begin([0, 2], [5, 6])
    assert given == [([5, 5, 5], [0]), ([6, 6, 6], [2])]
