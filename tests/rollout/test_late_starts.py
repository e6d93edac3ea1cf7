"""Late starts: where they begin, which episodes they are, and that runs stay exact."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.curriculum import Curriculum, EpisodeRecord
from embodied_rl.interfaces.sim import Array, Episode
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.late_starts import LateStarts, LateStartSettings
from embodied_rl.runtime.processes.handle import Handle
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.schema import AlgoNode, PolicyNode, RewardNode, SimNode, TrainConfig, TrainLoop
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from embodied_rl.training.metrics import summarise_outcomes
from embodied_rl.training.run_checks import check_late_starts
from tests.support.collecting import CONFIG, SEED, SPEC, N, T, assert_equal, copied, half_skilled, inline
from tests.support.refusals import refuses

HALF = LateStartSettings(share=0.5, decisions=1)
KINDS = {"alone": (False, 1), "groups": (True, 2)}


@dataclass
class Ran:
    """An episode that an environment ran: its executed chunks with those of its history, and how it ended."""

    episode: Episode
    chunks: list[Array] = field(default_factory=list)
    failed: bool | None = None


class Recording(FakeSimulator):
    """Lists the episodes that each row runs."""

    def __init__(self, num_envs: int):
        self.ran: list[list[Ran]] = [[] for _ in range(num_envs)]
        super().__init__(num_envs, CONFIG)

    def step(self, actions, next_episodes):
        running = [self.ran[row][-1] if self.ran[row] else None for row in range(self.num_envs)]
        result = super().step(actions, next_episodes)
        for row, each in enumerate(running):
            if each is not None and each.failed is None:
                each.chunks.append(result.executed[row].copy())
                if result.terminated[row] or result.truncated[row]:
                    each.failed = not result.success[row].any()
        return result

    def _start(self, row: int, episode: Episode | None) -> None:
        super()._start(row, episode)
        if episode is not None:
            self.ran[row].append(Ran(episode, [] if episode.history is None else list(episode.history)))


def make(
    kind: str, handles: list[Handle], settings: LateStartSettings | None = HALF, **options
) -> tuple[Collector, RowwiseFakeActor]:
    fresh, group_size = KINDS[kind]
    actor = half_skilled()
    envs = options.pop("envs", N)
    rollout = Rollout.allocate(actor, T, envs)
    sampler = EpisodeSampler(SPEC, SEED, group_size=group_size, late_starts=settings)
    return Collector(handles, SPEC, envs // len(handles), sampler, rollout, SEED, fresh=fresh, **options), actor


def ran(kind: str, settings: LateStartSettings | None = HALF, rollouts: int = 12) -> tuple[list[list[Ran]], Collector]:
    """The episodes of each environment in some rollouts."""
    simulator = Recording(N)
    collector, actor = make(kind, [InlineHandle(lambda: simulator)], settings)
    for _ in range(rollouts):
        collector.collect(actor)
    return simulator.ran, collector


def remembered(episodes: list[Ran]) -> list[Ran | None]:
    """The failure that an environment knows before its first episode and after each."""
    known: list[Ran | None] = [None]
    for each in episodes:
        last = known[-1]
        if each.failed and each.episode.history is None:
            last = each if len(each.chunks) > 1 else last
        elif each.failed and last is not None and last.episode.seed == each.episode.seed:
            last = None
        known.append(last)
    return known


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_a_late_start_is_one_decision_before_the_end_of_a_failure(kind: str) -> None:
    """Of its environment, or of one of its group: the scene and the actions are those of the last that is known.

    Alone, the next episode is chosen before the present one ends, so without its outcome.
    """
    (fresh, group_size), late = KINDS[kind], 0
    everyone, _ = ran(kind)
    known = [[None, *remembered(episodes)] for episodes in everyone]
    for env, episodes in enumerate(everyone):
        first = env // group_size * group_size
        for number, each in enumerate(episodes):
            if each.episode.history is None:
                continue
            late += 1
            found = [known[member][number + fresh] for member in range(first, first + group_size)]
            fitting = [
                failure
                for failure in found
                if failure is not None
                and np.array_equal(each.episode.history, failure.chunks[:-1])
                and (each.episode.task, each.episode.seed) == (failure.episode.task, failure.episode.seed)
            ]
            assert len(fitting) == 1
    assert 0.2 < late / sum(map(len, everyone)) < 0.6


def test_a_group_starts_alike() -> None:
    everyone, collector = ran("groups")
    for one, other in zip(everyone[0::2], everyone[1::2], strict=True):
        for left, right in zip(one, other, strict=True):
            assert left.episode == replace(right.episode, index=left.episode.index)
            assert np.array_equal(left.episode.history, right.episode.history) or left.episode.history is None
    assert any(record.late for record in collector.rollout.finished)


def test_without_a_share_every_episode_begins_at_its_beginning() -> None:
    for settings in (None, LateStartSettings(0.0, 1)):
        everyone, collector = ran("alone", settings, rollouts=4)
        assert all(each.episode.history is None for episodes in everyone for each in episodes)
        assert not any(record.late for record in collector.rollout.finished)


@pytest.mark.thorough
def test_with_the_whole_share_every_episode_begins_late_where_a_failure_is_known() -> None:
    everyone, _ = ran("alone", LateStartSettings(1.0, 1))
    outcomes = set[tuple[bool, bool | None]]()
    for episodes in everyone:
        known = [None, *remembered(episodes)]
        for number, each in enumerate(episodes):
            assert (each.episode.history is not None) == (known[number] is not None)
            outcomes.add((each.episode.history is not None, each.failed))
    assert outcomes >= {(False, False), (False, True), (True, False), (True, True)}, "all rules were used"


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("before", [1, 4])
def test_a_loaded_state_continues_to_the_bit(kind: str, before: int) -> None:
    collector, actor = make(kind, inline(2))
    for _ in range(before):
        collector.collect(actor)
    state = collector.state()
    expected = [copied(collector.collect(actor)) for _ in range(4)]
    assert any(record.late for each in expected for record in each["finished"])
    resumed, actor = make(kind, inline(2))
    resumed.load(state)
    for each in expected:
        assert_equal(copied(resumed.collect(actor)), each)


@pytest.mark.thorough
def test_without_snapshots_late_episodes_are_restarted_where_they_began() -> None:
    """A state of the fake after its history is that of the running episode's first observation."""
    simulator = Recording(N)
    collector, actor = make("alone", [InlineHandle(lambda: simulator)], LateStartSettings(1.0, 1))
    for _ in range(6):
        collector.collect(actor)
    state = {name: array for name, array in collector.state().items() if not name.startswith("simulator/")}
    again = Recording(N)
    resumed, actor = make("alone", [InlineHandle(lambda: again)], LateStartSettings(1.0, 1))
    resumed.load(state)
    late = 0
    for before, after in zip(simulator.ran, again.ran, strict=True):
        (first,) = after
        assert first.episode == before[-1].episode
        known = before[-1].episode.history
        assert (known is None) == (first.episode.history is None)
        assert known is None or np.array_equal(first.episode.history, known)
        late += known is not None
    assert late
    resumed.collect(actor)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_neither_simulators_nor_ranks_change_a_bit(kind: str) -> None:
    whole, actor = make(kind, inline(1))
    expected = [copied(whole.collect(actor)) for _ in range(6)]
    parts, actor = make(kind, inline(4))
    for each in expected:
        assert_equal(copied(parts.collect(actor)), each)
    for rank in range(2):
        handles = [InlineHandle(lambda: FakeSimulator(N // 2, CONFIG))]
        half, actor = make(kind, handles, envs=N // 2, env_offset=rank * N // 2, env_total=N)
        for each in expected:
            rollout = half.collect(actor)
            mine = slice(rank * N // 2, (rank + 1) * N // 2)
            valid = each["valid"].unflatten(0, (T, N))[:, mine]
            for name in ("reward", "episode", "task", "steps", "log_prob"):
                theirs = each[name].unflatten(0, (T, N))[:, mine]
                assert (rollout.tensors()[name] == theirs)[valid].all(), name


def test_curricula_and_rates_of_success_see_whole_episodes_alone() -> None:
    class Counting(Curriculum):
        def __init__(self) -> None:
            self.seen: list[EpisodeRecord] = []

        def weights(self) -> Array:
            return np.ones(2)

        def update(self, finished) -> None:
            self.seen += finished

    counting = Counting()
    sampler = EpisodeSampler(SPEC, SEED, curriculum=counting, late_starts=HALF)
    whole = EpisodeRecord(0, 0, 0, "train", success_once=False, success_at_end=False, steps=10, reward=0.0)
    late = replace(whole, index=1, success_once=True, steps=2, reward=1.0, late=True)
    sampler.update([whole, late])
    assert counting.seen == [whole]
    figures = summarise_outcomes([whole, late, late], SPEC)
    assert figures["rollout/success"] == 0 and figures["rollout/length"] == 10 and figures["rollout/episodes"] == 1
    assert figures["rollout/late_success"] == 1 and figures["rollout/late_episodes"] == 2
    assert summarise_outcomes([late], SPEC).keys() == {"rollout/late_success", "rollout/late_episodes"}


def test_remembering_and_forgetting_by_hand() -> None:
    """Of two environments with episodes of five decisions at most."""
    late = LateStarts(LateStartSettings(1.0, 1), replace(SPEC, horizon=10), 2, 2, 1)
    chunks, both, first = np.arange(20, dtype=np.float32).reshape(5, 2, 2), np.array([0, 1]), np.array([0])
    plain = [Episode(index, index, 100 + index) for index in range(4)]
    for column in (0, 1):
        late.begin(column, plain[column])
    for chunk in chunks[:3]:
        late.add(both, np.stack([chunk, -chunk]))
    late.end(0, plain[0], success=False)
    late.end(1, plain[1], success=True)
    begun, other = late.choose(0, plain[2], 7), late.choose(1, plain[3], 7)
    assert (begun.index, begun.task, begun.seed, other) == (2, 0, 100, plain[3]) and other.history is None
    assert begun.history is not None and np.array_equal(begun.history, chunks[:2])
    late.begin(0, begun)
    late.add(first, -chunks[:1])
    late.restart()
    late.add(first, 9 * chunks[:1])
    found = late.history(0)
    assert found is not None and np.array_equal(found, chunks[:2]), "it keeps its history, also once restarted"
    late.end(0, begun, success=True)
    assert late.choose(0, plain[3], 7).history is not None, "a success from there keeps it"
    late.begin(0, plain[2])
    late.add(first, chunks[:1])
    late.end(0, plain[2], success=False)
    assert late.choose(0, plain[3], 7).seed == 100, "a failure of one decision has no state one decision before"
    late.end(0, replace(begun, seed=55), success=False)
    assert late.choose(0, plain[3], 7).seed == 100, "of another start"
    late.end(0, begun, success=False)
    assert late.choose(0, plain[3], 7) is plain[3], "forgotten"


def test_what_cannot_begin_late_is_refused() -> None:
    with refuses("late-starts-not-supported", "train.late_starts=0.5"):
        EpisodeSampler(replace(SPEC, can_replay=False), SEED, late_starts=HALF)
    with refuses("late-starts-too-early", "train.late_decisions=3", 3, 10, 4):
        LateStarts(LateStartSettings(0.5, 3), SPEC, N, 4, 1)
    LateStarts(LateStartSettings(0.5, 2), SPEC, N, 4, 1)


@pytest.mark.parametrize(
    ("changed", "needs", "named"),
    [
        ({}, Needs(learns_from="replay"), "algo.name=grpo"),
        ({}, Needs(group_size=2), "algo.name=grpo"),
        ({"policy": PolicyNode("pocket", delay=2)}, Needs(), "policy.delay=2"),
        ({"reward": RewardNode("vlm")}, Needs(), "reward.name=vlm"),
    ],
)
def test_runs_that_do_not_understand_late_starts_are_refused(changed: dict, needs: Needs, named: str) -> None:
    config = TrainConfig(SimNode("tabletop"), PolicyNode("pocket"), AlgoNode("grpo"), train=TrainLoop(late_starts=0.5))
    check_late_starts(config, Needs(group_size=2, fresh_episodes=True))
    with refuses("late-starts-not-supported", "train.late_starts=0.5", named):
        check_late_starts(replace(config, **changed), needs)
    check_late_starts(replace(config, train=TrainLoop(), **changed), needs)
