"""Observations of one small camera, packed for heads, whose scores are known."""

from dataclasses import replace
from typing import Any

import numpy as np

from embodied_rl.judge.heads.head_inputs import HeadInputs
from embodied_rl.judge.heads.heads import HEADS, Head
from embodied_rl.judge.heads.labels import Labels
from embodied_rl.schema import DistillNode
from tests.support.collecting import SPEC

WORDS = "go left"
SMALL = replace(SPEC, cameras=(replace(SPEC.cameras[0], height=4, width=4),))
CAMERA = SMALL.cameras[0].name
INPUTS = HeadInputs(SMALL, 4)


def pack(brightness: Any, words: str = WORDS) -> np.ndarray:
    """Inputs of grey pictures, 0 … 1 each."""
    levels = np.round(255 * np.asarray(brightness)).astype(np.uint8)
    pictures = np.broadcast_to(levels[:, None, None, None], (len(levels), 4, 4, 3))
    state = np.zeros((len(levels), len(SMALL.state_names)), np.float32)
    return INPUTS.pack({CAMERA: pictures}, state, [words] * len(levels))


def label(brightness: Any, value: Any, first: int = 0) -> Labels:
    """Labels of grey pictures, each of an episode of its own."""
    number = first + np.arange(len(brightness))
    return Labels(pack(brightness), np.asarray(value, np.float64), number, np.zeros_like(number))


def make(name: Any, **options: Any) -> Head:
    return HEADS[name](INPUTS, 3, DistillNode(**options))
