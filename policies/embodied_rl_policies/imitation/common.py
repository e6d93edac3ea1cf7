"""What ACT and Diffusion Policy share: sizes of robot and images, normalised images, keys of lerobot's config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from embodied_rl.interfaces.backbone import ImitationBackbone, PolicyInput, PolicySpec
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl_policies.imitation.resnet import IMAGENET_MEAN, IMAGENET_STD
from embodied_rl_policies.vlm import MAX_LAYERS

Shapes = Mapping[str, tuple[int, ...]]
IMAGES, STATE = "observation.images.", "observation.state"


@dataclass(frozen=True)
class ImitationConfig:
    """Sizes of robot and images; those of a checkpoint replace them."""

    trunk: Literal["resnet18", "resnet34"] = "resnet18"
    """the network that reads images."""
    action_dim: int = 0
    """entries of an action; 0 takes the robot's."""
    state_dim: int = 0
    """entries of a state; 0 takes the robot's."""
    image_size: tuple[int, ...] = ()
    """height and width of the images it was trained with, which are not resized; empty for any."""
    image_mean: tuple[float, ...] = ()
    """of the red, green and blue of each camera, 0 to 1; empty takes ImageNet's."""
    image_std: tuple[float, ...] = ()
    """their standard deviations."""

    def __post_init__(self) -> None:
        """Raise `UserError` if a value is invalid; the message names the key to change."""
        for entry in fields(self):
            value, least = getattr(self, entry.name), 0 if entry.name in ("action_dim", "state_dim") else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise UserError(f"policy.{entry.name}={value} must be at least {least}.", code="value-out-of-range")
            if entry.name.endswith("layers") and value > MAX_LAYERS:
                message = f"policy.{entry.name}={value} must be at most {MAX_LAYERS}."
                raise UserError(message, code="value-out-of-range")
        if len(self.image_mean) != len(self.image_std) or min((*self.image_std, 1.0)) <= 0:
            message = "policy.image_mean and policy.image_std must have one entry for each other, those positive."
            raise UserError(message, code="statistics-invalid")


class ImitationPolicy(ForeignCheckpoint, ImitationBackbone):
    """A policy of lerobot that reads images and the state of one robot, and no words."""

    CAN_BE_EMPTY = True
    EXPORTS_TO = ("lerobot",)
    NAME: ClassVar[str]
    config: Any

    def __init__(
        self,
        config: Any,
        action_dim: int,
        state_dim: int,
        cameras: Sequence[str],
        image_size: tuple[int, int],
        vocabulary_size: int,
        token_length: int,
        auxiliary_names: Sequence[str] = (),
    ) -> None:
        """Build the network with fresh weights from torch's global generator.

        Dimensions, number of cameras and image size are those of `config`, where it has any. Auxiliary names must be
        empty.

        Raises:
            UserError: they are not, or no camera is given.
        """
        super().__init__()
        told = {"action_dim": (config.action_dim, action_dim), "state_dim": (config.state_dim, state_dim)}
        told |= {"cameras": (len(config.image_mean) // 3, len(cameras))}
        told |= {"image_size": (tuple(config.image_size), tuple(map(int, image_size)))}
        for name, (wanted, given) in told.items():
            if wanted and wanted != given:
                message = f"{self.NAME} was made for {name}={wanted}, and here it is {given}: choose the simulator's "
                raise UserError(f"{message}cameras and robot that it was trained with.", code="policy-does-not-fit")
        if not cameras or auxiliary_names:
            message = "needs a camera" if not cameras else "has no head that predicts positions: type algo=sft_vla"
            code = "auxiliary-head-missing" if cameras else "camera-missing"
            raise UserError(f"{self.NAME} {message}.", code=code)
        self.config, (height, width) = config, image_size
        self.spec = PolicySpec(
            horizon=config.horizon,
            action_dim=action_dim,
            state_dim=state_dim,
            cameras=tuple(cameras),
            image_size=(int(height), int(width)),
            token_length=token_length,
            feature_dim=1,
            context_dim=1,
        )

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return means and deviations of the images, red, green and blue of each camera."""
        count = len(self.spec.cameras)
        return self.config.image_mean or IMAGENET_MEAN * count, self.config.image_std or IMAGENET_STD * count

    def read_images(self, inputs: PolicyInput) -> list[Tensor]:
        """Return the normalised images float32 [n, 3, h, w] of each camera."""
        found: list[Tensor] = []
        for index, camera in enumerate(self.spec.cameras):
            image = inputs.images[camera].permute(0, 3, 1, 2).float() / 255
            mean, std = (image.new_tensor(part[3 * index : 3 * index + 3]) for part in self.statistics())
            found.append((image - mean[:, None, None]) / std[:, None, None])
        return found

    def checkpoint_statistics(self) -> dict[str, tuple[tuple[float, ...], tuple[float, ...]]]:
        """Return camera → means and deviations of its images."""
        mean, std = self.statistics()
        parts = (slice(3 * index, 3 * index + 3) for index in range(len(self.spec.cameras)))
        return {camera: (mean[part], std[part]) for camera, part in zip(self.spec.cameras, parts, strict=True)}

    @classmethod
    def checkpoint_sizes(cls, shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Read the sizes from lerobot's configuration.

        Raises:
            UserError: the checkpoint is of another format, or lacks a key.
        """
        try:
            seen = [entry["shape"] for name, entry in config["input_features"].items() if name.startswith(IMAGES)]
            if not seen:
                raise KeyError(f"input_features.{IMAGES}…")
            found = {
                "trunk": config["vision_backbone"],
                "action_dim": config["output_features"]["action"]["shape"][0],
                "state_dim": config["input_features"][STATE]["shape"][0],
                "image_size": tuple(seen[0][1:]),
                "image_mean": tuple(value for mean, _ in config["image_statistics"] for value in mean),
                "image_std": tuple(value for _, std in config["image_statistics"] for value in std),
            } | cls.read_sizes(config)
        except (KeyError, IndexError) as error:
            message = f"The checkpoint's config.json is not that of lerobot's {cls.NAME}: {error} is missing."
            raise UserError(message, code="checkpoint-unsupported") from None
        if any(shape[1:] != seen[0][1:] for shape in seen):
            message = f"The cameras of this {cls.NAME} have several sizes, which is not supported."
            raise UserError(message, code="camera-sizes-differ")
        return found

    @classmethod
    def read_sizes(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return further keys of `Config` from lerobot's config.json; raise KeyError if one is missing."""
        raise NotImplementedError

    def checkpoint_config(self, form: str, steps: int) -> dict[str, Any]:
        """Return the entries of lerobot's config.json that are specific to this policy.

        Raises:
            UserError: the format is openpi.
        """
        if form != "lerobot":
            raise UserError(f"{form} has no {self.NAME}: give format=lerobot.", code="format-does-not-support-policy")
        return {"vision_backbone": self.config.trunk, "pretrained_backbone_weights": None, **self.write_sizes()}

    def write_sizes(self) -> dict[str, Any]:
        """Return further entries of lerobot's config.json: the inverse of `read_sizes`."""
        raise NotImplementedError
