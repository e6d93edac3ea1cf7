"""Ways to continue a plan with a flow policy that was not trained on committed actions.

Each changes the velocity of the deterministic flow so that its estimate of the actions, x̂₀ = x - t v, comes near to a
plan, as strongly as a weight says. Where all weights are 0 a row equals the plain flow bit for bit.

Shapes: n rows, H predicted actions, D action dimensions of the model.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from embodied_rl.mathematics.flow.sampler import Velocity, ode_sample
from embodied_rl.mathematics.flow.transition import make_time_grid, ode_step

MOST_GUIDANCE = 5.0
"""β, the largest weight of guidance (arXiv:2506.07339)."""


@dataclass(frozen=True)
class PlannedActions:
    """What earlier chunks planned for the steps of a new one.

    Attributes:
        actions: float32 [n, H, D], x₀ as planned, finite everywhere.
        weight: float32 [n, H, D] in [0, 1]: 1 where the new chunk must agree, 0 where it is free.
    """

    actions: Tensor
    weight: Tensor


def weigh_plan(counts: Tensor, planned: int, horizon: int) -> Tensor:
    """Compute weights float32 [n, H]: 1 for committed actions, then falling to 0 (arXiv:2506.07339, eq. 5).

    Args:
        counts: int64 [n], committed actions. A row without any has no plan, and weights 0.
        planned: actions that the plan holds, the committed ones among them.
        horizon: H.
    """
    counts, place = counts[:, None], torch.arange(horizon, device=counts.device)
    fall = ((planned - place) / (planned - counts + 1)).clamp(0, 1)
    soft = fall * torch.expm1(fall) / (math.e - 1)
    return torch.where(place < counts, 1.0, soft) * (counts > 0)


def replace_sample(velocity: Velocity, x: Tensor, denoise_steps: int, plan: PlannedActions) -> Tensor:
    """Integrate the flow from x₁ [n, H, D] towards x̂₀ in which the plan replaces the share `weight` at each step.

    With weights of 1, v' = (x - x₀) / t leads straight to the planned actions (inpainting with flows) and gives them
    exactly.
    """
    if not plan.weight.any():
        return ode_sample(velocity, x, denoise_steps)
    for t in make_time_grid(denoise_steps, x.device)[:-1]:
        v, _ = velocity(x, t.repeat(len(x)))
        x = ode_step(x, v - plan.weight * (plan.actions - (x - t * v)) / t, 1 / denoise_steps)
    return torch.where(plan.weight == 1, plan.actions, x)


def guide_sample(
    velocity: Velocity, x: Tensor, denoise_steps: int, plan: PlannedActions, most: float = MOST_GUIDANCE
) -> Tensor:
    """Integrate the flow from x₁ [n, H, D], guided towards the plan by the gradient of its weighted distance to x̂₀.

    Real-time chunking (arXiv:2506.07339), with time in our direction: v' = v - w Jᵀ W (Y - x̂₀), J = ∂x̂₀/∂x and
    w = min(β, ((1 - t)² + t²) / (t (1 - t))), β = `most`. Each step costs a backward pass through the network. The
    result comes near to the plan, but even weights of 1 do not reproduce it. Gradients are computed within
    `torch.no_grad`, too.
    """
    if not plan.weight.any():
        return ode_sample(velocity, x, denoise_steps)
    for t in make_time_grid(denoise_steps, x.device)[:-1]:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            v, _ = velocity(x, t.repeat(len(x)))
            estimate = x - t * v
            error = plan.weight * (plan.actions - estimate.detach())
            (pull,) = torch.autograd.grad(estimate, x, error)
        x = ode_step(x.detach(), v.detach() - compute_guidance_weight(float(t), most) * pull, 1 / denoise_steps)
    return x


def compute_guidance_weight(t: float, most: float) -> float:
    """Compute min(β, ((1 - t)² + t²) / (t (1 - t))) at flow time t in (0, 1]; β at t = 1, where it would diverge."""
    return most if t >= 1 else min(most, ((1 - t) ** 2 + t**2) / (t * (1 - t)))
