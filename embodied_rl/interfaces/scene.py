"""An optional capability of backbones: perception features of scenes, for small critics.

Shapes: n observations, P patches of all cameras, W and E widths, K positions.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from embodied_rl.interfaces.backbone import PolicyInput, PolicySpec


@dataclass(frozen=True)
class Scene:
    """Perception features of n observations.

    Attributes:
        places: float32 [n, K], positions relevant to the instruction, such as keypoints; differences between two frames
            of an episode mean motion.
        patches: float32 [n, P, W], features of the pictures' parts.
        words: float32 [n, E], the instruction.
    """

    places: Tensor
    patches: Tensor
    words: Tensor


@runtime_checkable
class DescribesScenes(Protocol):
    """A backbone with perception that can be used without its action expert; rows do not depend on each other."""

    spec: PolicySpec

    def describe_scene(self, inputs: PolicyInput) -> Scene:
        """Compute the features of n observations from pictures and instruction; the state of `inputs` is not read."""
        ...

    def perception_parameters(self) -> list[nn.Parameter]:
        """Return all parameters that `describe_scene` uses."""
        ...
