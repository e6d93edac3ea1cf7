"""Contents of another project's checkpoint, read before a network is built."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.checkpoints.tensor_files import TensorFiles


@dataclass(frozen=True)
class FoundStatistics:
    """The normalisation statistics of a checkpoint.

    Attributes:
        state, action: statistics of the robot's state and actions; None if the checkpoint has none.
        where: the file they were read from, for messages.
        problem: an error message for missing statistics: the cause and the remedy; empty for the standard message.
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
        folder: the checkpoint folder.
        policy: name of the policy plug-in; None if the checkpoint does not say.
        config: its configuration file; empty if it has none.
        tensors: its weights, by their names in the checkpoint.
        statistics: normalisation statistics of the embodiment that it was trained for.
        cameras: the names of the views it was trained with, in order.
        executed: number of actions of a chunk that are executed; None if the checkpoint does not say.
        denoise_steps: K, the number of denoise steps; None if the checkpoint does not say.
        relative: whether actions are relative to the state; exceptions: parts of the names of absolute actions.
        action_names: names of the action's entries; empty if the checkpoint does not say.
        tokenizer: content of its tokenizer.json; empty if it has none.
        files: its small files, name → content, for a later export.
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
