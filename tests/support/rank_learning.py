"""What ranks of the tests learn; a module of its own because child processes import it."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from embodied_rl.interfaces.sim import Source
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.ppo import PPO, PPOConfig
from tests.support.experience import make_actor, make_rollout, split


def learn(config: dict[str, Any], ranks: Ranks) -> dict[str, Tensor]:
    """Parameters after one update of PPO from this rank's columns of one rollout; they are the same on all.

    Perception is frozen: two of its biases cancel, before a normalisation and before a softmax, and Adam would make
    whole steps of the rounding errors that are their gradients.
    """
    torch.set_num_threads(1)
    actor = make_actor(config["sampler"], config["critic"], freeze_perception=True)
    rollout = make_rollout(actor, decisions=6, num_envs=8)
    actor.version = config["stale"]
    if config["stale"]:
        with torch.no_grad():
            for index, parameter in enumerate(actor.parameters()):
                parameter.add_(0.01 * torch.sin(torch.arange(parameter.numel()) + index).view_as(parameter))
    rollout.version[:, 2:5] = config["stale"]  # these are of the present version: ranks hold different shares
    columns = [slice(0, 8)] if ranks.size == 1 else [slice(0, 4), slice(4, 8)]
    mine = split(rollout, columns)[ranks.rank]
    options = {"critic_warmup": 0, "warmup_updates": 0, "target_kl": None, "minibatch": 10**6, "value_clip": 0.5}
    options |= {"lr": 1e-3, "perception_lr": 1e-3, "critic_lr": 1e-3, "epochs": 4, "micro_batch": config["micro_batch"]}
    ppo = PPO(PPOConfig(**options, critic_steps=0), actor, ranks, 0, 10)
    ppo.update([mine], 0)
    found = {name: parameter.detach().clone() for name, parameter in deepcopy(actor).named_parameters()}
    for other in ranks.gather(found):
        assert all(torch.equal(other[name], value) for name, value in found.items())
    return found


def take_gradient(config: dict[str, Any], ranks: Ranks) -> dict[str, Tensor]:
    """Gradients of one step of PPO with perception and critic, from this rank's rows of the rollout's segments."""
    torch.set_num_threads(1)
    actor = make_actor("noise", "prefix", auxiliary=True, detach=False)
    rollout = make_rollout(actor, decisions=6, num_envs=8)
    rollout.source[:, :3], rollout.terminated[:] = int(Source.HUMAN), True
    columns = [slice(0, 8)] if ranks.size == 1 else [slice(0, 3), slice(3, 8)]
    options = {"critic_warmup": 0, "target_kl": None, "minibatch": 10**6, "epochs": 1, "normalise": False, "lr": 1e-9}
    options |= {"auxiliary": 0.5, "entropy": 0.01, "grad_clip": 1e9, "micro_batch": config["micro_batch"]}
    ppo = PPO(PPOConfig(**options), actor, ranks, 0, 10)
    ppo.update(split(rollout, columns)[ranks.rank].segments(config["segments"]), 0)
    return {name: parameter.grad for name, parameter in actor.named_parameters() if parameter.grad is not None}
