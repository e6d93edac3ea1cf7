"""The labels that heads learn from: kept, held out, and handed over in the columns of a rollout.

Shapes: n labels, D bytes of an input.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.scorer import Score, ScoreRequest
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.head_inputs import HeadInputs

PLACES = 2
"""For labels, of each decision: of its observation, and of the final one of its episode."""
_COLUMNS = ("inputs", "value", "episode", "decision")


@dataclass(frozen=True)
class Labels:
    """Scores of observations.

    Attributes:
        inputs: uint8 [n, D], see `HeadInputs`.
        value: float64 [n], scores within 0 … 1.
        episode, decision: int64 [n]; together they name an observation.
    """

    inputs: Array
    value: Array
    episode: Array
    decision: Array

    def __len__(self) -> int:
        return len(self.value)

    def select(self, which: Array) -> "Labels":
        """Return some of the labels, by places or by a mask."""
        return Labels(self.inputs[which], self.value[which], self.episode[which], self.decision[which])

    def sort(self) -> "Labels":
        """Return the labels sorted by episode and decision."""
        return self.select(np.lexsort((self.value, self.decision, self.episode)))

    @staticmethod
    def join(parts: "list[Labels]") -> "Labels":
        """Concatenate labels."""
        return Labels(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))


class LabelMemory:
    """Keeps the newest labels, at most `most`, each observation once: its first label stays.

    Attributes:
        kept: the labels, oldest first.
        duplicates: labels of observations that were known, since the run began.
    """

    def __init__(self, most: int, size: int) -> None:
        self._most = most
        none = np.zeros(0, np.int64)
        self.kept = Labels(np.zeros((0, size), np.uint8), np.zeros(0), none, none)
        self._known: set[tuple[int, int]] = set()
        self.duplicates = 0

    def add(self, labels: Labels) -> Labels:
        """Add labels, and return those that were new."""
        new: list[int] = []
        for place, name in enumerate(_name(labels)):
            if name in self._known:
                self.duplicates += 1
            else:
                self._known.add(name)
                new.append(place)
        fresh = labels.select(np.array(new, np.int64))
        both = Labels.join([self.kept, fresh])
        self.kept = both.select(np.arange(max(0, len(both) - self._most), len(both)))
        self._known = set(_name(self.kept))
        return fresh

    def state(self) -> dict[str, Array]:
        """Return copies of all arrays."""
        columns = {name: getattr(self.kept, name).copy() for name in _COLUMNS}
        return columns | {"duplicates": np.array(self.duplicates)}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        self.kept = Labels(*(state[name].copy() for name in _COLUMNS))
        self._known, self.duplicates = set(_name(self.kept)), int(state["duplicates"])


def _name(labels: Labels) -> list[tuple[int, int]]:
    return list(zip(labels.episode.tolist(), labels.decision.tolist(), strict=True))


def hold_out(episode: Array, share: float) -> Array:
    """Return which episodes no head may learn from, bool [n]: about `share` of all, the same ones in each run."""
    drawn = [zlib.crc32(str(number).encode()) / 2**32 for number in episode.tolist()]
    return np.array(drawn, np.float64) < share


def list_columns(inputs: HeadInputs) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the rollout columns that a run's head needs.

    "seen", "final": inputs of the observation before a decision, and of the final one where an episode was truncated.
    "last": of the observation after the last decision. "label…": places for labels, of this rollout's observations or
    of earlier ones, where "labelled".
    """
    seen, places = (inputs.size,), (PLACES,)
    packed = dict.fromkeys(("seen", "final", "last"), (seen, torch.uint8))
    numbers = dict.fromkeys(("label_episode", "label_decision"), (places, torch.int64))
    labels = {"label": ((*places, *seen), torch.uint8), "label_value": (places, torch.float64)}
    return packed | numbers | labels | {"labelled": (places, torch.bool)}


def make_labels(inputs: HeadInputs, answered: Sequence[tuple[ScoreRequest, Score | None]]) -> Labels:
    """Return the labels of requests and their scores."""
    packed = [
        inputs.pack(
            {name: frames[-1:] for name, frames in asked.frames.items()}, asked.state[None], [asked.instruction]
        )
        for asked, _ in answered
    ]
    return Labels(
        np.concatenate(packed) if packed else np.zeros((0, inputs.size), np.uint8),
        np.array([score.value for _, score in answered if score is not None], np.float64),
        np.array([asked.episode for asked, _ in answered], np.int64),
        np.array([asked.decision for asked, _ in answered], np.int64),
    )


def read_labels(noted: Mapping[str, Tensor]) -> Labels:
    """Return the labels in the columns of a rollout."""
    names = ("label", "label_value", "label_episode", "label_decision")
    return Labels(*(noted[name][noted["labelled"]].cpu().numpy() for name in names))
