"""Supervised fine-tuning by conditional flow matching, with perception learned first.

A vision-language-action policy usually starts from a pretrained vision-language model. A small network trained from
scratch has none, so its perception is taught first, by localising what the instruction names in many frames
(`SFT.localise`); then the action expert is cloned from demonstrations on the frozen perception (`SFT.clone`). Times and
conventions are openpi's: t ~ Beta(1.5, 1) · 0.999 + 0.001, x_t = t·noise + (1 - t)·action, target noise - action.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embodied_rl.interfaces.policy import FlowBackbone, PolicyInput

ROWS_AT_ONCE = 512
REPORT_EVERY = 200


@dataclass(frozen=True)
class SFTConfig:
    """Settings of supervised fine-tuning.

    Attributes:
        auxiliary_names: privileged entries that perception learns to predict.
        frames: episodes whose frames teach perception; 0 leaves it as it is.
        localise_steps: optimiser steps of the perception stage.
        localise_lr: its peak learning rate.
        localise_batch: its rows of a minibatch.
        demonstrations: demonstrated episodes to clone.
        operator: "careful", or "faulty" for the operator with systematic faults.
        noise, drift, drift_share, slip: how the operator is disturbed, so that it is seen to recover: see
            `embodied_rl.demonstrations.Disturbance`. Rows whose chunk meets a drift or a slip are left out.
        chunk: H, actions recorded with each row; the policy's horizon.
        longest: control steps after which a demonstration is cut.
        steps: optimiser steps of the cloning stage.
        lr: its peak learning rate.
        batch: its rows of a minibatch.
        weight_decay: of AdamW, in both stages.
        feature_noise: standard deviation added to cached perception features while cloning.
        finetune_steps: further cloning steps with perception learning too; 0 for none.
        finetune_lr: their peak learning rate.
    """

    auxiliary_names: tuple[str, ...] = ("target_x", "target_y", "goal_x", "goal_y")
    frames: int = 6000
    localise_steps: int = 10_000
    localise_lr: float = 1e-3
    localise_batch: int = 128
    demonstrations: int = 1500
    operator: Literal["careful", "faulty"] = "faulty"
    noise: float = 0.1
    drift: float = 0.0
    drift_share: float = 0.2
    slip: float = 0.0
    chunk: int = 5
    longest: int = 30
    steps: int = 4000
    lr: float = 1.5e-3
    batch: int = 64
    weight_decay: float = 1e-3
    feature_noise: float = 0.003
    finetune_steps: int = 0
    finetune_lr: float = 3e-4


Report = Callable[[str, int, dict[str, float]], None]
"""Called with the stage's name, the step and figures."""


def flow_times(rows: int, generator: torch.Generator) -> Tensor:
    """Training times float32 [rows], openpi's Beta(1.5, 1) · 0.999 + 0.001, by the inverse distribution function."""
    return torch.rand(rows, generator=generator) ** (1 / 1.5) * 0.999 + 0.001


def conditional_flow_matching_loss(
    backbone: FlowBackbone, inputs: PolicyInput, actions: Tensor, generator: torch.Generator
) -> Tensor:
    """Mean squared error of the velocity, for actions [n, H, D] in the model's units (pi0, arXiv:2410.24164, eq. 1)."""
    time = flow_times(len(actions), generator)
    noise = torch.randn(actions.shape, generator=generator)
    t = time[:, None, None]
    velocity, _ = backbone.velocity(t * noise + (1 - t) * actions, time, backbone.encode(inputs))
    return F.mse_loss(velocity, noise - actions)


class SFT:
    """Supervised fine-tuning of one backbone."""

    Config = SFTConfig

    def __init__(self, config: SFTConfig, backbone: FlowBackbone, seed: int, report: Report) -> None:
        self.config, self.backbone, self._report = config, backbone, report
        self._generator = torch.Generator().manual_seed(seed)

    def localise(self, inputs: PolicyInput, targets: Tensor) -> None:
        """Teach perception to predict `backbone.spec.auxiliary_names`, targets float32 [M, G]."""
        config, parameters = self.config, self.backbone.perception_parameters()
        optimiser = torch.optim.AdamW(parameters, config.localise_lr, weight_decay=config.weight_decay)
        for step in range(config.localise_steps):
            _schedule(optimiser, config.localise_lr, step, config.localise_steps)
            rows = torch.randint(len(targets), (config.localise_batch,), generator=self._generator)
            predicted = self.backbone.predict_auxiliary(_perceive(self.backbone, select(inputs, rows)))
            loss = F.smooth_l1_loss(predicted, targets[rows], beta=0.1)
            _descend(optimiser, parameters, loss)
            if (step + 1) % REPORT_EVERY == 0:
                self._report("localise", step + 1, {"loss": loss.item()})

    def clone(self, inputs: PolicyInput, actions: Tensor) -> None:
        """Clone chunks float32 [M, H, D] on frozen, cached perception; then, if asked for, with all of it learning."""
        config = self.config
        frozen = {id(parameter) for parameter in self.backbone.perception_parameters()}
        others = [parameter for parameter in self.backbone.parameters() if id(parameter) not in frozen]
        if config.steps:
            self._clone(with_features(self.backbone, inputs), actions, others, config.steps, config.lr)
        self._clone(inputs, actions, list(self.backbone.parameters()), config.finetune_steps, config.finetune_lr)

    def _clone(
        self, inputs: PolicyInput, actions: Tensor, parameters: list[torch.nn.Parameter], steps: int, lr: float
    ) -> None:
        config, losses = self.config, deque[float](maxlen=REPORT_EVERY)
        optimiser = torch.optim.AdamW(parameters, lr, weight_decay=config.weight_decay)
        for step in range(steps):
            _schedule(optimiser, lr, step, steps)
            rows = torch.randint(len(actions), (config.batch,), generator=self._generator)
            batch = _shaken(select(inputs, rows), config.feature_noise, self._generator)
            loss = conditional_flow_matching_loss(self.backbone, batch, actions[rows], self._generator)
            _descend(optimiser, parameters, loss)
            losses.append(loss.item())
            if (step + 1) % REPORT_EVERY == 0:
                self._report("clone", step + 1, {"loss": fmean(losses)})


def with_features(backbone: FlowBackbone, inputs: PolicyInput) -> PolicyInput:
    """The inputs with what perception sees in them, computed once; images are dropped."""
    with torch.no_grad():
        parts = [
            _perceive(backbone, select(inputs, torch.arange(start, min(start + ROWS_AT_ONCE, len(inputs)))))
            for start in range(0, len(inputs), ROWS_AT_ONCE)
        ]
    features = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return PolicyInput({}, inputs.state, inputs.tokens, features)


def select(inputs: PolicyInput, rows: Tensor) -> PolicyInput:
    """The given rows."""
    features = None if inputs.features is None else {name: value[rows] for name, value in inputs.features.items()}
    return PolicyInput(
        {name: value[rows] for name, value in inputs.images.items()}, inputs.state[rows], inputs.tokens[rows], features
    )


def _perceive(backbone: FlowBackbone, inputs: PolicyInput) -> dict[str, Tensor]:
    features = backbone.perceive(inputs)
    if features is None:
        raise ValueError("algo.frames and a frozen perception need a policy with a perception of its own (`perceive`).")
    return features


def _shaken(inputs: PolicyInput, scale: float, generator: torch.Generator) -> PolicyInput:
    """The same with a little noise on its features, so that the expert does not read their last digits."""
    if inputs.features is None or not scale:
        return inputs
    noisy = {
        name: value + scale * torch.randn(value.shape, generator=generator) for name, value in inputs.features.items()
    }
    return PolicyInput(inputs.images, inputs.state, inputs.tokens, noisy)


def _schedule(optimiser: torch.optim.Optimizer, peak: float, step: int, steps: int) -> None:
    """Fifty steps of warm-up, then a cosine to 3 % of the peak."""
    cosine = 0.5 * (1 + np.cos(np.pi * step / steps))
    for group in optimiser.param_groups:
        group["lr"] = peak * min(1.0, (step + 1) / 50) * (0.97 * cosine + 0.03)


def _descend(optimiser: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()
