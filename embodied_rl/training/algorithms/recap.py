"""RECAP, advantage-conditioned policies with guidance (π*0.6, arXiv:2511.14759), of a flow policy.

Each stored decision is labelled: "advantage: positive" if its advantage is among the `positive_share` highest of its
instruction, or if a human acted in it; else "advantage: negative". Flow matching learns all decisions, with the label
behind the instruction, and without it for a share `dropout` of the draws. The policy that is deployed is asked for
positive ones, with the velocity v_null + w (v_positive - v_null) of guidance w (arXiv:2207.12598), which stands for
π(a|o) ∝ p(a|o) (p(positive|o, a) / p(positive|o))^w: w = 1 is the policy under that condition. In contrast to weights,
failures teach the velocity as much as successes do, and the improvement is chosen when the policy acts.

Until the first update the policy has never read the label, and acts without it: as the policy that the run starts from.

The critic is that of `embodied_rl.training.algorithms.replay_critic`. Left out of the paper: its critic, a
vision-language model with a distribution over 201 bins of the return, which costs 1 a step and more for a failure; its
advantages over N steps; pre-training on demonstrations of many tasks with labels; text and discrete actions beside the
flow; and a threshold that is fixed for each task: here it follows the replay.

Shapes: B decisions.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.config.freeze import at_least
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.sim import Array
from embodied_rl.rollout.replay.experience import Replay
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.replay_cloning import WeightedDecisions
from embodied_rl.training.algorithms.replay_critic import ReplayCritic, ReplayCriticConfig

POSITIVE, NEGATIVE = "advantage: positive", "advantage: negative"


@dataclass(frozen=True)
class RecapConfig(ReplayCriticConfig):
    """Settings of RECAP, beyond those of cloning from replay with a critic."""

    positive_share: float = at_least(0, 0.3, at_most=1)
    """share of an instruction's decisions, those of the highest advantage, that are labelled positive; a human's
    corrections are always."""
    dropout: float = at_least(0, 0.3, at_most=1)
    """share of the draws that are learned without a label, as guidance needs them."""
    guidance: float = at_least(0, 1.0)
    """w of the deployed policy; larger values than 1 go further from what the replay holds."""


class Recap(ReplayCritic):
    """One update an iteration: critic, advantages, labels, cloning under labels."""

    Config = RecapConfig

    @staticmethod
    def needs(config: RecapConfig) -> Needs:  # type: ignore[override]
        """Return what the algorithm needs of a run; see `embodied_rl.interfaces.algorithm.AlgorithmKind`."""
        return replace(ReplayCritic.needs(config), conditions=(POSITIVE, NEGATIVE))

    def __init__(self, config: RecapConfig, actor: FlowActor, ranks: Ranks, seed: int, iterations: int) -> None:
        super().__init__(config, actor, ranks, seed, iterations)
        self.config = config
        body = actor.embodiment
        learned = body.condition == POSITIVE and body.guidance != 0
        actor.embodiment = replace(body, condition=POSITIVE, guidance=config.guidance if learned else 0.0)

    def update(self, replay: Replay, iteration: int) -> dict[str, float]:
        """Clone decisions under their labels; return figures for the log."""
        figures = super().update(replay, iteration)
        if figures["steps"]:
            self.actor.embodiment = replace(self.actor.embodiment, guidance=self.config.guidance)
        return figures

    def weigh(self, replay: Replay, iteration: int) -> tuple[WeightedDecisions, dict[str, float]]:
        """Fit the critic, and return the decisions of all whole episodes, equally weighted, with their labels."""
        rated, counts = self.rate(replay, iteration)
        positive = self._is_best(replay.read_instructions(rated.where), rated.advantage)
        positive |= replay.find_human(rated.where)
        sums = {"positive": positive.sum().item(), "advantages": rated.advantage.square().sum().item()}
        sums, most = self.sum_figures(sums), max(counts["rows"], 1)
        figures = {
            "episodes": counts["episodes"],
            "critic_loss": counts["critic_loss"],
            "advantage_rms": (sums["advantages"] / most) ** 0.5,
            "positive": sums["positive"] / most,
        }
        labels = np.where(positive, POSITIVE, NEGATIVE)
        return WeightedDecisions(rated.where, np.ones(len(labels), np.float32), labels), figures

    def _is_best(self, instructions: list[str], advantage: Tensor) -> Array:
        """Return which decisions are among the best of their instruction on all ranks, bool [B].

        Those of the advantage at the quantile are, too: without them, equal advantages would leave none.
        """
        texts = np.array(instructions, dtype=object)
        mine = {text: advantage.numpy()[texts == text] for text in sorted(set(instructions))}
        gathered = self.ranks.gather(mine)
        best = np.zeros(len(instructions), bool)
        for text in mine:
            together = np.concatenate([part[text] for part in gathered if text in part])
            least = np.quantile(together, 1 - self.config.positive_share, method="higher")
            best |= (texts == text) & (advantage.numpy() >= least)
        return best

    def _step(
        self, replay: Replay, learned: WeightedDecisions, shares: Array, draws: np.random.Generator,
        generator: torch.Generator, step: int,
    ) -> float:  # fmt: skip
        """Take an optimiser step on decisions of which some have lost their labels."""
        assert learned.condition is not None, "see `weigh`"
        dropped = draws.random(len(learned)) < self.config.dropout
        unlabelled = replace(learned, condition=np.where(dropped, "", learned.condition))
        return super()._step(replay, unlabelled, shares, draws, generator, step)
