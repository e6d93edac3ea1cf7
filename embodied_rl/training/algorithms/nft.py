"""Negative-aware fine-tuning, without likelihoods or critic (pi-StepNFT, arXiv:2603.02083; DiffusionNFT, 2509.16117).

The present velocity v and that of the start of the update, v_old, give two mirrored ones, v_old ± (v - v_old). Each
predicts the next state of the recorded stochastic denoise step. With E± its squared error over the variance, summed
over the entries of an action, and y in [-1, 1] the outcome of the episode, the loss of an action is

    softplus(beta / 2 · y · (E+ - E-)).

So a success draws the velocity towards what was drawn, a failure pushes it away. The mean of a step is linear in the
velocity; with the log-probabilities of the step under both, and D its squared shift over twice the variance, E+ - E- is
-4 (log p - log p_old + D), which is how it is computed here. At v = v_old the gradient is that of REINFORCE,
-beta · y · ∇ log p.

Left out: an average of earlier weights as the policy that collects (DiffusionNFT). The bound on the shift is in
standard deviations of the noise, not in units of the velocity.

Shapes: B rows, Hx executed actions, D' scored entries of an action, E episodes.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, Evaluation
from embodied_rl.mathematics.objectives.advantages import group_advantage
from embodied_rl.mathematics.objectives.losses import masked_mean
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch
from embodied_rl.training.algorithms.episodes import DynamicSampling, EpisodeUpdate
from embodied_rl.training.algorithms.minibatch_update import MinibatchUpdate, UpdateConfig


@dataclass(frozen=True)
class NFTConfig(DynamicSampling, UpdateConfig):
    """Settings of NFT, beyond those of the update by minibatches."""

    group_size: int = at_least(1, 1)
    """episodes that start alike and are compared, as in GRPO; it divides the environments of every rank. At 1 a return
    of 1 counts as success and one of 0 as failure."""
    beta: float = at_least(1e-6, 1.0)
    """steepness of the loss: how soon an action that is already preferred stops to count."""
    max_drift: float = at_least(1e-6, 0.5)
    """largest shift of an action's denoise step that counts, in standard deviations of its noise."""

    def __post_init__(self) -> None:
        """Raise `UserError` if `dynamic_sampling` has no groups to count, or `micro_batch` is invalid."""
        super().__post_init__()
        if self.dynamic_sampling and self.group_size == 1:
            message = f"algo.dynamic_sampling={self.dynamic_sampling} counts groups: give algo.group_size=2 or more."
            raise UserError(message, code="keys-contradict")


class NFT(EpisodeUpdate):
    """One update an iteration: outcomes of episodes, policy."""

    Config = NFTConfig

    @staticmethod
    def needs(config: NFTConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        return Needs(
            group_size=config.group_size,
            fresh_episodes=True,
            fixed_noise=True,
            epochs=config.epochs,
            minibatch=config.minibatch,
        )

    def __init__(self, config: NFTConfig, actor: Actor, ranks: Ranks, seed: int, iterations: int) -> None:
        super().__init__(NFTUpdate(config, actor, ranks, seed, iterations), ranks, config)
        self.config = config

    def compare(self, returns: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outcomes of episodes in [-1, 1], and which of them to learn from; see `EpisodeUpdate`."""
        if self.config.group_size == 1:
            return (2 * returns - 1).clamp(-1, 1), torch.ones(len(returns), dtype=torch.bool)
        advantage, kept = group_advantage(returns, group, -torch.inf, torch.inf)
        return advantage.clamp(-1, 1), kept

    def weigh(self, batch: Batch, weight: Tensor) -> None:
        """Multiply the loss of rows by `weight` float32 [B], in which outcomes are not linear; see `EpisodeUpdate`."""
        batch.weight = weight[:, None]


class NFTUpdate(MinibatchUpdate):
    """Runs epochs of minibatch steps on the loss of NFT; see `MinibatchUpdate`."""

    def __init__(self, config: NFTConfig, actor: Actor, ranks: Ranks, seed: int, iterations: int) -> None:
        super().__init__(config, actor, ranks, seed, iterations)
        self._beta, self._max_drift = config.beta, config.max_drift

    def proximal(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        """Return a batch with log-probabilities and means of the policy at the start of the update."""
        most = max(1, self.config.minibatch // self.ranks.size)
        self._measure_micro_batch(batch.select(batch.rows[:most]))
        size = min(most, self._micro_batch or most)
        log_prob, mean = batch.log_prob.clone(), torch.zeros_like(batch.log_prob)
        with torch.no_grad():
            for index in range(max(self.ranks.gather(-(-len(batch.rows) // size)))):  # all ranks equally often
                rows = batch.rows[index * size : (index + 1) * size]
                now = self.actor.evaluate({name: tensor[rows] for name, tensor in batch.trace.items()})
                assert now.mean is not None, "NFT needs an actor with a normal distribution of its denoise steps"
                log_prob[rows], mean[rows] = now.log_prob.to(log_prob), now.mean.to(mean)
        return replace(batch, log_prob=log_prob, mean=mean), {}

    def policy_loss(self, batch: Batch, now: Evaluation, log_ratio: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the loss of each action [B, Hx], and the share of actions beyond `max_drift`."""
        assert batch.mean is not None and now.mean is not None and now.std is not None
        noisy = now.std > 0
        shift = torch.where(noisy, (now.mean - batch.mean) / now.std.masked_fill(~noisy, 1), 0)
        squared = shift.square().sum(dim=-1)
        bound = (self._max_drift / squared.detach().sqrt().clamp_min(1e-12)).clamp(max=1)
        difference = -4 * bound * (log_ratio + squared / 2)
        loss = F.softplus(self._beta / 2 * batch.advantage[:, None] * difference)
        loss = loss if batch.weight is None else batch.weight * loss
        return loss, masked_mean((bound < 1).float(), mask)
