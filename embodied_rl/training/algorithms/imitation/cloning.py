"""Supervised fine-tuning by conditional flow matching, with perception learned first.

A vision-language-action policy usually starts from a pretrained vision-language model. A small network trained from
scratch has none, so its perception is taught first, by localising what the instruction names in many frames
(`SFT.localise`); then the action expert is cloned from demonstrations on the frozen perception (`SFT.clone`). Times and
conventions are openpi's: t ~ Beta(1.5, 1) · 0.999 + 0.001, x_t = t·noise + (1 - t)·action, target noise - action.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.backbone import (
    Backbone,
    FlowBackbone,
    GaussianBackbone,
    ImitationBackbone,
    PolicyInput,
    SequenceBackbone,
    TokenBackbone,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.trust import Text

ROWS_AT_ONCE = 512
REPORT_EVERY = 200


@dataclass(frozen=True)
class SFTConfig:
    """Settings of supervised fine-tuning."""

    auxiliary_names: tuple[Text, ...] = ("target_x", "target_y", "goal_x", "goal_y")
    """privileged entries that perception learns to predict."""
    frames: int = at_least(0, 6000)
    """episodes whose frames teach perception; 0 leaves it as it is."""
    localise_steps: int = at_least(0, 10_000)
    """optimiser steps of the perception stage."""
    localise_lr: float = at_least(0, 1e-3)
    """its peak learning rate."""
    localise_batch: int = at_least(1, 128)
    """its rows of a minibatch."""
    demonstrations: int = at_least(0, 1500)
    """demonstrated episodes to clone."""
    operator: Literal["careful", "faulty"] = "careful"
    """"careful", or "faulty" for an operator with systematic faults, where the simulator has one."""
    noise: float = at_least(0, 0.1)
    """standard deviation of the noise on the operator's moves, so that it is seen to recover, as a share of an action's
    upper limit: see `embodied_rl.training.algorithms.imitation.demonstrations.Disturbance`."""
    drift: float = at_least(0, 0.0)
    """largest constant offset of these moves, as a share of the limit, redrawn every eight control steps. Rows
    whose chunk meets a drift are left out."""
    drift_share: float = 0.2
    """share of those stretches of eight control steps that drift at all."""
    slip: float = 0.0
    """chance of a control step that the gripper does the opposite. Rows whose chunk meets a slip are left out."""
    longest: int = at_least(1, 30)
    """control steps after which a demonstration is cut."""
    prefix: int = at_least(0, 0)
    """longest prefix that the policy learns to continue: the first actions of a chunk, up to so many, are given as they
    were executed, and are not learned. So it can be asked for the next chunk while the robot still executes these; 0
    for none. Rows whose chunk meets a drift or a slip stay where a prefix of that length covers it."""
    steps: int = at_least(0, 4000)
    """optimiser steps of the cloning stage."""
    lr: float = at_least(0, 1.5e-3)
    """its peak learning rate."""
    batch: int = at_least(1, 64)
    """its rows of a minibatch."""
    draws: int = at_least(1, 1)
    """of time and noise for each of these rows, which is encoded once for all of them."""
    weight_decay: float = at_least(0, 1e-3)
    """of AdamW, in both stages."""
    feature_noise: float = at_least(0, 0.003)
    """standard deviation added to cached perception features while cloning."""
    finetune_steps: int = at_least(0, 0)
    """further cloning steps with perception learning too; 0 for none."""
    finetune_lr: float = at_least(0, 3e-4)
    """their peak learning rate."""


Report = Callable[[str, int, dict[str, float]], None]
"""Called with the stage's name, the step and figures."""


def draw_flow_times(rows: int, generator: torch.Generator) -> Tensor:
    """Draw training times float32 [rows], openpi's Beta(1.5, 1) · 0.999 + 0.001, by the inverse CDF."""
    return torch.rand(rows, generator=generator) ** (1 / 1.5) * 0.999 + 0.001


@dataclass(frozen=True)
class ExecutedPrefix:
    """The executed actions of the chunks of n rows, from which prefixes of random length are drawn.

    Attributes:
        actions: float32 [n, H, D] in the model's units, as executed: with disturbances, after clipping.
        least: int64 [n], actions of the shortest prefix of each row, at most `most`.
        most: actions of the longest prefix.
    """

    actions: Tensor
    least: Tensor
    most: int

    def select(self, rows: Tensor) -> "ExecutedPrefix":
        """Return the given rows."""
        return replace(self, actions=self.actions[rows], least=self.least[rows])

    def to(self, device: torch.device) -> "ExecutedPrefix":
        """Return a copy on `device`."""
        return replace(self, actions=self.actions.to(device), least=self.least.to(device))

    def draw(self, generator: torch.Generator) -> Tensor:
        """Draw each row's prefix, of uniform length from `least` to `most`; return bool [n, H], set in the prefix."""
        least = self.least[:, None]
        choices = self.most + 1 - least
        length = least + (torch.rand(choices.shape, generator=generator).to(least.device) * choices).long()
        return torch.arange(self.actions.shape[1], device=least.device) < length


@dataclass(frozen=True)
class CloningBatch:
    """The data that one cloning step learns from.

    Attributes:
        inputs: n rows.
        actions: float32 [n, H, D] in the model's units.
        padding: bool [n, H], actions that only repeat the last one and are not learned; None for none.
        prefix: what was executed of these actions; None to clone without prefixes.
    """

    inputs: PolicyInput
    actions: Tensor
    padding: Tensor | None = None
    prefix: ExecutedPrefix | None = None


def conditional_flow_matching_loss(
    backbone: FlowBackbone,
    inputs: PolicyInput,
    actions: Tensor,
    generator: torch.Generator,
    padding: Tensor | None = None,
    draws: int = 1,
    prefix: ExecutedPrefix | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Compute the velocity's mean squared error, for actions [n, H, D] in model units (pi0, arXiv:2410.24164, eq. 1).

    Each row is encoded once for all `draws` of time and noise (CogACT, arXiv:2411.19650). Actions where `padding`,
    bool [n, H], is set are left out of the mean. So are those of a drawn `prefix`, which the network gets as they were
    executed, at flow time 0 (training-time RTC, arXiv:2512.05964). Each error is
    multiplied by its row's `weight`, float32 [n]. Everything but the generator is on the network's device.
    """
    rows = torch.arange(len(actions), device=actions.device).repeat(draws)
    actions, left_out = actions[rows], None if padding is None else padding[rows]
    time = draw_flow_times(len(actions), generator).to(actions.device)
    noise = torch.randn(actions.shape, generator=generator).to(actions.device)
    t = time[:, None, None]
    x = t * noise + (1 - t) * actions
    if prefix is not None:
        given = prefix.select(rows)
        committed = given.draw(generator)
        x = torch.where(committed[..., None], given.actions, x)
        time = time[:, None].masked_fill(committed, 0.0)
        left_out = committed if left_out is None else left_out | committed
    context = backbone.encode(inputs)
    context = context if draws == 1 else context.select(rows)
    velocity, _ = backbone.velocity(x, time, context)
    error = (velocity - (noise - actions)).square()
    if weight is not None:
        error = error * weight[rows][:, None, None]
    if left_out is None:
        return error.mean()
    wanted = ~left_out[..., None].expand_as(error)
    return (error * wanted).sum() / wanted.sum().clamp_min(1)


def cloning_loss(
    backbone: Backbone,
    inputs: PolicyInput,
    actions: Tensor,
    generator: torch.Generator,
    padding: Tensor | None = None,
    draws: int = 1,
    prefix: ExecutedPrefix | None = None,
    weight: Tensor | None = None,
) -> Tensor:
    """Compute the loss of a network's kind: flow matching, the cross-entropy of tokens, the L1 distance, or its own.

    For the arguments see `conditional_flow_matching_loss`; other kinds have no `prefix`, and `draws` change nothing. A
    policy that is only cloned takes no `weight`, and one of sequences learns padded actions, too.
    """
    if isinstance(backbone, FlowBackbone):
        return conditional_flow_matching_loss(backbone, inputs, actions, generator, padding, draws, prefix, weight)
    assert prefix is None, "checked before: check_prefix"
    if isinstance(backbone, ImitationBackbone):
        return backbone.imitation_loss(inputs, actions, generator, padding)
    if isinstance(backbone, SequenceBackbone):
        error, counted = backbone.cloning_error(backbone.encode(inputs), actions)
        error = torch.where(counted, error, 0) if weight is None else torch.where(counted, error * weight[:, None], 0)
        return error.sum() / counted.sum()
    if isinstance(backbone, GaussianBackbone):
        error = (backbone.action_mean(backbone.encode(inputs))[0].float() - actions).abs()
    else:
        assert isinstance(backbone, TokenBackbone)
        bins = backbone.find_bins(actions)
        logits, _ = backbone.action_logits(backbone.encode(inputs), bins)
        error = F.cross_entropy(logits.float().movedim(-1, 1), bins, reduction="none")
    if weight is not None:
        error = error * weight[:, None, None]
    if padding is None:
        return error.mean()
    wanted = ~padding[..., None].expand_as(error)
    return (error * wanted).sum() / wanted.sum().clamp_min(1)


class SFT:
    """Supervised fine-tuning of one backbone, on the device it lives on.

    Args:
        backbone: changed in place.
        report: called with the progress.
        autocast: compute matrix products in bfloat16.
    """

    Config = SFTConfig

    @staticmethod
    def needs(config: SFTConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        return Needs(learns_from="demonstrations")

    def __init__(
        self, config: SFTConfig, backbone: Backbone, seed: int, report: Report, *, autocast: bool = False
    ) -> None:
        self.config, self.backbone, self._report = config, backbone, report
        self._generator = torch.Generator().manual_seed(seed)
        self._device = next(backbone.parameters()).device
        self._cast = partial(torch.autocast, self._device.type, torch.bfloat16) if autocast else nullcontext

    def localise(self, inputs: PolicyInput, targets: Tensor) -> None:
        """Train perception to predict `backbone.spec.auxiliary_names`, targets float32 [M, G]."""
        config, parameters = self.config, self.backbone.perception_parameters()
        optimiser = torch.optim.AdamW(parameters, config.localise_lr, weight_decay=config.weight_decay)
        for step in range(config.localise_steps):
            _schedule(optimiser, config.localise_lr, step, config.localise_steps)
            rows = torch.randint(len(targets), (config.localise_batch,), generator=self._generator)
            with self._cast():
                features = _perceive(self.backbone, select_rows(inputs, rows).to(self._device))
                predicted = self.backbone.predict_auxiliary(features)
            loss = F.smooth_l1_loss(predicted.float(), targets[rows].to(self._device), beta=0.1)
            _descend(optimiser, parameters, loss)
            if (step + 1) % REPORT_EVERY == 0 or step + 1 == config.localise_steps:
                self._report("localise", step + 1, {"loss": loss.item()})

    def clone(self, inputs: PolicyInput, actions: Tensor, prefix: ExecutedPrefix | None = None) -> None:
        """Clone chunks float32 [M, H, D] on frozen, cached perception; then, if configured, train everything.

        A `prefix` holds what was executed of these chunks; None clones without prefixes.
        """
        config = self.config
        frozen = {id(parameter) for parameter in self.backbone.perception_parameters()}
        others = [parameter for parameter in self.backbone.parameters() if id(parameter) not in frozen]
        if config.steps:
            seen = perceive_once(self.backbone, inputs)
            self._clone(self._random_batches(seen, actions, prefix), others, config.steps, config.lr)
        self.finetune(self._random_batches(inputs, actions, prefix))

    def finetune(self, batches: Iterator[CloningBatch]) -> None:
        """Take `finetune_steps` steps on the given batches, with all trainable parameters."""
        parameters = list(self.backbone.parameters())
        self._clone(batches, parameters, self.config.finetune_steps, self.config.finetune_lr)

    def _random_batches(
        self, inputs: PolicyInput, actions: Tensor, prefix: ExecutedPrefix | None
    ) -> Iterator[CloningBatch]:
        """Yield batches of random rows, without end."""
        while True:
            rows = torch.randint(len(actions), (self.config.batch,), generator=self._generator)
            given = None if prefix is None else prefix.select(rows)
            yield CloningBatch(select_rows(inputs, rows), actions[rows], prefix=given)

    def _clone(
        self, batches: Iterator[CloningBatch], parameters: list[torch.nn.Parameter], steps: int, lr: float
    ) -> None:
        config, losses = self.config, deque[float](maxlen=REPORT_EVERY)
        if steps:
            self.backbone.prefix_trained_to = config.prefix
        parameters = [parameter for parameter in parameters if parameter.requires_grad]
        optimiser = torch.optim.AdamW(parameters, lr, weight_decay=config.weight_decay)
        for step in range(steps):
            _schedule(optimiser, lr, step, steps)
            batch = next(batches)
            inputs = batch.inputs
            if inputs.features is not None and config.feature_noise:  # so that the expert relies on no last digits
                noisy = {
                    name: value + config.feature_noise * torch.randn(value.shape, generator=self._generator)
                    for name, value in inputs.features.items()
                }
                inputs = PolicyInput(inputs.images, inputs.state, inputs.tokens, noisy)
            inputs = inputs.to(self._device)
            padding = None if batch.padding is None else batch.padding.to(self._device)
            actions = batch.actions.to(self._device)
            prefix = None if batch.prefix is None else batch.prefix.to(self._device)
            with self._cast():
                loss = cloning_loss(self.backbone, inputs, actions, self._generator, padding, config.draws, prefix)
            _descend(optimiser, parameters, loss)
            losses.append(loss.item())
            if (step + 1) % REPORT_EVERY == 0 or step + 1 == steps:
                self._report("clone", step + 1, {"loss": fmean(losses)})


def perceive_once(backbone: Backbone, inputs: PolicyInput) -> PolicyInput:
    """Return the inputs with perception's features, computed once; images are dropped."""
    device = next(backbone.parameters()).device
    with torch.no_grad():
        parts = [
            _perceive(backbone, select_rows(inputs, rows).to(device))
            for rows in torch.arange(len(inputs)).split(ROWS_AT_ONCE)
        ]
    features = {name: torch.cat([part[name].to(inputs.state.device) for part in parts]) for name in parts[0]}
    return PolicyInput({}, inputs.state, inputs.tokens, features)


def select_rows(inputs: PolicyInput, rows: Tensor) -> PolicyInput:
    """Return the given rows of the inputs."""
    features = None if inputs.features is None else {name: value[rows] for name, value in inputs.features.items()}
    images, earlier = inputs.images.items(), tuple(select_rows(each, rows) for each in inputs.earlier)
    images = {name: value[rows] for name, value in images}
    return PolicyInput(images, inputs.state[rows], inputs.tokens[rows], features, earlier=earlier)


def _perceive(backbone: Backbone, inputs: PolicyInput) -> dict[str, Tensor]:
    features = backbone.perceive(inputs)
    if features is None:
        message = "algo.frames and a frozen perception need a policy with a separate perception (`perceive`)."
        raise UserError(message, code="perception-missing")
    return features


def _schedule(optimiser: torch.optim.Optimizer, peak: float, step: int, steps: int) -> None:
    """Set the learning rate of a step: fifty steps of warm-up, then a cosine to 3 % of the peak."""
    cosine = 0.5 * (1 + np.cos(np.pi * step / steps))
    for group in optimiser.param_groups:
        group["lr"] = peak * min(1.0, (step + 1) / 50) * (0.97 * cosine + 0.03)


def _descend(optimiser: torch.optim.Optimizer, parameters: list[torch.nn.Parameter], loss: Tensor) -> None:
    optimiser.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimiser.step()
