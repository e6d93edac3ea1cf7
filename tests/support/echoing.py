"""Collectors whose every decision can be told from all others, and the books that must balance."""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.backbone import TensorSpec
from embodied_rl.interfaces.policy import Actor, Decision, Evaluation, NoiseKeys, Trace
from embodied_rl.interfaces.sim import Observation
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.runtime.processes.handle import WorkerDied
from tests.support.echo_simulator import HORIZON, EchoSimulator, code

EXECUTED = 2
DECISIONS = HORIZON // EXECUTED  # so that a rollout holds whole episodes, too
Pair = tuple[int, int]


class EchoActor(Actor):
    """Its actions say for which episode and decision it was asked; it refuses observations of other ones."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None):
        super().__init__()
        self.asked: list[Pair] = []
        self._meanwhile = meanwhile

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        self._meanwhile()
        pairs = np.stack([keys.episode, keys.decision], 1)
        self.asked += [(int(episode), int(decision)) for episode, decision in pairs]
        actions = np.repeat(pairs[:, None].astype(np.float32), EXECUTED, axis=1)
        nothing = torch.zeros(len(pairs), EXECUTED, 2)
        version = torch.full((len(pairs),), self.version, dtype=torch.int64)
        return Decision(actions, {"asked": torch.from_numpy(pairs)}, nothing, self.value(observation, keys), version)

    def value(self, observation: Observation, keys: NoiseKeys) -> Tensor:
        pairs = np.stack([keys.episode, keys.decision], 1)
        assert observation.state.tolist() == pairs.tolist(), "the observation is of something else"
        return torch.from_numpy(code(*pairs.T).astype(np.float32))

    def evaluate(self, trace: Trace) -> Evaluation:
        raise NotImplementedError

    def trace_spec(self) -> TensorSpec:
        return {"asked": ((2,), torch.int64)}

    def log_prob_shape(self) -> tuple[int, ...]:
        return EXECUTED, 2

    def parameter_groups(self) -> Mapping[str, list[Any]]:
        return {}


class FlakyHandle:
    """A simulator in this process that dies, before or after a call, and answers late, by a lottery."""

    def __init__(self, num_envs: int, draw: random.Random, death: float, patience: int):
        self.name, self.alive = "flaky simulator", True
        self._num_envs, self._draw, self._death, self._patience = num_envs, draw, death, patience
        self._simulator: EchoSimulator | None = EchoSimulator(num_envs)

    def submit(self, method: str, *args: Any) -> "FlakyAnswer":
        value = None
        if self._simulator is not None and self._draw.random() >= self._death:
            value = getattr(self._simulator, method)(*args)
        if self._draw.random() < self._death:
            value = None
        if value is None:
            self._simulator = None
        return FlakyAnswer(value, self._draw.randrange(self._patience))

    def restart(self) -> None:
        self._simulator = None
        if self._draw.random() < self._death:
            raise WorkerDied("it died at once")
        self._simulator = EchoSimulator(self._num_envs)

    def memory(self) -> int:
        return 0


@dataclass
class FlakyAnswer:
    """Says that it is there after having been asked some times."""

    value: Any
    patience: int
    began: float = 0.0
    seconds: float = 0.0

    def done(self) -> bool:
        self.patience -= 1
        return self.patience < 0

    def wait_on(self) -> tuple[None, float]:
        return None, 0.0

    def result(self, timeout: float | None = None) -> Any:
        if self.value is None:
            raise WorkerDied("it is gone")
        return self.value


@dataclass
class Books:
    """What some rollouts of N environments said, and what must follow from it."""

    num_envs: int
    fresh: bool
    decided: Counter[Pair] = field(default_factory=Counter)
    latest: dict[int, Pair] = field(default_factory=dict)
    steps: Counter[int] = field(default_factory=Counter)
    finished: dict[int, int] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)

    def add(self, rollout: Rollout) -> None:
        """Of one `collect`, before which the trace was filled with -1."""
        asked = rollout.trace["asked"]
        there = asked[..., 0] >= 0
        assert self.fresh or there.all()
        assert not rollout.valid[~there].any()
        for column in range(self.num_envs):
            rows = [row for row in range(rollout.decisions) if there[row, column]]
            self._follow(column, [(int(asked[row, column, 0]), int(asked[row, column, 1])) for row in rows])
            self._rows(rollout, column, rows)
        for record in rollout.finished:
            assert record.index not in self.finished, "finished twice"
            self.finished[record.index] = record.steps
            assert record.steps == self.steps[record.index]
        self._check_validity(rollout, there)

    def _follow(self, column: int, pairs: Sequence[Pair]) -> None:
        """Decisions of an environment follow each other, and its episodes, too."""
        for position, (episode, decision) in enumerate(pairs):
            last = self.latest.get(column)
            expected = [(column, 0)] if last is None else [(last[0], last[1] + 1), (last[0] + self.num_envs, 0)]
            if self.fresh and last is not None:
                expected = [expected[position == 0]]
            assert (episode, decision) in expected
            self.decided[episode, decision] += 1
            self.latest[column] = (episode, decision)

    def _rows(self, rollout: Rollout, column: int, rows: Sequence[int]) -> None:
        """Each row holds one decision: what was asked, what was executed, what it was worth."""
        for row in rows:
            episode, decision = rollout.trace["asked"][row, column].tolist()
            said = float(code(np.array(episode), np.array(decision)))
            assert rollout.episode[row, column] == episode and rollout.value[row, column] == said
            steps = int(rollout.steps[row, column])
            assert set(rollout.reward[row, column, :steps].tolist()) <= {said}
            if rollout.truncated[row, column]:
                assert rollout.final_value[row, column] == said + 1
            if rollout.valid[row, column]:
                assert steps > 0
                self.steps[episode] += steps

    def _check_validity(self, rollout: Rollout, there: Tensor) -> None:
        """Exactly the rows of episodes that were lost in this rollout are invalid, and of those that nobody ran."""
        ended = (rollout.terminated | rollout.truncated) & rollout.valid
        assert sorted(record.index for record in rollout.finished) == sorted(rollout.episode[ended].tolist())
        lost = set(rollout.episode[there & ~rollout.valid].tolist())
        assert not lost & (set(self.finished) | self.lost)
        for index in lost:
            assert not rollout.valid[there & (rollout.episode == index)].any()
        self.lost |= lost

    def balance(self, collector: Collector, actor: EchoActor) -> None:
        """Every episode that was ever started is finished, lost or still running, and only one of the three."""
        assert max(self.decided.values()) == 1 and Counter(actor.asked) == self.decided
        started = {episode for episode, _ in self.decided}
        running = started - set(self.finished) - self.lost
        assert running <= {episode for episode, _ in self.latest.values()}
        assert not (self.fresh and running)
        assert collector.lost_episodes == len(self.lost)
        assert not set(self.finished) & self.lost and set(self.finished) | self.lost <= started
        for column in range(self.num_envs):
            count = len([index for index in started if index % self.num_envs == column])
            assert {index for index in started if index % self.num_envs == column} == set(
                range(column, column + count * self.num_envs, self.num_envs)
            )
