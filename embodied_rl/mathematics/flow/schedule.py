"""Flow time and noise schedule in openpi's convention: t = 1 is noise, t = 0 is the action, time decreases."""

import torch
from torch import Tensor


def make_time_grid(denoise_steps: int, device: torch.device | str = "cpu") -> Tensor:
    """Make times float32 [K + 1] from 1 to 0; step k goes from entry k to k + 1, and t = 0 is never evaluated.

    Each is 1 - k / K, rounded once: time embeddings multiply an error of t by up to 2π / 0.004, and what `linspace`
    gives in float32 depends on the processor.
    """
    return torch.linspace(1, 0, denoise_steps + 1, dtype=torch.float64, device=device).float()


def sde_sigma(t: Tensor, delta: float, noise_level: Tensor | float) -> Tensor:
    """Compute σ = a √(t / (1 - t)), the diffusion of Flow-SDE (Flow-GRPO, arXiv 2505.05470; π_RL, arXiv 2510.25889).

    At t = 1, where σ diverges, 1 - t is replaced by `delta`, so the first step's standard deviation is a for any K.

    Args:
        t: flow time in (0, 1], any shape.
        delta: step length 1 / K.
        noise_level: a, broadcasts against `t`.
    """
    return noise_level * torch.sqrt(t / (1 - t).clamp(min=delta))
