"""Rollouts and labels for the head of a run, without collectors."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.judge.heads.labels import Labels, list_columns
from embodied_rl.judge.reward.distill import Distiller
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import DistillNode, RewardNode
from embodied_rl.testing.fakes import RowwiseFakeActor
from tests.support.collecting import SPEC
from tests.support.heads import INPUTS, pack

GAMMA = 0.9
NODE = RewardNode(
    name="told",
    mode="distill",
    head="hash",
    weight=1.0,
    distill=DistillNode(held_out=0.0, steps=4, batch=16, pixels=4),
)


def make_distiller(num_envs: int = 1, ranks: Ranks | None = None, gamma: float = GAMMA, **options: Any) -> Distiller:
    """A distiller; options are those of `reward`, and of `reward.distill` where that has them."""
    own = {name: value for name, value in options.items() if hasattr(NODE.distill, name)}
    others = {name: value for name, value in options.items() if name not in own}
    reward = replace(NODE, distill=replace(NODE.distill, **own), **others)
    return Distiller(reward, INPUTS, Discount(gamma, "decision"), False, 3, num_envs, ranks or Ranks())


def make_rollout(decisions: int, num_envs: int = 1) -> Rollout:
    """An empty rollout of valid decisions within episodes."""
    rollout = Rollout.allocate(RowwiseFakeActor(SPEC), decisions, num_envs, extras=list_columns(INPUTS))
    rollout.valid.fill_(value=True)
    rollout.steps.fill_(1)
    rollout.decision.copy_(torch.arange(decisions)[:, None].expand(-1, num_envs))
    return rollout


def show(rollout: Rollout, name: str, brightness: Any) -> None:
    """Note grey pictures as the observations "seen", "final" or "last"."""
    grey = np.asarray(brightness, np.float64)
    rollout.extras[name].copy_(torch.from_numpy(pack(grey.ravel()).reshape(*grey.shape, INPUTS.size)))


def hand_over(rollout: Rollout, labels: Labels) -> None:
    """Put labels into the places for them."""
    where = np.unravel_index(np.arange(len(labels)), tuple(rollout.extras["labelled"].shape))
    for name, array in (
        ("label", labels.inputs),
        ("label_value", labels.value),
        ("label_episode", labels.episode),
        ("label_decision", labels.decision),
        ("labelled", np.ones(len(labels), bool)),
    ):
        rollout.extras[name][where] = torch.from_numpy(array)
