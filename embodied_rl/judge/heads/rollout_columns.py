"""What collectors note in a rollout for a head: columns for observations, and for labels.

Shapes: n labels, D bytes of an input.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.scorer import Score, ScoreRequest
from embodied_rl.judge.heads.base import Labels
from embodied_rl.judge.heads.head_inputs import HeadInputs

PLACES = 2
"""For labels, of each decision: of its observation, and of the final one of its episode."""


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
    """Return the labels of questions and their answers; what a head reads of an observation is in its question."""
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
    """Return the labels that were handed over with a rollout."""
    names = ("label", "label_value", "label_episode", "label_decision")
    return Labels(*(noted[name][noted["labelled"]].cpu().numpy() for name in names))
