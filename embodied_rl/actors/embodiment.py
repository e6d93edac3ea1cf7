"""What ties a network to one robot: the only place that normalises, the same in training, evaluation and deployment."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_rl.interfaces.policy import PolicyInput
from embodied_rl.interfaces.sim import Observation, SimulatorSpec

BLIND = ("none", "image", "instruction")
SMALLEST_STD = 1e-4


@dataclass(frozen=True)
class Embodiment:
    """Names, statistics and limits of one robot and its tasks; saved in every checkpoint.

    Attributes:
        cameras: names of the cameras the policy sees, in order.
        image_size: (height, width) of their images in pixels.
        state_names: the S entries of the state; state_mean, state_std: their statistics, SI units.
        action_names: the A entries of an action; action_low, action_high: the simulator's limits.
        vocabulary: words by id; entry 0 is the pad.
        token_length: L, the longest instruction in words.
        executed: Hx, actions of a chunk that are executed.
        blind: an input that the policy never gets: "none", "image" or "instruction"; for controls that show whether a
            task needs it.
        privileged_names: entries of the privileged state with known statistics privileged_mean, privileged_std.
    """

    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    state_names: tuple[str, ...]
    state_mean: tuple[float, ...]
    state_std: tuple[float, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    vocabulary: tuple[str, ...]
    token_length: int
    executed: int
    blind: str = "none"
    privileged_names: tuple[str, ...] = ()
    privileged_mean: tuple[float, ...] = ()
    privileged_std: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what could only fail later.

        Raises:
            ValueError: for lengths that differ, limits without a finite range, or statistics without spread.
        """
        for prefix, parts in (("state", ("mean", "std")), ("action", ("low", "high")), ("privileged", ("mean", "std"))):
            names = getattr(self, f"{prefix}_names")
            for part in parts:
                if len(getattr(self, f"{prefix}_{part}")) != len(names):
                    raise ValueError(f"embodiment.{prefix}_{part} must have {len(names)} entries, one for each name.")
        for name, low, high in zip(self.action_names, self.action_low, self.action_high, strict=True):
            if not (np.isfinite([low, high]).all() and low < high):
                raise ValueError(f"Action {name!r} needs finite limits with low < high, not [{low}, {high}].")
        if min((*self.state_std, *self.privileged_std, 1.0)) <= 0:
            raise ValueError("embodiment.state_std and privileged_std must be positive.")
        if self.executed < 1:
            raise ValueError(f"policy.executed={self.executed} must be at least 1.")
        if self.blind not in BLIND:
            raise ValueError(f"policy.blind={self.blind!r} is not one of {', '.join(BLIND)}.")

    @staticmethod
    def of(spec: SimulatorSpec, executed: int, token_length: int) -> "Embodiment":
        """The embodiment of a simulator, its policy cameras and words, with means 0 and deviations 1.

        Raises:
            ValueError: where the policy's cameras differ in size.
        """
        cameras = [camera for camera in spec.cameras if camera.role == "policy"]
        sizes = {(camera.height, camera.width) for camera in cameras}
        if len(sizes) > 1:
            raise ValueError(f"The cameras a policy sees must share one size, here {sorted(sizes)}.")
        states, extras = len(spec.state_names), len(spec.privileged_names)
        return Embodiment(
            cameras=tuple(camera.name for camera in cameras),
            image_size=sizes.pop() if sizes else (0, 0),
            state_names=spec.state_names,
            state_mean=(0.0,) * states,
            state_std=(1.0,) * states,
            action_names=spec.action_names,
            action_low=spec.action_low,
            action_high=spec.action_high,
            vocabulary=("", *sorted({word.lower() for word in spec.words})),
            token_length=token_length,
            executed=executed,
            privileged_names=spec.privileged_names,
            privileged_mean=(0.0,) * extras,
            privileged_std=(1.0,) * extras,
        )

    def check(self, spec: SimulatorSpec) -> None:
        """Refuse a simulator that this embodiment was not made for.

        Raises:
            ValueError: naming the cameras, state or action entries, limits or words that differ.
        """
        cameras = {camera.name: (camera.height, camera.width) for camera in spec.cameras}
        for name in self.cameras:
            if cameras.get(name) != self.image_size:
                raise ValueError(f"The policy sees camera {name!r} at {self.image_size}; the simulator has {cameras}.")
        for entry in ("state_names", "action_names", "action_low", "action_high"):
            mine, other = getattr(self, entry), tuple(getattr(spec, entry))
            if mine != other:
                raise ValueError(f"The policy was made for another robot: its {entry} are {mine}, here {other}.")
        if unknown := sorted({word.lower() for word in spec.words} - self.word_ids.keys()):
            raise ValueError(f"The policy was trained without the words {', '.join(unknown)} of this simulator.")

    def with_statistics(self, state: NDArray[Any], privileged: NDArray[Any] | None = None) -> "Embodiment":
        """The same with means and deviations of recorded state [m, S] and, where given, privileged state [m, P]."""
        mean, std = _statistics(state)
        changed = replace(self, state_mean=mean, state_std=std)
        if privileged is None:
            return changed
        mean, std = _statistics(privileged)
        return replace(changed, privileged_mean=mean, privileged_std=std)

    @cached_property
    def word_ids(self) -> dict[str, int]:
        """word → id, without the pad."""
        return {word: index for index, word in enumerate(self.vocabulary) if index}

    def tokens(self, instructions: Sequence[str]) -> Tensor:
        """n instructions → word ids int64 [n, L], 0 where padded.

        Raises:
            ValueError: for an unknown word, by name, or an instruction of more than L words.
        """
        ids = np.zeros((len(instructions), self.token_length), np.int64)
        for row, text in enumerate(instructions):
            words = text.lower().split()
            if unknown := [word for word in words if word not in self.word_ids]:
                known = ", ".join(self.word_ids)
                raise ValueError(f"The policy does not know the word {unknown[0]!r} of {text!r}; it knows {known}.")
            if len(words) > self.token_length:
                raise ValueError(f"{text!r} has {len(words)} words; the policy reads at most {self.token_length}.")
            ids[row, : len(words)] = [self.word_ids[word] for word in words]
        return torch.from_numpy(ids)

    def inputs(self, observation: Observation) -> PolicyInput:
        """An observation as the network takes it, on the device it lives on. Privileged state is left behind.

        Raises:
            ValueError: for a missing camera, an image or a state of another size, or an unknown word.
        """
        images = {name: self._image(observation, name) for name in self.cameras}
        state = torch.as_tensor(observation.state)
        if state.shape[1:] != (len(self.state_names),):
            raise ValueError(f"The policy takes {len(self.state_names)} state entries, not {tuple(state.shape[1:])}.")
        tokens = self.tokens(observation.instruction)
        if self.blind == "image":
            images = {name: torch.zeros_like(image) for name, image in images.items()}
        if self.blind == "instruction":
            tokens = torch.zeros_like(tokens)
        return PolicyInput(images, self.normalise_state(state), tokens)

    def _image(self, observation: Observation, name: str) -> Tensor:
        if name not in observation.images:
            raise ValueError(f"The policy sees camera {name!r}; the simulator shows {', '.join(observation.images)}.")
        image = torch.as_tensor(observation.images[name])
        if image.shape[1:] != (*self.image_size, 3) or image.dtype != torch.uint8:
            raise ValueError(
                f"Camera {name!r}: the policy takes uint8 images of {(*self.image_size, 3)}, "
                f"not {image.dtype} of {tuple(image.shape[1:])}."
            )
        return image

    def normalise_state(self, state: Tensor) -> Tensor:
        """Proprioception [n, S] in SI units → float32 [n, S]."""
        mean, std = state.new_tensor(self.state_mean), state.new_tensor(self.state_std)
        return ((state - mean) / std).float()

    def normalise_privileged(self, privileged: NDArray[Any] | Tensor, names: Sequence[str]) -> Tensor:
        """Privileged state [n, P] whose columns are `names` → float32 [n, P]; unknown names keep their units."""
        known = {
            name: (mean, std)
            for name, mean, std in zip(self.privileged_names, self.privileged_mean, self.privileged_std, strict=True)
        }
        pairs = [known.get(name, (0.0, 1.0)) for name in names]
        values = torch.as_tensor(privileged)
        return ((values - values.new_tensor([p[0] for p in pairs])) / values.new_tensor([p[1] for p in pairs])).float()

    def actions(self, x: Tensor) -> NDArray[np.float32]:
        """Model actions [n, H, D] → simulator actions float32 [n, Hx, A]; here and only here they are clipped.

        -1 and 1 are the simulator's limits. NaN stays NaN, for whoever sends the action to find and name.
        """
        low, high = np.array(self.action_low, np.float32), np.array(self.action_high, np.float32)
        unit = x[:, : self.executed, : len(low)].detach().cpu().numpy()
        return np.clip(low + (unit + 1) * ((high - low) / 2), low, high).astype(np.float32)

    def model_actions(self, actions: NDArray[Any] | Tensor, action_dim: int) -> Tensor:
        """Simulator actions [n, H, A] → float32 [n, H, D], zeros beyond A: the inverse of `actions` within limits."""
        values = torch.as_tensor(actions).float()
        low, high = values.new_tensor(self.action_low), values.new_tensor(self.action_high)
        unit = (values - low) * (2 / (high - low)) - 1
        return torch.nn.functional.pad(unit, (0, action_dim - len(self.action_low)))

    def to_dict(self) -> dict[str, Any]:
        """Plain lists, numbers and strings, for JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Embodiment":
        """The inverse of `to_dict`.

        Raises:
            ValueError: naming entries that are missing or unknown.
        """
        names = {field.name for field in fields(Embodiment)}
        if wrong := sorted(names ^ set(data)):
            raise ValueError(f"The stored embodiment does not fit this version: entries {', '.join(wrong)}.")
        plain: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
        return Embodiment(**plain)


def _statistics(values: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each column; a column that never moves gets 1, so that it stays readable."""
    mean, std = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
    std = np.where(std < SMALLEST_STD, 1.0, std)
    return tuple(map(float, mean)), tuple(map(float, std))
