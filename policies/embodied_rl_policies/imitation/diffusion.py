"""Diffusion Policy (arXiv:2303.04137) as lerobot has it: a chunk is denoised under the features of images and states.

It may read the observations of several control steps; its chunk begins at the oldest of them, and what lies before the
current one is not used. Weights, names and formulas are lerobot's.

Shapes: `n` rows, `H` actions from the current observation on, `T` all actions of the chunk, `D` action dimensions, `J`
keypoints of an image, `G` entries of the condition.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from embodied_rl.interfaces.backbone import Context, PolicyInput
from embodied_rl.interfaces.errors import UserError
from embodied_rl_policies.imitation.common import ImitationConfig, ImitationPolicy
from embodied_rl_policies.imitation.noise_schedule import NoiseSchedule
from embodied_rl_policies.imitation.resnet import WIDTHS, FrozenBatchNorm, make_group_norm, make_trunk
from embodied_rl_policies.imitation.unet import UNet

CONFIGURED = {
    "observations": "n_obs_steps", "keypoints": "spatial_softmax_num_keypoints", "group_norm": "use_group_norm",
    "separate_trunks": "use_separate_rgb_encoder_per_camera", "kernel": "kernel_size", "groups": "n_groups",
    "step_width": "diffusion_step_embed_dim", "scales": "use_film_scale_modulation", "kind": "noise_scheduler_type",
    "target": "prediction_type", "steps": "num_train_timesteps", "schedule": "beta_schedule",
    "beta_start": "beta_start", "beta_end": "beta_end", "mask_padding": "do_mask_loss_for_padding",
}  # fmt: skip
"""Our key → lerobot's, for keys of equal meaning."""
MOST_STEPS = 10_000


@dataclass(frozen=True)
class DiffusionConfig(ImitationConfig):
    """Sizes of the network."""

    horizon: int = 15
    """H, actions predicted from the current observation on; with those before it, a multiple of 2 for each entry of
    `channels`."""
    observations: int = 2
    """control steps whose observations it reads."""
    resize: tuple[int, ...] = ()
    """height and width that images are resized to; empty for none."""
    crop: tuple[int, ...] = ()
    """height and width of the middle of the images, which is all that it sees; empty for none."""
    keypoints: int = 32
    """J, points of an image, one a channel (spatial softmax)."""
    group_norm: bool = True
    """whether the trunk has group normalisation instead of batch normalisation with fixed statistics."""
    separate_trunks: bool = False
    """whether each camera has a trunk of its own."""
    channels: tuple[int, ...] = (512, 1024, 2048)
    """of the levels of the U-Net."""
    kernel: int = 5
    """of its convolutions, an odd number of actions."""
    groups: int = 8
    """of its normalisation; they divide all `channels`, as 8 does the first."""
    step_width: int = 128
    """entries of the embedding of a diffusion step; even, at least 4."""
    scales: bool = True
    """whether the condition scales channels, besides shifting them."""
    kind: Literal["DDPM", "DDIM"] = "DDPM"
    """how it denoises: DDPM, or DDIM without further noise."""
    target: Literal["epsilon", "sample"] = "epsilon"
    """what the network predicts: epsilon, the noise, or sample, the actions."""
    steps: int = 100
    """diffusion steps of training."""
    denoise_steps: int = 100
    """those of them at which it denoises, evenly spaced."""
    clip: float = 1.0
    """largest absolute value of normalised actions while denoising; 0 for none."""
    schedule: Literal["squaredcos_cap_v2", "linear", "scaled_linear"] = "squaredcos_cap_v2"
    """of the noise."""
    beta_start: float = 1e-4
    """first variance of the linear schedules."""
    beta_end: float = 0.02
    """last variance of these."""
    mask_padding: bool = False
    """whether actions beyond an episode's end are left out of the loss, instead of repeating its last one."""

    def __post_init__(self) -> None:
        """Raise `UserError` if a value is invalid; the message names the key to change."""
        super().__post_init__()
        length, factor = self.horizon + self.observations - 1, 2 ** len(self.channels)
        rules = {
            f"policy.horizon={self.horizon} and policy.observations={self.observations} give chunks of {length} "
            f"actions, which must be a multiple of {factor}": length % factor == 0,
            f"policy.denoise_steps={self.denoise_steps} must be at most policy.steps={self.steps}, and that at most "
            f"{MOST_STEPS}": self.denoise_steps <= self.steps <= MOST_STEPS,
            f"policy.channels={self.channels} must be multiples of policy.groups={self.groups}, the first also of 8":
                min((*self.channels, 0 if self.channels else -1)) >= 0
                and not any(size <= 0 or size % self.groups for size in self.channels) and self.channels[0] % 8 == 0,
            f"policy.resize={self.resize} and policy.crop={self.crop} must be empty, or a height and a width of at "
            "least 1": all(not size or (len(size) == 2 and min(size) >= 1) for size in (self.resize, self.crop)),
            f"policy.kernel={self.kernel} must be odd": self.kernel % 2 == 1,
            f"policy.step_width={self.step_width} must be even, and at least 4":
                self.step_width % 2 == 0 and self.step_width >= 4,
            f"policy.clip={self.clip} must be at least 0": self.clip >= 0,
            "policy.beta_start and policy.beta_end must lie between 0 and 1": 0 < self.beta_start < 1
            and 0 < self.beta_end < 1,
        }  # fmt: skip
        for rule, holds in rules.items():
            if not holds:
                raise UserError(f"{rule}.", code="policy-sizes-invalid")


class SpatialSoftmax(nn.Module):
    """The expected place of each of J maps, from -1 to 1 (arXiv:1504.00702)."""

    def __init__(self, channels: int, keypoints: int, height: int, width: int) -> None:
        super().__init__()
        self.nets = nn.Conv2d(channels, keypoints, 1)
        y, x = (torch.linspace(-1, 1, count, dtype=torch.float64).float() for count in (height, width))
        grid = torch.stack([x.expand(height, -1), y[:, None].expand(-1, width)], dim=-1)
        self.register_buffer("pos_grid", grid.flatten(0, 1).clone())

    def forward(self, features: Tensor) -> Tensor:
        """Find the keypoints [n, J, 2] of [n, channels, height, width]."""
        return self.nets(features).flatten(2).softmax(dim=-1) @ self.get_buffer("pos_grid")


class ImageEncoder(nn.Module):
    """A trunk, keypoints, and a linear map: images [n, 3, h, w] → features [n, 2 J]."""

    def __init__(self, config: DiffusionConfig, image_size: tuple[int, int]) -> None:
        super().__init__()
        self.resize, self.crop = config.resize, config.crop
        norm = make_group_norm if config.group_norm else lambda channels: FrozenBatchNorm(channels, learns=True)
        self.backbone = nn.Sequential(*make_trunk(config.trunk, norm).values())
        height, width = (-(-size // 32) for size in config.crop or config.resize or image_size)
        self.pool = SpatialSoftmax(WIDTHS[-1], config.keypoints, height, width)
        self.out = nn.Linear(2 * config.keypoints, 2 * config.keypoints)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the features; images are resized with smoothing, and cropped around the middle."""
        if self.resize:
            x = F.interpolate(x, tuple(self.resize), mode="bilinear", antialias=True)
        if self.crop:
            top, left = (round((have - want) / 2) for have, want in zip(x.shape[-2:], self.crop, strict=True))
            x = x[..., top : top + self.crop[0], left : left + self.crop[1]]
        return F.relu(self.out(self.pool(self.backbone(x)).flatten(1)))


class Diffusion(ImitationPolicy):
    """Diffusion Policy with fresh weights until a checkpoint is read."""

    Config = DiffusionConfig
    NAME = "Diffusion Policy"
    CHECKPOINT_OUTERMOST = "diffusion."
    CHECKPOINT_UNREAD = (r".*\.num_batches_tracked$",)
    config: DiffusionConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Build the network; see `ImitationPolicy`.

        Raises:
            UserError: see there, or the images are smaller than their crop.
        """
        super().__init__(*arguments, **named)
        config, spec, size = self.config, self.spec, self.spec.image_size
        if config.crop and any(want > have for want, have in zip(config.crop, config.resize or size, strict=True)):
            message = f"policy.crop={tuple(config.crop)} exceeds images of {tuple(config.resize or size)}."
            raise UserError(message, code="policy-sizes-invalid")
        self.observations, cameras = config.observations, len(spec.cameras)
        encoders = [ImageEncoder(config, size) for _ in range(cameras if config.separate_trunks else 1)]
        self.rgb_encoder = nn.ModuleList(encoders) if config.separate_trunks else encoders[0]
        self.unet = UNet(
            spec.action_dim,
            (spec.state_dim + 2 * config.keypoints * cameras) * config.observations,
            channels=config.channels, step_width=config.step_width, kernel=config.kernel, groups=config.groups,
            scales=config.scales,
        )  # fmt: skip
        self.noise = NoiseSchedule(
            config.kind, config.target, config.steps, config.denoise_steps, config.clip or torch.inf, config.schedule,
            config.beta_start, config.beta_end,
        )  # fmt: skip
        self.noise_shape = (self.noise.draws, config.horizon + config.observations - 1, spec.action_dim)

    @classmethod
    def read_sizes(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        resize, ratio, crop = config.get("resize_shape") or (), config.get("crop_ratio", 1.0), config.get("crop_shape")
        if not 0 < ratio < math.inf:
            raise UserError(f"crop_ratio={ratio} must be above 0.", code="checkpoint-unsupported")
        if resize:  # then the crop is a share of that, in lerobot since 0.5
            crop = [int(size * ratio) for size in resize] if ratio < 1 else ()
        return {ours: config[theirs] for ours, theirs in CONFIGURED.items()} | {
            "horizon": config["horizon"] - config["n_obs_steps"] + 1,
            "channels": tuple(config["down_dims"]),
            "resize": tuple(resize),
            "crop": tuple(crop or ()),
            "denoise_steps": config.get("num_inference_steps") or config["num_train_timesteps"],
            "clip": float(config["clip_sample_range"]) if config["clip_sample"] else 0.0,
        }

    def write_sizes(self) -> dict[str, Any]:
        config, ratio = self.config, 1.0
        if config.crop and config.resize:  # lerobot takes the whole part of the share
            ratio = (config.crop[0] + 0.5) / config.resize[0]
            if ratio >= 1 or int(config.resize[1] * ratio) != config.crop[1]:
                message = (
                    f"lerobot has no policy.crop={config.crop} of policy.resize={config.resize}: it crops a share."
                )
                raise UserError(message, code="export-not-expressible")
        return {theirs: getattr(config, ours) for ours, theirs in CONFIGURED.items()} | {
            "horizon": config.horizon + config.observations - 1,
            "down_dims": list(config.channels),
            "resize_shape": list(config.resize) or None,
            "crop_ratio": ratio,
            "crop_shape": list(config.crop) or None,
            "num_inference_steps": config.denoise_steps,
            "clip_sample": config.clip > 0,
            "clip_sample_range": config.clip or 1.0,
        }

    def unread_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the counters of lerobot's batch normalisation, which no forward pass reads."""
        names = (name for name, _ in self.named_buffers() if name.endswith("running_mean"))
        return {name.replace("running_mean", "num_batches_tracked"): () for name in names}

    def encode(self, inputs: PolicyInput) -> Context:
        """Encode images and states of all observations.

        Returns:
            "condition" float32 [n, G].
        """
        steps = [*inputs.earlier[-self.observations + 1 :], inputs] if self.observations > 1 else [inputs]
        steps = [*[steps[0]] * (self.observations - len(steps)), *steps]
        condition = torch.cat([part for step in steps for part in (step.state, *self._see(step))], dim=1)
        return Context({"condition": condition}, condition.mean(dim=1, keepdim=True).float())

    def _see(self, inputs: PolicyInput) -> list[Tensor]:
        images, encoder = self.read_images(inputs), self.rgb_encoder
        encoders = encoder if isinstance(encoder, nn.ModuleList) else [encoder] * len(images)
        return [each(image) for each, image in zip(encoders, images, strict=True)]

    def predict(self, context: Context, noise: Tensor | None) -> Tensor:
        """Denoise chunks, and return their actions [n, H, D] from the current observation on."""
        assert noise is not None, "noise_shape says so"
        condition = context.tensors["condition"]

        def predict(x: Tensor, step: int) -> Tensor:
            steps = torch.full((len(x),), step, dtype=torch.int64, device=x.device)
            return self.unet(x, steps, condition).float()

        return self.noise.denoise(predict, noise)[:, self.observations - 1 :]

    def imitation_loss(
        self, inputs: PolicyInput, actions: Tensor, generator: torch.Generator, padding: Tensor | None = None
    ) -> Tensor:
        """Compute the squared error of the predicted noise, or actions (arXiv:2006.11239, eq. 14)."""
        noise = torch.randn(actions.shape, generator=generator).to(actions.device)
        step = torch.randint(self.config.steps, (len(actions),), generator=generator).to(actions.device)
        noisy, condition = self.noise.add_noise(actions, noise, step), self.encode(inputs).tensors["condition"]
        target = noise if self.config.target == "epsilon" else actions
        error = (self.unet(noisy, step, condition) - target).square()
        if padding is None or not self.config.mask_padding:
            return error.mean()
        wanted = (~padding)[..., None].expand_as(error)
        return (error * wanted).sum() / wanted.sum().clamp_min(1)
