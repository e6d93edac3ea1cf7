"""Who runs what: functions of seed, index and weights, groups that start alike, purposes that never share a seed."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
import scipy  # which imports its parts when they are used
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.interfaces.curriculum import Curriculum, EpisodeRecord
from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.rollout.episode_sampler import (
    EpisodeSampler,
    Purpose,
    derive_episode_seed,
    derive_noise_seed,
    pick_position,
)
from tests.support.refusals import refuses

TASKS = tuple(
    Task(f"{family}{number}", family) for family, count in (("push", 1), ("lift", 3)) for number in range(count)
)
PURPOSES: tuple[Purpose, ...] = ("train", "select", "report", "publish")
SPEC = SimulatorSpec((), (), ("x",), (-1.0,), (1.0,), 10.0, 10, TASKS, splits=("vision",))


def test_families_are_drawn_equally_often_and_tasks_within_a_family() -> None:
    """Binomial counts: 4000 draws at 1/2, 1/6 each; five standard deviations."""
    counts = Counter(EpisodeSampler(SPEC, 0).episode(index).task for index in range(4000))
    assert abs(counts[0] - 2000) < 5 * (4000 * 0.25) ** 0.5
    for task in (1, 2, 3):
        assert abs(counts[task] - 4000 / 6) < 5 * (4000 * 5 / 36) ** 0.5


def test_episodes_differ_with_index_run_and_split_and_are_the_same_when_asked_again() -> None:
    sampler = EpisodeSampler(SPEC, 0)
    assert sampler.episode(17) == EpisodeSampler(SPEC, 0).episode(17)
    seeds = {sampler.episode(index).seed for index in range(2000)}
    seeds |= {EpisodeSampler(SPEC, 1).episode(index).seed for index in range(2000)}
    seeds |= {EpisodeSampler(SPEC, 0, split="vision").episode(index).seed for index in range(2000)}
    assert len(seeds) == 6000


def test_a_group_shares_seed_and_task_and_its_episodes_keep_their_own_index() -> None:
    episodes = [EpisodeSampler(SPEC, 0, group_size=4).episode(index) for index in range(16)]
    for start in range(0, 16, 4):
        group = episodes[start : start + 4]
        assert len({(e.seed, e.task, e.group) for e in group}) == 1
        assert [e.index for e in group] == list(range(start, start + 4))
    assert len({e.seed for e in episodes}) == len({e.group for e in episodes}) == 4


@given(
    st.tuples(st.text(), st.integers(0, 2**40), st.integers(0, 2**40)),
    st.tuples(st.text(), st.integers(0, 2**40), st.integers(0, 2**40)),
)
def test_purposes_never_share_a_seed(one: tuple, other: tuple) -> None:
    """By construction: whatever split, run and index, the purpose is in the two highest of 63 bits."""
    seeds = [derive_episode_seed(purpose, *one) for purpose in PURPOSES]
    others = [derive_episode_seed(purpose, *other) for purpose in PURPOSES]
    assert [seed >> 61 for seed in seeds + others] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert all(0 <= seed < 2**63 for seed in seeds)


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_purposes_never_share_a_seed_of_noise(one: int, other: int) -> None:
    found = [derive_noise_seed(purpose, seed) for purpose in PURPOSES for seed in (one, other)]
    assert [seed >> 61 for seed in found] == [0, 0, 1, 1, 2, 2, 3, 3] and max(found) < 2**63
    assert all((found[i] == found[i + 1]) == (one == other) for i in (0, 2, 4, 6))


def test_a_seed_is_the_hash_of_split_run_and_index_below_the_purpose() -> None:
    """Computed apart: reports of other machines and versions are paired by these seeds, so they never change."""
    digest = hashlib.blake2b(b"('vision', 3, 70)", digest_size=8).digest()
    assert derive_episode_seed("select", "vision", 3, 70) == (1 << 61) + (int.from_bytes(digest, "little") // 8)


def test_bad_arguments_are_refused() -> None:
    with refuses("split-unknown", "visoin", "train, vision"):
        EpisodeSampler(SPEC, 0, split="visoin")
    with refuses("group-size-out-of-range", 0):
        EpisodeSampler(SPEC, 0, group_size=0)
    with refuses("purpose-unknown", "fun"):
        derive_episode_seed("fun", "train", 0, 0)  # pyright: ignore[reportArgumentType]


class Given(Curriculum):
    """Weights as they are given, and others after an update."""

    def __init__(self, *weights: Sequence[float]) -> None:
        self.turns = list(weights)

    def weights(self) -> np.ndarray:
        return np.array(self.turns[0])

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        self.turns.pop(0)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "weights", [[1, 1 / 3, 1 / 3, 1 / 3], [5, 0, 2.5, 0.5], [1e300, 0, 0, 3e300], [0, 0, 5e-324, 0]]
)
def test_tasks_are_drawn_by_weight(weights: list[float]) -> None:
    """A chi-square test over 4000 draws; what has no weight is never drawn."""
    sampler = EpisodeSampler(SPEC, 0, curriculum=Given(weights))
    counts = np.bincount([sampler.episode(index).task for index in range(4000)], minlength=4)
    drawn = np.array(weights) > 0
    assert not counts[~drawn].any()
    share = np.array(weights)[drawn] / max(weights)
    assert drawn.sum() == 1 or scipy.stats.chisquare(counts[drawn], 4000 * share / share.sum()).pvalue > 1e-4


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=9).filter(any),
    st.integers(0, 2**61 - 1) | st.sampled_from([0, 2**61 - 1]),
)
def test_a_draw_means_where_the_cumulative_weights_exceed_it(weights: list[float], draw: int) -> None:
    """A plain loop over exact fractions of a draw; and never a task without weight, not even at the ends."""
    scaled = np.array(weights) / max(weights)
    found, u = pick_position(scaled, draw), Fraction(draw // 256, 2**53)
    assert scaled[found] > 0
    before, total = sum(map(Fraction, scaled[:found])), sum(map(Fraction, scaled))
    slack = Fraction(1, 2**48)  # of the sums in float64
    assert before - slack <= u * total <= before + Fraction(scaled[found]) + slack


@pytest.mark.parametrize("weights", [[1, 1, 1], [-1, 1, 1, 1], [0, 0, 0, 0], [1, np.nan, 1, 1], [1, np.inf, 1, 1]])
def test_weights_that_cannot_be_drawn_from_are_refused(weights: list[float]) -> None:
    """At the start and after an update, with the name of the curriculum."""
    with refuses("curriculum-weights-invalid", "Given"):
        EpisodeSampler(SPEC, 0, curriculum=Given(weights))
    sampler = EpisodeSampler(SPEC, 0, curriculum=Given([1, 1, 1, 1], weights))
    with refuses("curriculum-weights-invalid", "Given"):
        sampler.update([])


def test_only_the_chosen_task_or_family_is_drawn_by_the_weights_of_the_curriculum() -> None:
    family = EpisodeSampler(SPEC, 0, task="lift", curriculum=Given([9, 3, 0, 1], [9, 0, 2, 2]))
    counts = np.bincount([family.episode(index).task for index in range(4000)], minlength=4)
    assert not counts[[0, 2]].any()
    assert scipy.stats.binomtest(counts[1], 4000, 3 / 4).pvalue > 1e-4
    family.update([])
    assert {family.episode(index).task for index in range(100)} == {2, 3}
    resumed = EpisodeSampler(SPEC, 0, task="lift", curriculum=Given([9, 0, 2, 2]))
    resumed.load(family.state())
    assert [resumed.episode(index) for index in range(100)] == [family.episode(index) for index in range(100)]
    one = EpisodeSampler(SPEC, 0, task="lift2")
    assert {one.episode(index).task for index in range(100)} == {3}


def test_a_task_that_cannot_be_drawn_is_refused() -> None:
    with refuses("task-unknown", "train.task", "Did you mean 'lift'?"):
        EpisodeSampler(SPEC, 0, task="lfit")
    with refuses("curriculum-weights-invalid", "no weight to train.task=push"):
        EpisodeSampler(SPEC, 0, task="push", curriculum=Given([0, 1, 1, 1]))
    sampler = EpisodeSampler(SPEC, 0, task="push", curriculum=Given([1, 1, 1, 1], [0, 1, 1, 1]))
    with refuses("curriculum-weights-invalid", "no weight to train.task=push"):
        sampler.update([])


def test_an_update_changes_only_episodes_that_have_not_begun() -> None:
    """Groups of three: of group 0 all have begun, of group 1 one, of group 2 none."""
    sampler = EpisodeSampler(SPEC, 0, group_size=3, curriculum=Given([1, 0, 0, 0], [0, 0, 0, 1], [0, 1, 0, 0]))
    assert [sampler.begin(index).task for index in (0, 1, 2, 4)] == [0, 0, 0, 0]
    sampler.update([])
    assert [sampler.episode(index).task for index in range(3, 9)] == [0, 0, 0, 3, 3, 3]
    resumed = EpisodeSampler(SPEC, 0, group_size=3, curriculum=Given([0, 0, 0, 1], [0, 1, 0, 0]))
    resumed.load(sampler.state())
    for each in (sampler, resumed):
        assert [each.begin(index).task for index in (3, 6)] == [0, 3]
        each.update([])
        assert [each.begin(index).task for index in (5, 7, 8, 9)] == [0, 3, 3, 1]
        assert each.state()["episodes/begun"].tolist() == [[3, 1, 1]]  # of the others nothing has to be remembered


def test_figures_describe_the_draw() -> None:
    """Shares of families, and how many equally likely tasks the draw is worth; nothing where it is uniform."""
    assert EpisodeSampler(SPEC, 0).figures() == {}
    figures = EpisodeSampler(SPEC, 0, curriculum=Given([2, 2, 0, 0])).figures()
    assert figures == pytest.approx(
        {"curriculum/weight/push": 0.5, "curriculum/weight/lift": 0.5, "curriculum/effective_tasks": 2}
    )
    figures = EpisodeSampler(SPEC, 0, curriculum=Given([3, 0, 1, 0])).figures()
    assert figures["curriculum/weight/push"] == pytest.approx(0.75)
    assert figures["curriculum/effective_tasks"] == pytest.approx(4 / 3**0.75)  # entropy log 4 − 3/4 log 3
