"""Collecting while a curriculum changes the draw between rollouts: what runs stays what it is, also when resumed."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from embodied_rl.interfaces.curriculum import Curriculum, EpisodeRecord
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import FakeSimulator
from tests.support.collecting import CONFIG, SEED, SPEC, N, T, assert_equal, copied, half_skilled

KINDS = {"carried over": (False, 1), "groups carried over": (False, 2), "whole groups": (True, 2)}


class Turns(Curriculum):
    """One task in even rollouts, the other in odd ones."""

    def __init__(self) -> None:
        self.rollouts = 0

    def weights(self) -> Array:
        return np.eye(2)[self.rollouts % 2]

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        self.rollouts += 1

    def state(self) -> dict[str, Array]:
        return {"rollouts": np.array(self.rollouts)}

    def load(self, state: Mapping[str, Array]) -> None:
        self.rollouts = int(state["rollouts"])


class Watched(FakeSimulator):
    """Remembers which episode each row runs, and lists what is run and what is started."""

    def __init__(self, num_envs: int):
        self.running: list[Episode | None] = [None] * num_envs
        self.ran: list[list[Episode | None]] = []
        self.started: list[Episode] = []
        super().__init__(num_envs, CONFIG)

    def step(self, actions, next_episodes):
        self.ran.append(list(self.running))
        return super().step(actions, next_episodes)

    def _start(self, row: int, episode: Episode | None) -> None:
        super()._start(row, episode)
        self.running[row] = episode
        self.started += [episode] if episode else []


class Run:
    """A collector of two slices with a curriculum that is updated after each rollout."""

    def __init__(self, fresh: bool, group_size: int) -> None:
        self.simulators, self.actor = [Watched(N // 2) for _ in range(2)], half_skilled()
        self.sampler = EpisodeSampler(SPEC, SEED, group_size=group_size, curriculum=Turns())
        handles = [InlineHandle(lambda simulator=simulator: simulator) for simulator in self.simulators]
        rollout = Rollout.allocate(self.actor, T, N)
        self.collector = Collector(handles, SPEC, N // 2, self.sampler, rollout, SEED, fresh=fresh)

    def collect(self) -> Rollout:
        for simulator in self.simulators:
            simulator.ran, simulator.started = [], []
        return self.collector.collect(self.actor)

    def learn(self) -> None:
        self.sampler.update(self.collector.rollout.finished)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollout_records_the_episodes_that_the_simulator_started(kind: str) -> None:
    run = Run(*KINDS[kind])
    for _ in range(4):
        rollout, compared = run.collect(), 0
        for part, simulator in enumerate(run.simulators):
            for t, row in np.ndindex(len(simulator.ran), N // 2):
                env, episode = part * (N // 2) + row, simulator.ran[t][row]
                if not rollout.valid[t, env]:
                    continue
                assert episode is not None
                recorded = rollout.episode[t, env], rollout.task[t, env], rollout.group[t, env]
                assert recorded == (episode.index, episode.task, episode.group)
                compared += 1
        assert compared == rollout.valid.sum() > N
        pairs = zip(rollout.episode[rollout.valid].tolist(), rollout.task[rollout.valid].tolist(), strict=True)
        tasks = dict(pairs)
        assert all(record.task == tasks[record.index] for record in rollout.finished)
        run.learn()


@pytest.mark.parametrize("kind", ["carried over", "whole groups"])
def test_feedback_counts_for_episodes_that_start_in_the_next_rollout(kind: str) -> None:
    run = Run(*KINDS[kind])
    for count in range(4):
        rollout = run.collect()
        started = [episode for simulator in run.simulators for episode in simulator.started]
        assert len(started) >= N // 2 and {episode.task for episode in started} == {count % 2}
        carried = rollout.task[0] != count % 2
        assert carried.any() == (kind == "carried over" and count > 0)
        run.learn()


@pytest.mark.parametrize("kind", ["groups carried over", "whole groups"])
def test_a_group_is_of_one_task_whenever_its_episodes_start(kind: str) -> None:
    run = Run(*KINDS[kind])
    groups: dict[int, list[tuple[int, Episode]]] = {}
    for count in range(6):
        run.collect()
        for simulator in run.simulators:
            for episode in simulator.started:
                groups.setdefault(episode.group, []).append((count, episode))
        run.learn()
    assert all(len({(episode.task, episode.seed) for _, episode in group}) == 1 for group in groups.values())
    apart = [group for group in groups.values() if len({count for count, _ in group}) > 1]
    assert bool(apart) == (kind == "groups carried over")
    assert {group[0][1].task for group in groups.values()} == {0, 1}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_resumed_run_is_the_uninterrupted_one(kind: str, before: int) -> None:
    straight, stopped, resumed = (Run(*KINDS[kind]) for _ in range(3))
    expected = []
    for count in range(before + 3):
        expected.append(copied(straight.collect()))
        straight.learn()
        if count < before:
            stopped.collect()
            stopped.learn()
    state = stopped.collector.state()
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in state.values())
    stopped.collect()
    stopped.learn()  # going on must not change what was saved
    resumed.collector.load(state)
    for rollout in expected[before:]:
        assert_equal(copied(resumed.collect()), rollout)
        resumed.learn()
    final, wanted = resumed.collector.state(), straight.collector.state()
    assert final.keys() == wanted.keys() and all(np.array_equal(final[name], wanted[name]) for name in wanted)
