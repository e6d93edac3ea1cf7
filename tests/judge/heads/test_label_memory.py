"""Which labels are kept, and which ones nobody learns from."""

import numpy as np

from embodied_rl.judge.heads.labels import LabelMemory, Labels, hold_out
from tests.support.heads import INPUTS, label


def test_what_comes_twice_counts_once() -> None:
    memory = LabelMemory(10, INPUTS.size)
    assert len(memory.add(label([0.1, 0.2], [0.1, 0.2]))) == 2
    again = Labels.join([label([0.2], [0.9], first=1), label([0.3, 0.3], [0.3, 0.4], first=2)])
    again.episode[2] = 2  # the same observation within one delivery
    fresh = memory.add(again)
    assert fresh.value.tolist() == [0.3] and memory.duplicates == 2
    assert memory.kept.value.tolist() == [0.1, 0.2, 0.3]


def test_the_newest_labels_are_kept() -> None:
    memory = LabelMemory(3, INPUTS.size)
    memory.add(label([0.1, 0.2], [0.1, 0.2]))
    memory.add(label([0.3, 0.4], [0.3, 0.4], first=2))
    assert memory.kept.value.tolist() == [0.2, 0.3, 0.4]
    assert len(memory.add(label([0.1], [0.5]))) == 1, "what was dropped may come again"


def test_a_state_keeps_labels_and_what_is_known() -> None:
    memory, again = (LabelMemory(3, INPUTS.size) for _ in range(2))
    memory.add(label([0.1, 0.2, 0.3], [0.1, 0.2, 0.3]))
    memory.add(label([0.1], [0.1]))
    again.load(memory.state())
    assert again.duplicates == 1 and not len(again.add(label([0.2], [0.5], first=1)))
    assert again.kept.inputs.tobytes() == memory.kept.inputs.tobytes()


def test_the_order_in_which_labels_come_is_forgotten() -> None:
    labels = label([0.1, 0.2, 0.3], [0.3, 0.2, 0.1])
    mixed = labels.select(np.array([2, 0, 1])).sort()
    assert mixed.episode.tolist() == [0, 1, 2] and mixed.inputs.tobytes() == labels.inputs.tobytes()


def test_the_same_episodes_are_held_out_everywhere() -> None:
    episodes = np.arange(10_000)
    chosen = hold_out(episodes, 0.1)
    assert 0.08 < chosen.mean() < 0.12
    assert (hold_out(episodes[::-1], 0.1)[::-1] == chosen).all()
    assert not hold_out(episodes, 0.0).any()
