"""A policy as somebody else's project stored it: what its files say, before any network is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.actors.normalisation import Normalisation
from embodied_rl.checkpoints.tensor_files import TensorFiles


@dataclass(frozen=True)
class FoundStatistics:
    """What a checkpoint says of the numbers a robot gives and takes; None where it says nothing.

    Attributes:
        state, action: statistics of the robot's state and actions.
        where: the file they were read from, for messages.
        problem: why there are none, and what to do, where there is more to say than that.
    """

    state: Normalisation | None
    action: Normalisation | None
    where: str
    problem: str = ""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint of another project.

    Attributes:
        format: "lerobot" or "openpi".
        folder: where it lies.
        policy: name of the policy plug-in; None where the format does not say.
        config: its configuration file, empty where there is none.
        tensors: its weights, by the names they have there.
        statistics: of the embodiment it was trained for.
        cameras: the names of the views it was trained with, in order.
        executed: actions of a chunk that it executes, where it says so.
        denoise_steps: K, where it says so.
        relative: whether its actions are relative to the state; exceptions: parts of names of those that are not.
        action_names: names of the action's entries, where it says them.
        tokenizer: what its tokenizer.json holds; empty where it brings none.
        files: its small files, name → content, for the way back.
    """

    format: str
    folder: Path
    policy: str | None
    config: Mapping[str, Any]
    tensors: TensorFiles
    statistics: FoundStatistics
    cameras: tuple[str, ...]
    executed: int | None = None
    denoise_steps: int | None = None
    relative: bool = False
    exceptions: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    tokenizer: str = field(default="", repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
