"""Episodes with what a critic is trained on and measured by: pictures, states, and how far each goal had come.

Shapes: t frames of an episode, S state dimensions.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from embodied_rl.interfaces.goals import Relation
from embodied_rl.interfaces.sim import Array

__all__ = ["JudgedEpisode", "JudgedGoal", "Relation"]


@dataclass(frozen=True, eq=False)
class JudgedGoal:
    """A goal that an episode's scene allows, with its relation to the robot's goal.

    Attributes:
        progress: float32 [t] in 0…1; done: bool [t], whether the goal holds.
        true: whether both come from the simulator's state; otherwise they were guessed, such as from time.
    """

    instruction: str
    relation: Relation
    progress: Array
    done: Array
    true: bool


@dataclass(frozen=True, eq=False)
class JudgedEpisode:
    """Frames of an episode, one after each chunk, with the first and the last.

    Attributes:
        frames: camera → uint8 [t, h, w, 3]; state: float32 [t, S], proprioception.
        goals: the first is the robot's goal.
        success: by the simulator or the dataset.
        actor: who acted, such as "operator" or the name of a policy file.
        family: of the task; the task's name where tasks have no families.
    """

    frames: Mapping[str, Array]
    state: Array
    goals: tuple[JudgedGoal, ...]
    success: bool
    actor: str
    family: str
