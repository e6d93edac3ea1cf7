"""Who runs what: pure functions of seed and index, groups that start alike, purposes that never share a seed."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.rollout.episodes import EpisodeSampler, episode_seed

TASKS = tuple(
    Task(f"{family}{number}", family) for family, count in (("push", 1), ("lift", 3)) for number in range(count)
)
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
    seeds = [episode_seed(purpose, *one) for purpose in ("train", "select", "report")]
    others = [episode_seed(purpose, *other) for purpose in ("train", "select", "report")]
    assert [seed >> 61 for seed in seeds + others] == [0, 1, 2, 0, 1, 2]
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown split 'visoin'; the simulator has train, vision"):
        EpisodeSampler(SPEC, 0, split="visoin")
    with pytest.raises(ValueError, match="group_size must be at least 1, got 0"):
        EpisodeSampler(SPEC, 0, group_size=0)
    with pytest.raises(ValueError, match="unknown purpose 'fun'"):
        episode_seed("fun", "train", 0, 0)  # pyright: ignore[reportArgumentType]
