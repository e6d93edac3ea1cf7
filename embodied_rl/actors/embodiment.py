"""Connection of a network to one robot, with all normalisation between the robot's units and the network's."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from embodied_rl.actors import tokenizer
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.backbone import FlowBackbone, PolicyInput
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.robot import Body
from embodied_rl.interfaces.sim import Observation, SimulatorSpec

KINDS = ("identity", "mean_std", "quantiles", "quantile10", "min_max", "limits")
SMALLEST_STD = 1e-4
LARGEST_PAD = 1e-5
"""Largest centre and scale of padding entries: openpi adds 1e-6 to a spread of 0."""

BLIND = ("none", "image", "instruction")
GRIPPERS = {"same": (1.0, 0.0), "inverted": (-1.0, 0.0), "zero_one": (2.0, -1.0), "one_zero": (-2.0, 1.0)}
"""Convention of the policy's gripper entries → (factor, offset) that turn them into the simulator's [-1, 1]."""
BINARY = "_binary"
"""End of a convention whose result becomes -1 or 1, as in the evaluations of OpenVLA on LIBERO."""


UNCONDITIONED = {"condition": "", "guidance": 1.0, "clipped": False}
"""Entries of an embodiment without a condition, or without a clip of its model actions, which are not stored."""


@dataclass(frozen=True)
class Normalisation:
    """An affine map of each entry: normalised = (value - center) / scale.

    Attributes:
        kind: statistics behind center and scale: mean and standard deviation; the 1 % and 99 % quantiles, the
            10 % and 90 % quantiles, or minimum and maximum, which become -1 and 1; the simulator's limits; or
            "identity", none.
        center, scale: of each entry.
    """

    kind: str
    center: tuple[float, ...]
    scale: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise `UserError` if the kind is unknown, or statistics differ in length, lack spread, or are not finite."""
        if self.kind not in KINDS:
            raise UserError(
                f"Statistics of kind {self.kind!r} are unknown; known: {', '.join(KINDS)}.", code="statistics-invalid"
            )
        if len(self.center) != len(self.scale):
            raise UserError(
                f"Statistics of {len(self.center)} centres and {len(self.scale)} scales do not fit.",
                code="statistics-invalid",
            )
        if not np.isfinite([*self.center, *self.scale]).all() or min((*self.scale, 1.0)) <= 0:
            raise UserError("Statistics must be finite, and every scale positive.", code="statistics-invalid")

    def __len__(self) -> int:
        return len(self.center)

    @staticmethod
    def identity(entries: int) -> "Normalisation":
        """Return a normalisation that keeps all units."""
        return Normalisation("identity", (0.0,) * entries, (1.0,) * entries)

    @staticmethod
    def from_bounds(
        kind: str, low: Sequence[float] | NDArray[Any], high: Sequence[float] | NDArray[Any]
    ) -> "Normalisation":
        """Return a normalisation that maps `low` to -1 and `high` to 1."""
        bottom, top = np.asarray(low, np.float64), np.asarray(high, np.float64)
        return Normalisation(kind, _floats((bottom + top) / 2), _floats((top - bottom) / 2))

    @staticmethod
    def from_values(values: NDArray[Any], kind: str = "mean_std") -> "Normalisation":
        """Compute statistics of each column of [m, entries]; a constant column gets scale 1 to stay readable."""
        if kind == "quantiles":
            low, high = np.quantile(values.astype(np.float64), (0.01, 0.99), axis=0)
            still = high - low < SMALLEST_STD
            return Normalisation.from_bounds(kind, np.where(still, low - 1, low), np.where(still, high + 1, high))
        mean, std = values.mean(axis=0, dtype=np.float64), values.std(axis=0, dtype=np.float64)
        return Normalisation("mean_std", _floats(mean), _floats(np.where(std < SMALLEST_STD, 1.0, std)))

    def unpadded(self, entries: int) -> "Normalisation":
        """Return the first entries if the others are only padding, as openpi's may be; else return it unchanged."""
        beyond = self.center[entries:] + self.scale[entries:]
        if not beyond or max(map(abs, beyond)) > LARGEST_PAD:
            return self
        return Normalisation(self.kind, self.center[:entries], self.scale[:entries])

    def normalise(self, values: Tensor) -> Tensor:
        """Convert values [..., entries] in the robot's units to the network's numbers, float32.

        It computes in double precision: the scale of a constant entry can be below the resolution of float32.
        """
        wide = values.double()
        return ((wide - wide.new_tensor(self.center)) / wide.new_tensor(self.scale)).float()

    def restore(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Convert arrays [..., entries] back to the robot's units: the inverse of `normalise`."""
        return (values * np.array(self.scale, np.float32) + np.array(self.center, np.float32)).astype(np.float32)


def _floats(values: NDArray[Any]) -> tuple[float, ...]:
    return tuple(map(float, values))


@dataclass(frozen=True)
class Embodiment:
    """Names, statistics and limits of one robot and its tasks; saved in every checkpoint.

    Attributes:
        cameras: names of the simulator's cameras the policy sees, in order.
        image_size: (height, width) of their images in pixels.
        state_names: the S entries of the state; state: their statistics, SI units.
        action_names: the A entries of an action; action_low, action_high: the simulator's limits.
        action: statistics of the policy's actions; of kind "limits" where -1 and 1 are the simulator's limits.
        vocabulary: words by id; entry 0 is the padding. Unused with a tokenizer.
        token_length: L, the longest prompt in words, or in the tokenizer's tokens.
        executed: Hx, actions of a chunk that are executed.
        blind: an input that the policy never gets: "none", "image" or "instruction"; for control experiments.
        privileged_names: entries of the privileged state with known statistics privileged_mean, privileged_std.
        views: the policy's names of `cameras`; the same names if empty.
        relative: for each action entry the state entry that it is relative to, or -1; all absolute if empty.
        gripper: convention of the policy's entries named gripper, a key of `GRIPPERS`, or one with `BINARY`.
        tokenizer: content of the tokenizer.json of the policy's language model; empty if ids are words.
        condition: words that follow each instruction, such as "advantage: positive"; empty for none.
        guidance: w of the deployed velocity v_null + w (v_condition - v_null), where v_null is that of instructions
            without the condition; 1 is the plain velocity under the condition, 0 that without it.
        clipped: whether the policy's actions are clipped to [-1, 1] before they are converted to the robot's units.
    """

    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    state_names: tuple[str, ...]
    state: Normalisation
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    action: Normalisation
    vocabulary: tuple[str, ...]
    token_length: int
    executed: int
    blind: str = "none"
    privileged_names: tuple[str, ...] = ()
    privileged_mean: tuple[float, ...] = ()
    privileged_std: tuple[float, ...] = ()
    views: tuple[str, ...] = ()
    relative: tuple[int, ...] = ()
    gripper: str = "same"
    tokenizer: str = field(default="", repr=False)
    condition: str = ""
    guidance: float = 1.0
    clipped: bool = False

    def __post_init__(self) -> None:
        """Raise `UserError` if lengths differ, limits have no finite range, or a setting is unknown."""
        states, actions, privileged = len(self.state_names), len(self.action_names), len(self.privileged_names)
        counts = {"state": states, "action": actions, "action_low": actions, "action_high": actions}
        counts |= {"privileged_mean": privileged, "privileged_std": privileged}
        counts |= {"views": len(self.cameras)} if self.views else {}
        counts |= {"relative": actions} if self.relative else {}
        for entry, count in counts.items():
            if len(getattr(self, entry)) != count:
                raise UserError(
                    f"embodiment.{entry} must have {count} entries, one for each name.", code="embodiment-invalid"
                )
        if max(self.relative, default=-1) >= states:
            raise UserError(
                f"embodiment.relative names state entry {max(self.relative)}, and the state has {states} entries: "
                "actions that are relative to the state need as many entries there.",
                code="embodiment-invalid",
            )
        for name, low, high in zip(self.action_names, self.action_low, self.action_high, strict=True):
            if not (np.isfinite([low, high]).all() and low < high):
                raise UserError(
                    f"Action {name!r} needs finite limits with low < high, not [{low}, {high}].",
                    code="embodiment-invalid",
                )
        if min((*self.privileged_std, 1.0)) <= 0:
            raise UserError("embodiment.privileged_std must be positive.", code="embodiment-invalid")
        if self.executed < 1:
            raise UserError(f"policy.executed={self.executed} must be at least 1.", code="executed-out-of-range")
        if self.blind not in BLIND:
            raise UserError(f"policy.blind={self.blind!r} is not one of {', '.join(BLIND)}.", code="blind-unknown")
        if self.gripper.removesuffix(BINARY) not in GRIPPERS:
            raise UserError(
                f"policy.gripper={self.gripper!r} is not one of {', '.join(GRIPPERS)}.", code="gripper-unknown"
            )
        if self.condition != " ".join(self.condition.split()):
            raise UserError(
                "embodiment.condition must be words, separated by single spaces.", code="embodiment-invalid"
            )
        if not (np.isfinite(self.guidance) and self.guidance >= 0) or (self.guidance != 1 and not self.condition):
            raise UserError(
                f"embodiment.guidance={self.guidance} must be at least 0, and 1 without a condition.",
                code="embodiment-invalid",
            )

    @staticmethod
    def of_simulator(spec: SimulatorSpec, executed: int, token_length: int) -> "Embodiment":
        """Return the embodiment of a simulator, its policy cameras and words, with means 0 and deviations 1.

        Raises:
            UserError: the policy's cameras differ in size.
        """
        cameras = [camera for camera in spec.cameras if camera.role == "policy"]
        sizes = {(camera.height, camera.width) for camera in cameras}
        if len(sizes) > 1:
            raise UserError(
                f"The cameras a policy sees must share one size, here {sorted(sizes)}.", code="camera-sizes-differ"
            )
        states, extras = len(spec.state_names), len(spec.privileged_names)
        return Embodiment(
            cameras=tuple(camera.name for camera in cameras),
            image_size=sizes.pop() if sizes else (0, 0),
            state_names=spec.state_names,
            state=Normalisation.identity(states),
            action_names=spec.action_names,
            action_low=spec.action_low,
            action_high=spec.action_high,
            action=Normalisation.from_bounds("limits", spec.action_low, spec.action_high),
            vocabulary=("", *sorted({word.lower() for word in spec.words})),
            token_length=token_length,
            executed=executed,
            privileged_names=spec.privileged_names,
            privileged_mean=(0.0,) * extras,
            privileged_std=(1.0,) * extras,
        )

    def check_body(self, body: Body, words: Sequence[str] = ()) -> None:
        """Check that this embodiment was made for a simulated or real robot, and for the `words` of its instructions.

        Raises:
            UserError: cameras, state or action entries, limits or words differ; the message names them.
        """
        for name in self.cameras:
            if body.cameras.get(name) != self.image_size:
                seen = dict(body.cameras)
                raise UserError(
                    f"The policy sees camera {name!r} at {self.image_size}; the simulator has {seen}.",
                    code="camera-size-mismatch",
                )
        for entry in ("state_names", "action_names", "action_low", "action_high"):
            mine, other = getattr(self, entry), tuple(getattr(body, entry))
            if mine != other:
                raise UserError(
                    f"The policy was made for another robot: its {entry} are {mine}, here {other}.",
                    code="policy-robot-mismatch",
                )
        unknown = sorted({word.lower() for word in words} - set(self.vocabulary))
        if unknown and not self.tokenizer:
            raise UserError(
                f"The policy was trained without the words {', '.join(unknown)} of this simulator.", code="word-unknown"
            )

    def with_statistics(
        self, state: NDArray[Any], privileged: NDArray[Any] | None = None, kind: str = "mean_std"
    ) -> "Embodiment":
        """Return a copy with statistics of recorded state [m, S] and, where given, privileged state [m, P]."""
        changed = replace(self, state=Normalisation.from_values(state, kind))
        if privileged is None:
            return changed
        truth = Normalisation.from_values(privileged)
        return replace(changed, privileged_mean=truth.center, privileged_std=truth.scale)

    def tokens(self, prompts: Sequence[str]) -> Tensor:
        """Convert n prompts to token ids int64 [n, L], 0 where padded.

        Raises:
            UserError: a word is unknown (the message names it), or a prompt has more than L tokens.
        """
        if self.tokenizer:
            return torch.from_numpy(tokenizer.tokenize_pieces(prompts, self.tokenizer, self.token_length))
        return torch.from_numpy(tokenizer.tokenize_words(prompts, self.vocabulary, self.token_length))

    def inputs(
        self, observation: Observation, network: FlowBackbone, condition: str | Sequence[str] | None = None
    ) -> PolicyInput:
        """Convert an observation to the network's inputs, on the observation's device, without privileged state.

        `condition` follows the instructions of all rows, or one of n of each; None for the embodiment's own. It says
        nothing about the task, so that a policy without instructions (`blind`) gets it, too.

        Raises:
            UserError: a camera is missing, an image or the state has another size, or a word is unknown.
        """
        images: dict[str, Tensor] = {}
        for view, name in zip(self.view_names, self.cameras, strict=True):
            if name not in observation.images:
                shown = ", ".join(observation.images)
                raise UserError(f"The policy sees camera {name!r}; the simulator shows {shown}.", code="camera-missing")
            image = images[view] = torch.as_tensor(observation.images[name])
            if image.shape[1:] != (*self.image_size, 3) or image.dtype != torch.uint8:
                raise UserError(
                    f"Camera {name!r}: the policy takes uint8 images of {(*self.image_size, 3)}, "
                    f"not {image.dtype} of {tuple(image.shape[1:])}.",
                    code="image-size-mismatch",
                )
        state = torch.as_tensor(observation.state)
        if state.shape[1:] != (len(self.state_names),):
            raise UserError(
                f"The policy takes {len(self.state_names)} state entries, not {tuple(state.shape[1:])}.",
                code="policy-robot-mismatch",
            )
        normal = self.state.normalise(state)
        instructions = [""] * len(state) if self.blind == "instruction" else observation.instruction
        added = self.condition if condition is None else condition
        tokens = self.tokens(network.prompts(add_conditions(instructions, added), normal))
        if self.blind == "image":
            images = {name: torch.zeros_like(image) for name, image in images.items()}
        return PolicyInput(images, pad(normal, (0, network.spec.state_dim - normal.shape[1])), tokens)

    @property
    def view_names(self) -> tuple[str, ...]:
        """Return the policy's own names of its cameras."""
        return self.views or self.cameras

    @property
    def vocabulary_size(self) -> int:
        """Return the number of token ids."""
        return tokenizer.count_ids(self.tokenizer) if self.tokenizer else len(self.vocabulary)

    def normalise_privileged(self, privileged: NDArray[Any] | Tensor, names: Sequence[str]) -> Tensor:
        """Normalise privileged state [n, P] with columns `names` to float32 [n, P]; unknown names keep their units."""
        means = dict(zip(self.privileged_names, self.privileged_mean, strict=True))
        deviations = dict(zip(self.privileged_names, self.privileged_std, strict=True))
        values = torch.as_tensor(privileged)
        mean = values.new_tensor([means.get(name, 0.0) for name in names])
        return ((values - mean) / values.new_tensor([deviations.get(name, 1.0) for name in names])).float()

    def actions(self, x: Tensor, state: NDArray[Any] | Tensor) -> NDArray[np.float32]:
        """Convert the executed ones of model actions [n, H, D] to simulator actions float32 [n, Hx, A]."""
        return self.all_actions(x[:, : self.executed], state)

    def all_actions(self, x: Tensor, state: NDArray[Any] | Tensor) -> NDArray[np.float32]:
        """Convert model actions [n, H, D] to simulator actions float32 [n, H, A]; only here they are clipped.

        Relative actions are relative to `state` [n, S] in SI units. NaN stays NaN, so that the caller can find and
        report it.
        """
        low, high = np.array(self.action_low, np.float32), np.array(self.action_high, np.float32)
        unit = x[:, :, : len(low)].detach().float().cpu().numpy()
        unit = unit.clip(-1, 1) if self.clipped else unit
        if self.action.kind == "limits":
            return np.clip(low + (unit + 1) * ((high - low) / 2), low, high).astype(np.float32)
        absolute = self.action.restore(unit) + self._origin(state)
        factor, offset = self._gripper_map()
        values = absolute * factor + offset
        if self.gripper.endswith(BINARY):
            values = np.where(["gripper" in name for name in self.action_names], np.sign(values), values)
        return np.clip(values, low, high).astype(np.float32)

    def model_actions(self, actions: NDArray[Any] | Tensor, state: NDArray[Any] | Tensor, action_dim: int) -> Tensor:
        """Convert simulator actions [n, H, A] to float32 [n, H, D], zeros beyond A; inverts `actions` within limits."""
        values = torch.as_tensor(actions).float()
        if self.action.kind == "limits":
            low, high = values.new_tensor(self.action_low), values.new_tensor(self.action_high)
            unit = (values - low) * (2 / (high - low)) - 1
        else:
            factor, offset = self._gripper_map()
            policy = (values - values.new_tensor(offset)) / values.new_tensor(factor)
            unit = self.action.normalise(policy - values.new_tensor(self._origin(state)))
            unit = unit.clamp(-1, 1) if self.clipped else unit
        return pad(unit, (0, action_dim - len(self.action_low)))

    def _origin(self, state: NDArray[Any] | Tensor) -> NDArray[np.float32]:
        """Return the values that action entries are relative to, [n, 1, A]; 0 where an entry is absolute."""
        values = torch.as_tensor(state).detach().float().cpu().numpy()
        origin = np.zeros((len(values), 1, len(self.action_names)), np.float32)
        for entry, source in enumerate(self.relative):
            if source >= 0:
                origin[:, 0, entry] = values[:, source]
        return origin

    def _gripper_map(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return factor and offset [A] from the policy's convention to the simulator's; 1 and 0 except for grippers."""
        pairs = [
            GRIPPERS[self.gripper.removesuffix(BINARY)] if "gripper" in name else (1.0, 0.0)
            for name in self.action_names
        ]
        return np.array([pair[0] for pair in pairs], np.float32), np.array([pair[1] for pair in pairs], np.float32)

    def to_dict(self) -> dict[str, Any]:
        """Return the entries as plain values, for JSON; without those of a condition if there is none."""
        return {name: value for name, value in asdict(self).items() if UNCONDITIONED.get(name) != value}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Embodiment":
        """Create an embodiment from a result of `to_dict`, also after JSON: the inverse of `to_dict`.

        Raises:
            UserError: entries are missing or unknown, or of another type; the message names them.
        """
        names = {field.name for field in fields(Embodiment)}
        if "state_mean" in data:  # an embodiment that the first version stored
            changed = dict(data)
            state = Normalisation("mean_std", tuple(changed.pop("state_mean")), tuple(changed.pop("state_std")))
            limits = Normalisation.from_bounds("limits", data["action_low"], data["action_high"])
            added = {"state": asdict(state), "action": asdict(limits), "gripper": "same", "tokenizer": ""}
            data = {**changed, **added, "views": [], "relative": []}
        data = {**UNCONDITIONED, **data}
        if wrong := sorted(names ^ set(data)):
            raise UserError(
                f"The stored embodiment does not fit this version: entries {', '.join(wrong)}.",
                code="embodiment-version-mismatch",
            )
        return freeze_config(Embodiment, data, "embodiment")


def add_conditions(instructions: Sequence[str], condition: str | Sequence[str]) -> Sequence[str]:
    """Return n instructions followed by one condition, or each by its own of n; an empty one changes nothing."""
    if not len(condition):
        return instructions
    conditions = [condition] * len(instructions) if isinstance(condition, str) else condition
    return [" ".join(filter(None, pair)) for pair in zip(instructions, conditions, strict=True)]
