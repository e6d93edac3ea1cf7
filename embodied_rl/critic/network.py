"""The embedded critic: a small network that estimates progress and success from pictures.

A frozen backbone describes what it sees (`embodied_rl.interfaces.scene`); a multilayer perceptron compares that with
the episode's first frame, and gives a distribution over 21 values of progress.

Shapes: n frames, S state dimensions, and those of `Scene`: P patches of width W, words of width E, K positions.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.backbone import FlowBackbone, PolicyInput
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scene import DescribesScenes, Scene
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec

BINS = 21
"""Values of progress: 0, 0.05, …, 1."""


@dataclass(frozen=True)
class CriticConfig:
    """Sizes of what is trained."""

    squeezed: int = at_least(1, 16, at_most=1024)
    """width to which each patch is reduced."""
    hidden: int = at_least(1, 256, at_most=8192)
    """width of both hidden layers."""


@dataclass(frozen=True, eq=False)
class CriticOutput:
    """Estimates for n frames.

    Attributes:
        bins: float32 [n, 21], probabilities of progress 0, 0.05, …, 1; progress, float32 [n] in 0…1, is its mean.
        done: float32 [n] in 0…1, probability that the goal holds.
    """

    progress: Array
    bins: Array
    done: Array


class ProgressCritic(nn.Module):
    """Judges frames of episodes.

    Attributes:
        backbone: perception of the plug-in `policy`; its weights stay unchanged.
        embodiment: the robot that the backbone was made for.
        name: to be known by, such as that of its file.
        provenance: what its file says about its origin.

    Raises:
        UserError: the backbone does not describe scenes.
    """

    centres: Tensor

    def __init__(
        self, backbone: FlowBackbone, embodiment: Embodiment, policy: str, config: CriticConfig | None = None
    ) -> None:
        super().__init__()
        if not isinstance(backbone, DescribesScenes):
            raise UserError(
                f"A critic cannot stand on the policy '{policy}': it does not describe what it sees. One with "
                "describe_scene (embodied_rl.interfaces.scene) does, such as pocket.",
                code="policy-without-perception",
            )
        self.backbone = backbone.requires_grad_(False)
        self.embodiment, self.policy, self.config = embodiment, policy, config or CriticConfig()
        self.name, self.provenance = "unsaved", dict[str, Any]()
        spec = backbone.spec
        blank = PolicyInput(
            {name: torch.zeros(1, *spec.image_size, 3, dtype=torch.uint8) for name in spec.cameras},
            torch.zeros(1, spec.state_dim),
            torch.zeros(1, spec.token_length, dtype=torch.int64),
        )
        scene = self.encode_image(blank)
        patches, width = scene.patches.shape[1:]
        size = 3 * scene.places.shape[1] + patches * self.config.squeezed + scene.words.shape[1] + spec.state_dim
        hidden = self.config.hidden
        self.squeeze = nn.Linear(width, self.config.squeezed)
        self.head = nn.Sequential(
            nn.LayerNorm(size),
            nn.Linear(size, hidden), nn.SiLU(),
            nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, BINS + 1),
        )  # fmt: skip
        self.register_buffer("centres", torch.linspace(0, 1, BINS), persistent=False)

    @property
    def cameras(self) -> tuple[str, ...]:
        """Return the names of the cameras it looks at."""
        return self.embodiment.cameras

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Return the words it knows; empty where a tokenizer takes any word apart."""
        return () if self.embodiment.tokenizer else self.embodiment.vocabulary[1:]

    @property
    def identity(self) -> str:
        """Return name and digest of the weights that judge, in one line."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.named_weights().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return f"{self.name} {digest.hexdigest()[:12]}"

    def named_weights(self) -> dict[str, Tensor]:
        """Return all weights that judge: those of the backbone's perception, and the trained ones."""
        used = {id(parameter) for parameter in cast(DescribesScenes, self.backbone).perception_parameters()}
        return {
            name: parameter
            for name, parameter in self.named_parameters()
            if not name.startswith("backbone.") or id(parameter) in used
        }

    def describe_input(self) -> dict[str, Any]:
        """Return what a question must hold, for JSON: camera → height and width, names of the state, known words."""
        return {
            "cameras": {camera: list(self.embodiment.image_size) for camera in self.cameras},
            "state": list(self.embodiment.state_names),
            "words": list(self.vocabulary),
        }

    def check_fit(self, spec: SimulatorSpec) -> None:
        """Raise `UserError` if it does not know a simulator's camera, state or word; the message names it."""
        problem = ""
        shown = {camera.name: (camera.height, camera.width) for camera in spec.cameras}
        size, states = self.embodiment.image_size, self.embodiment.state_names
        unknown = {word.lower() for word in spec.words} - set(self.vocabulary) if self.vocabulary else set[str]()
        if wrong := [camera for camera in self.cameras if shown.get(camera) != size]:
            known = ", ".join(f"{name} {each}" for name, each in shown.items()) or "none"
            problem = f"looks at camera '{wrong[0]}' of {size} pixels; the simulator has {known}"
        elif spec.state_names != states:
            problem = (
                f"was trained with the state {', '.join(states)}; the simulator's is {', '.join(spec.state_names)}"
            )
        elif unknown:
            problem = f"does not know the simulator's words {', '.join(sorted(unknown))}"
        if problem:
            raise UserError(f"The critic {self.name} {problem}.", code="critic-does-not-fit")

    @torch.no_grad()
    def forward(
        self, frames: Mapping[str, Array], first: Mapping[str, Array], instructions: Sequence[str], state: Array
    ) -> CriticOutput:
        """Judge n frames of any episodes; rows do not depend on each other, but for rounding.

        Args:
            frames: camera → uint8 [n, h, w, 3]; cameras that it does not look at are ignored.
            first: the same of each episode's first frame.
            instructions: n instructions.
            state: float32 [n, S], proprioception of `frames`, not normalised.

        Raises:
            UserError: a camera is missing or of another size, the state is of another size, or a word is unknown.
        """
        return self.compare(frames, self.localise(first, instructions, state), instructions, state)

    @torch.no_grad()
    def localise(self, first: Mapping[str, Array], instructions: Sequence[str], state: Array) -> Array:
        """Return where n episodes' first frames show what matters, float32 [n, K]; the state's size alone counts."""
        return self.encode_image(self.prepare(first, instructions, state)).places.numpy()

    @torch.no_grad()
    def compare(
        self, frames: Mapping[str, Array], start: Array, instructions: Sequence[str], state: Array
    ) -> CriticOutput:
        """Judge n frames as `forward` does, by what `localise` found in the first frames of their episodes."""
        inputs = self.prepare(frames, instructions, state)
        bins, done = self.progress_logits(self.encode_image(inputs), torch.from_numpy(start), inputs.state)
        shares = bins.softmax(dim=1)
        progress = (shares @ self.centres).clamp(0, 1)
        return CriticOutput(progress.numpy(), shares.numpy(), done.sigmoid().numpy())

    def prepare(self, frames: Mapping[str, Array], instructions: Sequence[str], state: Array) -> PolicyInput:
        """Convert n frames to the backbone's inputs."""
        size, entries = self.embodiment.image_size, len(self.embodiment.state_names)
        for camera in self.cameras:
            if camera not in frames:
                raise UserError(
                    f"The critic {self.name} looks at camera '{camera}'; shown is {', '.join(frames)}.",
                    code="camera-missing",
                )
            if frames[camera].shape[1:] != (*size, 3):
                raise UserError(
                    f"Camera '{camera}': the critic {self.name} takes pictures of {size} pixels, not "
                    f"{frames[camera].shape[1:3]}.",
                    code="camera-size-mismatch",
                )
        if state.shape[1:] != (entries,):
            raise UserError(
                f"The critic {self.name} takes {entries} state entries, not {state.shape[1:]}.", code="state-invalid"
            )
        self.check_words(instructions)
        return self.embodiment.inputs(Observation(dict(frames), state, tuple(instructions)), self.backbone)

    def check_words(self, instructions: Sequence[str]) -> None:
        """Raise `UserError` for an unknown word; the message names it, and the known ones."""
        for text in set(instructions) if self.vocabulary else ():
            if unknown := [word for word in text.lower().split() if word not in self.vocabulary]:
                raise UserError(
                    f"The critic {self.name} does not know the word '{unknown[0]}' of '{text}'; it knows "
                    f"{', '.join(self.vocabulary)}.",
                    code="word-unknown",
                )

    def encode_image(self, inputs: PolicyInput) -> Scene:
        """Describe n frames by the frozen backbone."""
        return cast(DescribesScenes, self.backbone).describe_scene(inputs)

    def progress_logits(self, scene: Scene, start: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """Compute logits of progress [n, 21] and of done [n].

        Args:
            scene: of n frames.
            start: float32 [n, K], the positions in the first frame of each episode.
            state: float32 [n, S], normalised.
        """
        squeezed = F.silu(self.squeeze(scene.patches)).flatten(1)
        moved = scene.places - start
        out = self.head(torch.cat([scene.places, start, moved, squeezed, scene.words, state], dim=1))
        return out[:, :BINS], out[:, BINS]
