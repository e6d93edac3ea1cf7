"""Noise schedules and denoising steps of Diffusion Policy: DDPM (arXiv:2006.11239) and DDIM (arXiv:2010.02502).

Formulas and defaults are those of `DDPMScheduler` and `DDIMScheduler` of the package diffusers, which lerobot uses.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class NoiseSchedule:
    """How actions are noised over `steps` diffusion steps, and denoised in `inference_steps` of them.

    Attributes:
        kind: "DDPM", which draws noise at each step but the last, or "DDIM", which draws none.
        target: what the network predicts: "epsilon", the noise, or "sample", the actions.
        clip: the largest absolute value of the predicted actions; infinite for none.
        schedule, beta_start, beta_end: of the variances: "squaredcos_cap_v2", "linear" or "scaled_linear".
    """

    kind: str
    target: str
    steps: int
    inference_steps: int
    clip: float
    schedule: str
    beta_start: float
    beta_end: float

    def kept_shares(self) -> Tensor:
        """Return the share of the actions' variance that is left at each step, ᾱ, float32 [steps]."""
        count, low, high = self.steps, self.beta_start, self.beta_end
        if self.schedule == "linear":
            betas = torch.linspace(low, high, count)
        elif self.schedule == "scaled_linear":
            betas = torch.linspace(low**0.5, high**0.5, count) ** 2
        else:  # the cosine of arXiv:2102.09672
            left = [math.cos((step / count + 0.008) / 1.008 * math.pi / 2) ** 2 for step in range(count + 1)]
            betas = torch.tensor([min(1 - left[step + 1] / left[step], 0.999) for step in range(count)])
        return (1 - betas).cumprod(0)

    def add_noise(self, actions: Tensor, noise: Tensor, step: Tensor) -> Tensor:
        """Return actions [n, T, D] with the noise of steps int64 [n]."""
        share = self.kept_shares().to(actions.device)[step][:, None, None]
        return share.sqrt() * actions + (1 - share).sqrt() * noise

    @property
    def draws(self) -> int:
        """Return how many noises of a chunk's shape `denoise` takes: the first, and those of its steps but the last."""
        return self.inference_steps if self.kind == "DDPM" else 1

    def denoise(self, predict: Callable[[Tensor, int], Tensor], noise: Tensor) -> Tensor:
        """Denoise chunks [n, T, D] from noise [n, draws, T, D]; `predict` computes the network at a diffusion step."""
        shares, stride = self.kept_shares(), self.steps // self.inference_steps
        x = noise[:, 0]
        for index in range(self.inference_steps):
            step = (self.inference_steps - 1 - index) * stride
            share = shares[step]
            before = shares[step - stride] if step >= stride else torch.tensor(1.0)
            predicted = predict(x, step)
            if self.target == "epsilon":
                actions, error = (x - (1 - share).sqrt() * predicted) / share.sqrt(), predicted
            else:
                actions, error = predicted, (x - share.sqrt() * predicted) / (1 - share).sqrt()
            actions = actions.clamp(-self.clip, self.clip)
            if self.kind == "DDIM":
                x = before.sqrt() * actions + (1 - before).sqrt() * error
                continue
            kept = share / before
            mean = before.sqrt() * (1 - kept) / (1 - share) * actions + kept.sqrt() * (1 - before) / (1 - share) * x
            variance = ((1 - before) / (1 - share) * (1 - kept)).clamp_min(1e-20)
            x = mean if step == 0 else mean + variance.sqrt() * noise[:, index + 1]
        return x
