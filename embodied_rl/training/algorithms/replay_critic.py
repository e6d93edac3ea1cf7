"""Cloning from replay with a critic: advantages of stored decisions, as `awr` and `recap` use them.

The advantages are generalised advantage estimates (arXiv:1506.02438) along the stored episodes, with the present
critic, which is fitted to the returns first; a truncated episode is bootstrapped with the value of its final
observation, unless the time limit counts as its end (`train.time_limit=terminal`).

Shapes: B decisions.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Discount, Needs, join_states, split_state
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array
from embodied_rl.mathematics.objectives.advantages import compute_gae, discount_reward, make_discounts
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.replay_cloning import ReplayCloning, ReplayCloningConfig


@dataclass(frozen=True)
class ReplayCriticConfig(ReplayCloningConfig):
    """Settings of the critic, beyond those of cloning from replay."""

    gamma: float = at_least(0, 0.994, at_most=1)
    """discount per control step."""
    lam: float = at_least(0, 0.95, at_most=1)
    """lambda of generalised advantage estimation, per decision; 1 takes the returns of the episodes."""
    critic_lr: float = at_least(0, 1e-3)
    """learning rate of the critic."""
    critic_steps: int = at_least(0, 300)
    """minibatches of the critic in each update."""


@dataclass(frozen=True)
class RatedDecisions:
    """The decisions of all whole episodes of a rank: where they are, int64 [B, 3]; their advantages, float64 [B]."""

    where: Array
    advantage: Tensor


class ReplayCritic(ReplayCloning):
    """An algorithm that rates the decisions of the replay by a critic, and clones them."""

    def __init__(self, config: ReplayCriticConfig, actor: FlowActor, ranks: Ranks, seed: int, iterations: int) -> None:
        super().__init__(config, actor, ranks, seed, iterations)
        self._rating = config
        head = {"critic": actor.parameter_groups()["critic"]}
        self.critic = Optimiser(head, {"critic": config.critic_lr}, config.grad_clip)

    @staticmethod
    def needs(config: ReplayCriticConfig) -> Needs:
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        discount = Discount(config.gamma)
        return Needs(learns_from="replay", explores=False, critic=True, minibatch=config.minibatch, discount=discount)

    def rate(self, replay: Replay, iteration: int) -> tuple[RatedDecisions, dict[str, float]]:
        """Fit the critic; return the decisions of all whole episodes with their advantages, and figures of all ranks.

        The figures hold the number of decisions, "rows".
        """
        episodes = [
            replay.list_decisions(number, [episode])
            for number in range(len(replay.storages))
            for episode in replay.list_episodes(number)
        ]
        where = np.concatenate([np.zeros((0, 3), np.int64), *episodes])
        counts = self.sum_figures({"episodes": len(episodes), "rows": len(where)})
        _, returns = self._estimate(replay, episodes)
        loss = self._fit_critic(replay, where, returns, iteration) if counts["rows"] else 0.0
        advantage, _ = self._estimate(replay, episodes)
        return RatedDecisions(where, advantage), counts | {"critic_loss": loss}

    def _estimate(self, replay: Replay, episodes: list[Array]) -> tuple[Tensor, Tensor]:
        """Return advantages and returns of all decisions with the present critic, float64 [B] each."""
        found = [(torch.zeros(0).double(), torch.zeros(0).double())]
        for rows in episodes:
            steps = torch.from_numpy(replay.read_field("steps", rows))
            reward = discount_reward(
                torch.from_numpy(replay.read_field("reward", rows)).double(), steps, self._rating.gamma
            )
            value, after = self._values(replay, rows), torch.zeros(1).double()
            if not replay.ends_at_time_limit and replay.read_field("truncated", rows)[-1]:
                after = self._values(replay, replay.find_following(rows[-1:]))
            discount = make_discounts(steps, self._rating.gamma, "control_step").double()
            continues = torch.arange(len(value)) < len(value) - 1
            following = torch.cat([value[1:], after])
            advantage, target = compute_gae(reward, value, following, discount, continues, self._rating.lam)
            found.append((advantage, target))
        advantages, returns = zip(*found, strict=True)
        return torch.cat(advantages), torch.cat(returns)

    @torch.no_grad()
    def _values(self, replay: Replay, where: Array) -> Tensor:
        """Return the values of decisions' observations, float64 [B], without gradients."""
        parts = np.array_split(where, -(-len(where) // self._rating.minibatch))
        return torch.cat([self._value(replay, part) for part in parts]).double()

    def _value(self, replay: Replay, where: Array) -> Tensor:
        """Return the values of decisions' observations, float32 [B]."""
        if self.actor.critic_reads is None:
            return self.actor.estimate_value(replay.read_observation(where), NoiseKeys.none(len(where))).cpu()
        privileged = replay.read_field("privileged", where)
        return self.actor.critic_value(
            self.actor.embodiment.normalise_privileged(privileged, self.actor.privileged_names)
        )

    def _fit_critic(self, replay: Replay, where: Array, returns: Tensor, iteration: int) -> float:
        """Fit the critic to the returns; return this rank's part of its mean loss: its mean is over ranks."""
        draws = np.random.default_rng((self.seed * 1_000_003 + iteration) * 257 + self.ranks.rank)
        size = max(1, self._rating.minibatch // self.ranks.size)
        share = len(where) * self.ranks.size / self.sum_figures({"rows": len(where)})["rows"]
        total = 0.0
        for _ in range(self._rating.critic_steps):
            self.critic.zero_grad()
            if len(where):
                rows = draws.integers(len(where), size=size)
                loss = share * (self._value(replay, where[rows]) - returns[rows].float()).square().mean()
                loss.backward()
                total += loss.item()
            self.critic.step(self.ranks)
        return total / max(self._rating.critic_steps, 1)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that an exact resume needs."""
        return join_states({"policy": super().state(), "critic": self.critic.state()})

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore a `state`."""
        super().load(split_state(state, "policy"))
        self.critic.load(split_state(state, "critic"))
