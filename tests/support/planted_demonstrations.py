"""Demonstrations of the tabletop in which something went wrong, on purpose, and good ones of the same scenes."""

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from embodied_rl.actors.scripted import OperatorPolicy
from embodied_rl.commands.collect import AT_ONCE, collect_episodes
from embodied_rl.datasets.record import Record
from embodied_rl.evaluate.protocol import enumerate_episodes
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation, Operated, SimulatorSpec, StepResult
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode, split_into_batches
from embodied_rl.runtime.processes.local import wrap_simulator
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode

TABLETOP = SimNode("tabletop")
HEIGHT, WIDTH = 2, 3
"""Entries of the state."""
STOPS_AT = 4
"""Control step at which a hesitant operator stops."""
HELD, LIFTED = (0.03, 0.045), 0.05
"""Metres between the fingers that hold an object; height of the tool from which it falls."""


class Butterfingers:
    """An operator that opens the gripper for good once it has lifted something."""

    def __init__(self, operator: OperatorPolicy) -> None:
        self._operator, self._dropped = operator, set[int]()

    def infer(self, observation: Observation, keys: NoiseKeys) -> Array:
        actions = self._operator.infer(observation, keys).copy()
        width, height = observation.state[:, WIDTH], observation.state[:, HEIGHT]
        lifted = (HELD[0] < width) & (width < HELD[1]) & (height > LIFTED)
        self._dropped |= set(keys.episode[lifted].tolist())
        fallen = [row for row, episode in enumerate(keys.episode) if int(episode) in self._dropped]
        actions[fallen] = [0, 0, 0.02, 1]
        return actions


def record(count: int, task: str | None = None, drops: bool = False, seed: int = 3) -> list[Record]:
    """Let the careful operator run so many episodes; some of them drop what they hold."""
    kind = SimulatorKind.find(TABLETOP)
    simulator = kind.build(AT_ONCE)
    assert isinstance(simulator, Operated)
    episodes = enumerate_episodes(kind.spec, "eval", count, task=task, seed=seed)
    actor = OperatorPolicy(simulator.expert(), lambda index: [e.index for e in episodes].index(index) % AT_ONCE)
    found = list(collect_episodes(Butterfingers(actor) if drops else actor, simulator, episodes, seed))
    simulator.close()
    return found


@cache
def good_records() -> tuple[Record, ...]:
    """Successes of every task."""
    return tuple(each for each in record(60) if any(each.success))


@cache
def dropped_records() -> tuple[Record, ...]:
    """Picks and puts that end with the object on the table."""
    both = [*record(14, "pick", drops=True), *record(14, "put", drops=True)]
    return tuple(each for each in both if not any(each.success))


def rearrange(record: Record, order: Callable[[int], Array]) -> Record:
    """Return a record with its control steps in another order."""
    places = order(len(record.actions)).tolist()
    taken = ([each[p] for p in places] for each in (record.observations, record.actions, record.reward, record.success))
    return Record(record.episode, record.instruction, *taken, source=[record.source[p] for p in places])


def play_backwards(record: Record) -> Record:
    """What was done is undone."""
    return rearrange(record, lambda count: np.arange(count)[::-1])


def stand_still(record: Record) -> Record:
    """After a third of the way nothing happens any more."""
    return rearrange(record, lambda count: np.minimum(np.arange(count), max(1, count // 3 - 1)))


def make_spec() -> SimulatorSpec:
    """Of the tabletop whose episodes these are."""
    return SimulatorKind.find(TABLETOP).spec


class Hesitant(Observer):
    """An operator that stops for a while in the middle, watched with the true progress."""

    def __init__(self, operator: OperatorPolicy, pause: int) -> None:
        self._operator, self._pause = operator, pause
        self.seen: dict[int, list[tuple[Array, float]]] = {}

    def infer(self, observation: Observation, keys: NoiseKeys) -> Array:
        actions = self._operator.infer(observation, keys).copy()
        waits = (keys.decision >= STOPS_AT) & (keys.decision < STOPS_AT + self._pause)
        actions[waits, :, :-1] = 0  # the gripper stays what it is told
        return actions

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        assert before.progress is not None
        for each in running:
            row = before.state[each.row].copy(), float(before.progress[each.row])
            self.seen.setdefault(each.episode.index, []).append(row)


def record_with_progress(count: int, pause: int) -> list[tuple[Array, Array]]:
    """Let so many operators stop for a while; return the states [T, S] and the true progress [T] of each."""
    kind = SimulatorKind.find(SimNode("tabletop", options={"progress": True, "image_size": 8}))
    simulator = kind.build(AT_ONCE)
    assert isinstance(simulator, Operated)
    episodes = enumerate_episodes(kind.spec, "eval", count, task=None, seed=5)
    operator = Hesitant(OperatorPolicy(simulator.expert(), lambda index: index % AT_ONCE), pause)
    for batch in split_into_batches(episodes, AT_ONCE):
        EpisodeRunner(operator, kind.spec, 0).run([wrap_simulator(simulator)], AT_ONCE, batch, operator)
    simulator.close()
    pairs = (zip(*rows, strict=True) for rows in operator.seen.values())
    return [(np.stack(state), np.array(progress)) for state, progress in pairs]
