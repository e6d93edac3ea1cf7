"""Rows that begin together draw what each would draw alone, whichever way a task draws."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl_sims.maniskill.batch_reset import RowResetter

ROWS = 40


class Task:
    """A `BaseEnv` that keeps what each row has drawn; `draw` is the task's own way."""

    def __init__(self, draw: Any, rows: int = ROWS) -> None:
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


def uniform(env: Task, rows: Any, b: int) -> Any:
    """As most tasks: positions, an angle, then NumPy's noise of the joints."""
    torch.randint(0, 4, (b,))
    place = torch.zeros((b, 4))
    place[:, :2] = torch.rand((b, 2)) * 0.2 - 0.1
    place[:, 2] = torch.rand(b, device=env.device)
    place[:, 3] = torch.rand(b)
    return np.concatenate([place, env._episode_rng.normal(0, 0.02, (b, 9))], axis=1)


def normal(env: Task, rows: Any, b: int) -> Any:
    """Many numbers are drawn by another algorithm than few; and NumPy's generators are shared with those by rows."""
    states = [env._batched_episode_rng.rngs[row] for row in rows.tolist()]
    few, many, none = torch.randn((b, 3)), torch.randn(size=(b, 20), dtype=torch.float), np.zeros((b, 0))
    noise = env._episode_rng.uniform(-1, 1, size=(b, 2))
    return np.concatenate([few, many, none, noise, np.stack([state.normal(0, 1, 2) for state in states])], axis=1)


def whole(env: Task, rows: Any, b: int) -> Any:
    pairs = torch.stack([torch.randint(5, (b,)), torch.randint(2, 9, size=(b,)), torch.randint(high=99, size=(b,))], 1)
    return torch.cat([pairs.float(), torch.rand(size=(b, 1))], dim=1)


def rejected(env: Task, rows: Any, b: int) -> Any:
    """As the package's sampler of places apart from each other: drawn for all rows until the last one is content."""
    found, done = torch.zeros(b), torch.zeros(b, dtype=torch.bool)
    while not torch.all(done):
        tried = torch.rand(b)
        found = torch.where(done, found, tried)
        done |= tried > 0.7
    return torch.stack([found, torch.rand(b)], dim=1)


def unknown(env: Task, rows: Any, b: int) -> Any:
    return torch.cat([torch.rand((b, 1)), torch.normal(0.0, 1.0, (b, 2)), torch.zeros((b, 2)).uniform_(2, 3)], dim=1)


def chosen(env: Task, rows: Any, b: int) -> Any:
    return np.stack([env._episode_rng.choice(9, 3) for _ in range(b)])


def one_for_all(env: Task, rows: Any, b: int) -> Any:
    return torch.rand(3).expand(b, 3)


TOGETHER = (uniform, normal, whole)
APART = (rejected, unknown, chosen, one_for_all)


def draw_alone(draw: Any, seed: int) -> list[float]:
    """As the package's reset of a single environment: everything from one seed."""
    env, state = Task(draw, 1), np.random.RandomState(seed)
    env._episode_rng, env._batched_episode_rng.rngs[0] = state, state
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return np.asarray(draw(env, torch.tensor([0]), 1)).tolist()[0]


@pytest.mark.parametrize("draw", TOGETHER + APART)
@pytest.mark.parametrize("rows", [[7], [3, 9, 4], list(range(1, 31)), list(range(ROWS))], ids=len)
def test_each_row_draws_what_it_would_alone(draw, rows) -> None:
    env = Task(draw)
    resetter = RowResetter(env)
    before = torch.random.get_rng_state()
    for first in (100, 2**32 - ROWS):  # a second time, from generators that were used
        seeds = [first + 3 * row % ROWS for row in rows]
        env.drawn.clear()
        resetter.begin(rows, seeds)
        assert env.drawn == {row: draw_alone(draw, seed) for row, seed in zip(rows, seeds, strict=True)}
    assert torch.equal(before, torch.random.get_rng_state()), "torch's own generator was not put back"
    assert all(env.masks), "what a task sets goes to other rows than those that begin"


@pytest.mark.parametrize("draw", TOGETHER)
def test_many_rows_take_one_reset_and_make_no_generators(draw, monkeypatch) -> None:
    env = Task(draw)
    resetter = RowResetter(env)
    monkeypatch.setattr(np.random, "RandomState", None)
    monkeypatch.setattr(torch, "Generator", None)
    resetter.begin(range(30), range(30))
    assert (env.resets, env.calls) == (1, 1)
    resetter.begin(range(ROWS), range(ROWS))
    assert (env.resets, env.calls) == (2, 3), "all rows are two calls: one shape would be that of rows and of the batch"


@pytest.mark.parametrize("draw", APART)
def test_a_task_that_cannot_be_drawn_together_is_tried_once(draw) -> None:
    env = Task(draw)
    resetter = RowResetter(env)
    resetter.begin(range(20), range(20))
    env.calls = 0
    resetter.begin(range(20), range(20))
    assert (env.resets, env.calls) == (2, 20)


def test_a_scene_that_is_rebuilt_is_seeded_by_the_package() -> None:
    env = Task(uniform, 3)
    given = []
    env.reconfiguration_freq, env.reset = 1, lambda seed, options: given.append((seed, options["env_idx"].tolist()))
    RowResetter(env).begin([0, 2], [5, 6])
    assert given == [([5, 5, 5], [0]), ([6, 6, 6], [2])]
