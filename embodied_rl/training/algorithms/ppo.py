"""Proximal policy optimisation of a flow policy (arXiv:1707.06347; for flow VLAs pi_RL, arXiv:2510.25889).

One decision is one action of the decision process: it executes up to Hx control steps, its reward is their discounted
sum, and the next value is discounted by gamma to the power of the executed steps. The ratio is taken per executed
action by default (`level=action`), which keeps the trust region as wide as one action needs it.

Left out: a KL penalty towards a reference policy (pi_RL trains without one).

Shapes: T decisions, N environments, B = T·N rows, Hx executed actions, P privileged entries.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

import torch
from torch import Tensor

from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Discount, Needs, join_states, split_state
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor
from embodied_rl.mathematics.objectives.advantages import compute_gae, make_discounts, select_next_values
from embodied_rl.mathematics.objectives.losses import explained_variance, masked_mean
from embodied_rl.mathematics.objectives.losses import value_loss as elementwise_value_loss
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.rewards import compose_reward
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch, as_batch, concatenate_batches
from embodied_rl.training.algorithms.clipped import ClippedConfig, ClippedUpdate

_REPLAYED: tuple[str, ...] = ("privileged", "returns", "value")


@dataclass(frozen=True)
class PPOConfig(ClippedConfig):
    """Settings of PPO, beyond those of the clipped update."""

    gamma: float = at_least(0, 0.994)
    """discount, per control step or decision, as `discount` says."""
    discount: Literal["control_step", "decision"] = "control_step"
    """what gamma discounts: a "control_step", or a "decision" as in pi_RL."""
    lam: float = at_least(0, 0.9)
    """lambda of generalised advantage estimation, per decision."""
    normalise: bool = True
    """advantages to mean 0 and deviation 1 over all ranks."""
    critic_lr: float = at_least(0, 1e-3)
    """learning rate of the critic."""
    value_clip: float | None = at_least(0, None)
    """clipping around the value before the update; null for none."""
    value_huber: float | None = at_least(0, None)
    """Huber threshold of the value loss; null for squares."""
    critic_warmup: int = at_least(0, 2)
    """iterations that fit the critic alone."""
    critic_steps: int = at_least(0, 60)
    """minibatches an iteration of a critic on privileged state; `minibatch` rows on each rank."""
    critic_replay: int = at_least(1, 6)
    """rollouts those minibatches draw from."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.gamma, self.lam) > 1:
            message = f"algo.gamma={self.gamma} and algo.lam={self.lam} may not exceed 1."
            raise UserError(message, code="discount-out-of-range")


class PPO:
    """One update an iteration: advantages, critic, policy."""

    Config = PPOConfig

    @staticmethod
    def needs(config: PPOConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        discount = Discount(config.gamma, config.discount)
        return Needs(
            critic=True,
            epochs=config.epochs,
            warmup=config.critic_warmup,
            discount=discount,
            minibatch=config.minibatch,
        )

    def __init__(self, config: PPOConfig, actor: Actor, ranks: Ranks, seed: int, iterations: int) -> None:
        self.config, self.actor, self.ranks, self.seed = config, actor, ranks, seed
        head = actor.parameter_groups()["critic"]
        assert head, "PPO needs a critic"
        self._privileged = actor.critic_reads  # name of the critic's input in a trace; empty if it reads features
        shared_loss = None if self._privileged else self.value_loss
        self.policy = ClippedUpdate(config, actor, ranks, seed, iterations, shared_loss)
        self.critic = Optimiser({"critic": head}, {"critic": config.critic_lr}, config.grad_clip)
        self._replay: list[tuple[Tensor, ...]] = []

    def prepare(self, iteration: int) -> None:
        """Set the learning rates and the noise level of an iteration before its rollout is collected."""
        self.policy.anneal(iteration)

    def update(self, segments: Iterable[Rollout], iteration: int) -> dict[str, float]:
        """Learn from the rollouts of an iteration as they arrive, usually a single one; return figures for the log.

        Advantages are computed and normalised within each rollout.
        """
        figures: dict[str, float] = {}
        learning = iteration >= self.config.critic_warmup
        batches = self._batches(segments, figures)
        if learning:
            batch, means = self.policy.run(batches, iteration, None if self._privileged else self.critic)
            figures |= means
        else:
            batch = concatenate_batches([*batches])
        if self._privileged:
            figures["value_loss"] = self._fit_critic(batch, iteration, 1 if learning else 4)
        elif not learning:
            figures["value_loss"] = self._warm_up(batch, iteration)
        return figures

    def _batches(self, segments: Iterable[Rollout], figures: dict[str, float]) -> Iterator[Batch]:
        """Yield a batch to learn from for each rollout as it arrives; add its figures to `figures`."""
        explained = list[float]()
        config = self.config
        for rollout in segments:
            discount = make_discounts(rollout.steps, config.gamma, config.discount)
            reward = compose_reward(rollout, self.needs(config).discount)
            ended = rollout.terminated | rollout.truncated
            following = select_next_values(
                rollout.value, rollout.last_value, rollout.final_value, rollout.terminated, rollout.truncated
            )
            advantage, returns = compute_gae(reward, rollout.value, following, discount, ~ended, config.lam)
            advantage = self._normalised(advantage, rollout.valid) if config.normalise else advantage
            batch = as_batch(rollout, advantage, value=rollout.value, returns=returns)
            assert batch.returns is not None and batch.value is not None
            explained.append(float(explained_variance(batch.value[batch.rows], batch.returns[batch.rows])))
            figures["explained_variance"] = fmean(explained)
            batch, importance = self.policy.proximal(batch)
            figures |= importance
            yield batch

    def _normalised(self, advantage: Tensor, valid: Tensor) -> Tensor:
        chosen = advantage[valid].double()
        sums = torch.stack([chosen.new_tensor(len(chosen)), chosen.sum(), (chosen**2).sum()])
        self.ranks.sum_([sums])
        count, total, squares = sums
        mean = total / count
        deviation = (squares / count - mean**2).clamp_min(0).sqrt()
        return ((advantage - mean) / (deviation + 1e-6)).float()

    def _fit_critic(self, batch: Batch, iteration: int, times: int) -> float:
        """Fit a critic on privileged state alone, on the last few rollouts, without vision; return its mean loss."""
        assert batch.returns is not None and batch.value is not None
        recorded = batch.trace[str(self._privileged)], batch.returns, batch.value
        self._replay.append(tuple(tensor[batch.rows].clone() for tensor in recorded))
        del self._replay[: -self.config.critic_replay]
        privileged, returns, old = (torch.cat(parts) for parts in zip(*self._replay, strict=True))
        mixed = (self.seed * 1_000_003 + iteration) * 257 + self.ranks.rank
        generator = torch.Generator().manual_seed(mixed % 2**63)
        size = self.config.minibatch if len(returns) else 0  # all may have been lost with a worker
        total = 0.0
        for _ in range(self.config.critic_steps * times):
            rows = torch.randint(max(len(returns), 1), (size,), generator=generator)
            value = self.actor.critic_value(privileged[rows])
            loss = self._errors(value, old[rows], returns[rows]).sum() / max(size, 1)
            self.critic.zero_grad()
            loss.backward()
            self.critic.step(self.ranks, self.policy.rate, float(size > 0))
            total += loss.item()
        return total / max(self.config.critic_steps * times, 1)

    def _warm_up(self, batch: Batch, iteration: int) -> float:
        """Fit a critic on the network's own features while the policy is not trained; return its mean loss."""
        total, count = 0.0, 0
        for epoch in range(self.config.epochs):
            for rows in self.policy.minibatches(batch.rows, self.policy.parts(batch.rows), iteration, epoch):
                part = batch.select(rows)
                loss = self.value_loss(part, self.actor.evaluate(part.trace).value)
                self.policy.optimiser.zero_grad()
                self.critic.zero_grad()
                loss.backward()
                self.critic.step(self.ranks, self.policy.rate, float(len(rows)))
                total, count = total + loss.item(), count + 1
        return total / max(count, 1)

    def value_loss(self, batch: Batch, value: Tensor) -> Tensor:
        """Compute the mean value loss of a batch with returns; 0 for an empty batch."""
        assert batch.value is not None and batch.returns is not None
        everything = torch.ones(len(value), dtype=torch.bool)
        return masked_mean(self._errors(value, batch.value, batch.returns), everything)

    def _errors(self, value: Tensor, old: Tensor, returns: Tensor) -> Tensor:
        return elementwise_value_loss(value, old, returns, self.config.value_clip, self.config.value_huber)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that an exact resume needs."""
        replay = {str(index): dict(zip(_REPLAYED, kept, strict=True)) for index, kept in enumerate(self._replay)}
        parts = {"policy": self.policy.state(), "critic": self.critic.state(), "replay": join_states(replay)}
        return join_states(parts)

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        self.policy.load(split_state(state, "policy"))
        self.critic.load(split_state(state, "critic"))
        replay = split_state(state, "replay")
        count = len(replay) // len(_REPLAYED)
        self._replay = [tuple(replay[f"{index}/{name}"] for name in _REPLAYED) for index in range(count)]
        for kept in self._replay:
            if len({len(each) for each in kept}) > 1 or kept[1].ndim != 1 or kept[2].ndim != 1:
                raise UserError("the tensors of the critic's replay differ in length", code="checkpoint-state-mismatch")
