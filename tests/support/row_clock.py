"""Episodes of the enumerated problem through a real writer of scores; the scorer's clock counts rows."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path as Folder
from typing import Any

import numpy as np
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.scorer import Score, Scorer, ScoreRequest, ScorerError, ScorerTraits
from embodied_rl.interfaces.sim import Observation, StepResult
from embodied_rl.judge.reward.scoring_writer import ScoringOptions, ScoringWriter
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.schema import ProbesNode, RewardNode
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.support.enumeration import GAMMA, STATES, Path, walk

SPEC = FakeSimulator.spec_of(FakeSimulator.Config())
T, ROLLOUTS, START, HORIZON = 4, 3, 6, 5
OPINIONS = np.random.default_rng(7).integers(0, 257, (32, STATES)) / 256
"""What the scorer says at a decision of a state: nothing true, and exact in float32."""
TURNS = 30
"""Turns of the event loop in which every task has done what it can without another answer."""


@dataclass(eq=False)
class Call:
    """A call that the scorer has not answered: when it began and when it is due, in rows."""

    request: ScoreRequest
    begun: float
    due: float
    answered: asyncio.Event = field(default_factory=asyncio.Event)


Speed = Callable[["RowClockScorer", Call], float]
"""Returns when a call is due, from the scorer's other calls."""


class RowClockScorer(Scorer):
    """Answers when the test's clock says so.

    Args:
        speed: see `Speed`.
        answer: request → score; it may raise.
        kind: the question that it answers.
    """

    def __init__(self, speed: Speed, answer: Callable[[ScoreRequest], Score], kind: Any = "absolute") -> None:
        self.traits = ScorerTraits((kind,), "row clock", cacheable=False, frames=2 if kind == "pair" else 1)
        self.speed, self.answer, self.now, self.free = speed, answer, 0.0, 0.0
        self.running: list[Call] = []

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def score(self, requests: Sequence[ScoreRequest]) -> Sequence[Score]:
        call = Call(requests[0], self.now, 0.0)
        call.due = self.speed(self, call)
        self.running.append(call)
        try:
            await call.answered.wait()
        finally:
            self.running.remove(call)
        return [self.answer(requests[0])]

    def advance(self, rows: float) -> None:
        """Let time pass, answer what is due in between, and return when nothing more happens."""
        asyncio.run_coroutine_threadsafe(self._advance(self.now + rows), self.loop).result(60)

    async def _advance(self, until: float) -> None:
        while True:
            for _ in range(TURNS):
                await asyncio.sleep(0)
            due = [call for call in self.running if call.due <= until]
            if not due:
                break
            first = min(due, key=lambda call: call.due)
            self.now = max(self.now, first.due)
            first.answered.set()
        self.now = until


@dataclass
class Environment:
    """The episodes that an environment runs one after the other; a state after the last action is not shown."""

    paths: list[Path]
    truncated: list[bool]
    number: int = 0
    decision: int = 0

    @property
    def state(self) -> int:
        return self.paths[self.number].states[self.decision]

    def step(self) -> tuple[bool, bool, int]:
        """Return whether the episode terminated or was truncated, and its state then."""
        self.decision += 1
        path, state = self.paths[self.number], self.state
        over = self.decision == len(path.actions)
        cut = over and self.truncated[self.number] and not path.terminated
        if over:
            self.number, self.decision = self.number + 1, 0
        return over and not cut, cut, state


def observe(states: Sequence[int]) -> Observation:
    count = len(states)
    pictures = np.zeros((count, SPEC.cameras[0].height, SPEC.cameras[0].width, 3), np.uint8)
    pictures += np.array(states, np.uint8)[:, None, None, None]
    state = np.zeros((count, len(SPEC.state_names)), np.float32)
    return Observation({SPEC.cameras[0].name: pictures}, state, ("go",) * count)


def read_state(asked: ScoreRequest) -> int:
    return int(next(iter(asked.frames.values()))[-1].max())


def give_opinion(asked: ScoreRequest) -> Score:
    return Score(float(OPINIONS[asked.decision, read_state(asked)]))


def give_change(asked: ScoreRequest) -> Score:
    """Halves of what was left or reached stay exact in float32."""
    return Score(float(np.sign(OPINIONS[asked.decision, read_state(asked)] - 0.5)) / 2)


def fail_sometimes(asked: ScoreRequest) -> Score:
    if (3 * asked.episode + asked.decision + read_state(asked)) % 3 == 0:
        raise ScorerError("refused", "not this one")
    return give_opinion(asked)


OTHERS = [
    ((1, 1, 1, 1, 1, 1), 4, False), ((0, 0, 0, 0, 0), 3, True), ((1, 0, 1, 1), 6, False), ((0, 1, 0), 5, True)
]  # fmt: skip
"""Actions, start, and whether it is truncated: of the episodes before and beside the enumerated one."""


def make_environments(path: Path, truncated: bool, count: int, before: bool) -> list[Environment]:
    """The first environment runs the enumerated episode, after another one or none; the others run fixed ones."""
    fixed = [(walk(actions, start), cut) for actions, start, cut in OTHERS]
    made = []
    for number in range(count):
        turned = [*fixed[number:], *fixed[:number]] * 2
        own = [turned[3], (path, truncated)] if before else [(path, truncated)]
        listed = [*own, *turned] if number == 0 else turned
        made.append(Environment([each for each, _ in listed], [cut for _, cut in listed]))
    return made


@contextmanager
def open_writer(
    folder: Folder, scorer: Scorer, node: RewardNode, envs: int, limit_ends: bool
) -> Iterator[ScoringWriter]:
    scheme = ScoringOptions(
        node, (lambda _config, _spec: scorer, None), SPEC, T, Discount(GAMMA, "decision"), limit_ends, 1, str(folder)
    )
    writer = ScoringWriter(scheme, 0)
    try:
        writer.prepare(SPEC, envs, 1)
        yield writer
    finally:
        writer.close()


NODE = RewardNode(
    name="row clock", weight=1.0, timeout=1e6, wait_share=0.0, guard=False, probes=ProbesNode(mismatch=0.0)
)
ACTOR = RowwiseFakeActor(SPEC, executed=1)


def collect(writer: ScoringWriter, scorer: RowClockScorer, envs: list[Environment]) -> list[Rollout]:
    """Run a writer as a collector does; half of a row's time passes during inference, half in the simulator."""
    columns = torch.arange(len(envs))
    episodes = np.arange(len(envs))
    found = []
    for _ in range(ROLLOUTS):
        made = Rollout.allocate(ACTOR, T, len(envs))
        made.valid[:], made.steps[:] = True, 1
        for row in range(T):
            keys = NoiseKeys(0, episodes.copy(), np.array([each.decision for each in envs]))
            made.decision[row], made.episode[row] = torch.from_numpy(keys.decision), torch.from_numpy(keys.episode)
            seen = observe([each.state for each in envs])
            writer.write_observation(row, columns, seen, keys)
            scorer.advance(0.5)
            writer.write_decision(row, columns, None, [], seen, keys)  # type: ignore[arg-type]
            scorer.advance(0.5)
            steps = [each.step() for each in envs]
            over, cut = (np.array([each[place] for each in steps]) for place in (0, 1))
            made.terminated[row], made.truncated[row] = torch.from_numpy(over), torch.from_numpy(cut)
            ended = np.flatnonzero(over | cut)
            final = observe([steps[place][2] for place in ended]) if len(ended) else None
            none = np.zeros((len(envs), 1), np.float32)
            result = StepResult(
                none, none > 0, np.ones(len(envs), np.int64), none, none.astype(np.uint8), over, cut, seen, ended, final
            )
            writer.write_result(row, columns, result, np.arange(len(envs)))
            scorer.advance(0)
            episodes[ended] += len(envs)
        keys = NoiseKeys(0, episodes.copy(), np.array([each.decision for each in envs]))
        writer.write_last(np.arange(len(envs)), observe([each.state for each in envs]), keys)
        scorer.advance(0.25)
        writer.finish_rollout(made)
        found.append(made)
    return found


def read_shaping(rollouts: Sequence[Rollout], episode: int, taken: int, truncated: bool) -> np.ndarray:
    """The shaping of an episode; after a truncation also what it takes from the value of the final observation."""
    parts = [torch.cat([getattr(each, name) for each in rollouts]).numpy() for name in ("shaping", "potential")]
    own = torch.cat([each.episode for each in rollouts]).numpy() == episode
    shaping, potential = (part[own].astype(float)[:taken] for part in parts)
    assert len(shaping) == taken, "the rollouts hold the whole episode"
    if not truncated:
        return shaping
    return np.append(shaping, -(shaping[-1] + potential[-1]) / GAMMA)
