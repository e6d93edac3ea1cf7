"""A simulator whose episodes end when their seed says, and a policy that shows what it was given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.policy import Actor, Decision, NoiseKeys
from embodied_rl.interfaces.sim import Camera, Episode, Observation, SimulatorSpec, Source, StepResult, Task

HORIZON, EXECUTED = 17, 4
SPEC = SimulatorSpec(
    cameras=(Camera("front", 4, 6),),
    state_names=("clock", "last"),
    action_names=("x", "y"),
    action_low=(-1.0, -1.0),
    action_high=(1.0, 1.0),
    control_hz=10.0,
    horizon=HORIZON,
    tasks=(Task("pick red", "pick"), Task("pick blue", "pick"), Task("push red", "push"), Task("open", "open")),
    splits=("vision",),
    privileged_names=("truth",),
)


def length_of(seed: int) -> int:
    """How many control steps the episode of a seed lasts, unless the time limit is sooner: 1 … 22."""
    return 1 + seed % 22


class ClockSimulator:
    """An episode lasts `length_of(seed)` steps and then succeeds where its last action is positive; else it goes on
    to the time limit. `renders` adds a `render` method."""

    spec = SPEC

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.episode: list[Episode | None] = [None] * num_envs
        self.clock = np.zeros(num_envs, np.int64)
        self.last = np.zeros(num_envs, np.float32)
        self.started: list[int] = []

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        for row, episode in enumerate(episodes):
            self._start(row, episode)
        return self._observe()

    def step(self, actions: np.ndarray, next_episodes: Sequence[Episode | None]) -> StepResult:
        n, chunk = actions.shape[:2]
        result = StepResult(
            reward=np.full((n, chunk), 100.0, np.float32),
            success=np.zeros((n, chunk), bool),
            steps=np.zeros(n, np.int64),
            executed=np.where(np.isfinite(actions), actions, 0).astype(np.float32),
            source=np.full((n, chunk), Source.HOLD, np.uint8),
            terminated=np.zeros(n, bool),
            truncated=np.zeros(n, bool),
            observation=self._observe(),
        )
        for row in range(n):
            self._run(row, actions[row], result)
        result.ended = np.flatnonzero(result.terminated | result.truncated)
        if len(result.ended):
            result.final_observation = self._observe().select(result.ended)
        for row in result.ended:
            self._start(row, next_episodes[row])
        result.observation = self._observe()
        return result

    def close(self) -> None:
        """Nothing to release."""

    def _start(self, row: int, episode: Episode | None) -> None:
        self.episode[row], self.clock[row], self.last[row] = episode, 0, 0
        if episode is not None:
            self.started.append(episode.index)

    def _run(self, row: int, chunk: np.ndarray, result: StepResult) -> None:
        episode = self.episode[row]
        if episode is None:
            return
        for j, action in enumerate(chunk):
            self.clock[row] += 1
            self.last[row] = action[0]
            solved = self.clock[row] == length_of(episode.seed) and action[0] > 0
            result.reward[row, j], result.success[row, j] = solved, solved
            result.steps[row] += 1
            result.terminated[row] = solved
            result.truncated[row] = self.clock[row] >= HORIZON and not solved
            if result.terminated[row] or result.truncated[row]:
                # What lies beyond the end means nothing, and must reach no figure.
                result.reward[row, j + 1 :], result.success[row, j + 1 :] = 1e6, True
                result.executed[row, j + 1 :] = 1e3
                return

    def _observe(self) -> Observation:
        tasks = [0 if episode is None else episode.task for episode in self.episode]
        images = np.zeros((self.num_envs, 4, 6, 3), np.uint8)
        images[:] = (10 * self.clock).astype(np.uint8)[:, None, None, None]
        images[[episode is None for episode in self.episode]] = 255
        return Observation(
            images={"front": images},
            state=np.stack([self.clock.astype(np.float32), self.last], axis=1),
            instruction=tuple(SPEC.tasks[task].name for task in tasks),
            privileged=np.ones((self.num_envs, 1), np.float32),
        )


@dataclass
class Call:
    """What the policy was shown in one call."""

    observation: Observation
    keys: NoiseKeys
    explore: bool


@dataclass(eq=False)
class NotingActor(Actor):
    """Actions that depend on the row alone: noise key, state, image and instruction. Notes each call."""

    calls: list[Call] = field(default_factory=list)
    nan_at: int | None = None
    embodiment = SimpleNamespace(check_body=lambda body, words: None, executed=EXECUTED)
    network = SimpleNamespace(spec=SimpleNamespace(horizon=EXECUTED + 2))  # type: ignore[assignment]

    def __post_init__(self) -> None:
        super().__init__()

    def infer(self, observation: Observation, keys: NoiseKeys, *, whole: bool = False) -> np.ndarray:  # type: ignore[override]
        return self.act(observation, keys, explore=False).actions

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:  # type: ignore[override]
        self.calls.append(Call(observation, keys, explore))
        rows = [self._row(observation, keys, row) for row in range(len(observation))]
        empty = torch.zeros(len(observation))
        return Decision(np.stack(rows), {}, empty, empty, empty)

    def _row(self, observation: Observation, keys: NoiseKeys, row: int) -> np.ndarray:
        words = sum(observation.instruction[row].encode())
        picture = int(observation.images["front"][row].sum())
        clock = int(observation.state[row, 0])
        key = [keys.seed, int(keys.episode[row]), int(keys.decision[row]), words, picture, clock]
        actions = np.random.default_rng(key).uniform(-1, 1, (EXECUTED + 2, 2)).astype(np.float32)
        return actions * np.nan if int(keys.episode[row]) == self.nan_at else actions


class InlineHandle:
    """A simulator in this process behind the handle's two methods that an evaluation uses."""

    def __init__(self, simulator: ClockSimulator) -> None:
        self.simulator = simulator

    def submit(self, method: str, *arguments: object) -> "InlineHandle":
        self.answer = getattr(self.simulator, method)(*arguments)
        return self

    def result(self, timeout: float | None = None) -> object:
        return self.answer

    def restart(self) -> None:
        self.simulator = ClockSimulator(self.simulator.num_envs)


@pytest.fixture
def spec() -> SimulatorSpec:
    return SPEC


@pytest.fixture
def executed() -> int:
    return EXECUTED


@pytest.fixture
def horizon() -> int:
    return HORIZON


@pytest.fixture
def make_actor() -> type[NotingActor]:
    return NotingActor


@pytest.fixture
def make_simulator() -> type[ClockSimulator]:
    return ClockSimulator


@pytest.fixture
def make_handles() -> Callable[[int, int], list[InlineHandle]]:
    return lambda count, envs: [InlineHandle(ClockSimulator(envs)) for _ in range(count)]


@pytest.fixture
def length() -> Callable[[int], int]:
    return length_of
