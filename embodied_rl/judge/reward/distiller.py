"""Mode `distill` in the learner: a head that predicts scores, computes potentials and learns from the labels.

The head that judges a rollout was trained only on labels of earlier rollouts. So its prediction for an observation does
not depend on later events, which makes it a valid potential; settled potentials do not change when the head is trained
further. All ranks and collectors share one head: rank 0 trains it on all labels in the order of episodes, and the
other ranks load its state.

Shapes: T decisions, N environments of a rank, D bytes of an input.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.heads.agreement import measure_agreement
from embodied_rl.judge.heads.base import Head, HeadOptions, Labels
from embodied_rl.judge.heads.classifier import ClassifierHead
from embodied_rl.judge.heads.head_inputs import HeadInputs
from embodied_rl.judge.heads.label_memory import LabelMemory, hold_out
from embodied_rl.judge.heads.ranking import RankingHead
from embodied_rl.judge.heads.rollout_columns import read_labels
from embodied_rl.judge.heads.table import HashHead
from embodied_rl.judge.reward.modes.shaping import count_settled, join_known
from embodied_rl.judge.reward.potential_ledger import PotentialLedger
from embodied_rl.judge.reward.score_table import RolloutScores, Scores
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import RewardNode

HEADS: dict[str, type[ClassifierHead | HashHead | RankingHead]] = {
    "hash": HashHead,
    "classifier": ClassifierHead,
    "ranking": RankingHead,
}
HELD_OUT = 512
"""Newest labels that the head is compared with the judge on."""


@dataclass(frozen=True)
class DistillerOptions:
    """What a distiller is made with.

    Attributes:
        reward: of the configuration.
        inputs: how observations are packed.
        discount: of the algorithm.
        limit_ends: whether the time limit ends an episode like a termination.
        seed: of the run.
    """

    reward: RewardNode
    inputs: HeadInputs
    discount: Discount
    limit_ends: bool
    seed: int


class Distiller:
    """Settles the rollouts of one rank, one after the other; all ranks call it together.

    Args:
        options: see `DistillerOptions`.
        num_envs: N.
        ranks: the ranks that learn together.

    Attributes:
        version: of the head: how often it has learned.
    """

    def __init__(self, options: DistillerOptions, num_envs: int, ranks: Ranks) -> None:
        node = options.reward.distill
        self._options, self._ranks, self.version = options, ranks, 0
        settings = HeadOptions(options.inputs, options.seed, node.steps, node.batch, node.rate, node.entries)
        self._head: Head = HEADS[options.reward.head](settings)
        self._ledger = PotentialLedger(num_envs)
        self._learned = LabelMemory(node.labels, options.inputs.size)
        self._held_out = LabelMemory(HELD_OUT, options.inputs.size)
        self._counts: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def settle(self, rollout: Rollout) -> None:
        """Write the rewards of a rollout by the present head, then let the head learn from the labels that came."""
        counts = self._judge(rollout)
        labels = read_labels(rollout.extras)
        everybody = self._ranks.gather((vars(labels), counts))
        for _, others in everybody:
            self._counts = {name: self._counts.get(name, 0.0) + value for name, value in others.items()}
        self._learn(Labels.join([Labels(**each) for each, _ in everybody]).sort())

    def _judge(self, rollout: Rollout) -> dict[str, float]:
        """Write the columns of a rollout; return counts."""
        predicted = self._predict(rollout)
        valid = rollout.valid.cpu().numpy()
        counts = {"decisions": int(valid.sum()), "scored": int((valid & ~np.isnan(predicted.rows.value)).sum())}
        reward, options = self._options.reward, self._options
        weight = 1.0 if reward.distill.bonus else reward.weight
        known = join_known(rollout, predicted, weight, options.discount, options.limit_ends)
        settled = self._ledger.settle(known)
        if reward.distill.bonus:
            bonus = np.where(valid & ~known.terminated, reward.weight * settled.following, 0.0)
            rollout.bonus.copy_(torch.from_numpy(bonus).to(rollout.bonus))
        else:
            rollout.shaping.copy_(torch.from_numpy(settled.shaping).to(rollout.shaping))
            rollout.potential.copy_(torch.from_numpy(settled.potential).to(rollout.potential))
        return counts | count_settled(known, settled, weight)

    def _predict(self, rollout: Rollout) -> RolloutScores:
        def predict(name: str) -> Scores:
            seen = rollout.extras[name].cpu().numpy()
            value = self._head.predict(seen.reshape(-1, seen.shape[-1])).reshape(seen.shape[:-1])
            return Scores.of(value)

        return RolloutScores(rows=predict("seen"), finals=predict("final"), lasts=predict("last"))

    def _learn(self, labels: Labels) -> None:
        """Learn on rank 0, and take its state elsewhere."""
        if self._ranks.rank == 0:
            self._told = self._compare_and_learn(labels)
        if self._ranks.size > 1:
            mine = (self.version, self._head.state(), self._told) if self._ranks.rank == 0 else None
            self.version, state, self._told = self._ranks.gather(mine)[0]
            if self._ranks.rank:
                self._head.load(state)

    def _compare_and_learn(self, labels: Labels) -> dict[str, float]:
        out = hold_out(labels.episode, self._options.reward.distill.held_out)
        self._held_out.add(labels.select(out))
        fresh = self._learned.add(labels.select(~out))
        figures = self._compare()
        if len(fresh):
            figures["reward/head_loss"] = self._head.learn(fresh, self._learned.kept, self.version)
            self.version += 1
        figures |= {"reward/head_version": self.version, "reward/head_labels": len(self._learned.kept)}
        return {name: value for name, value in figures.items() if not math.isnan(value)}

    def _compare(self) -> dict[str, float]:
        """Compare the head that judged the rollout with the judge, on episodes that it does not learn from."""
        kept = self._held_out.kept
        found = measure_agreement(self._head.predict(kept.inputs), kept.value, kept.episode, self.version)
        figures = {
            "reward/head_agreement": found.share,
            "reward/head_agreement_low": found.low,
            "reward/head_agreement_high": found.high,
        }
        return figures | ({"reward/head_error": found.error} if self._head.calibrated else {})

    def figures(self) -> dict[str, float]:
        """Return the figures of the rollouts since the last call; on all ranks the same."""
        counts, self._counts = self._counts, {}
        if not counts:
            return {}
        found = {
            "reward/head_share": counts["scored"] / max(counts["decisions"], 1.0),
            "reward/held": counts["held"] / max(counts["settled"], 1.0),
        }
        if counts.get("ended"):
            found["reward/critic_return"] = counts["returned"] / counts["ended"]
        return found | self._told

    def state(self) -> dict[str, Tensor]:
        """Return what an exact resume needs: on each rank its ledger and the head, on rank 0 the labels, too."""
        head = {f"head/{name}": array for name, array in self._head.state().items()}
        arrays = head | {f"ledger/{name}": array for name, array in self._ledger.state().items()}
        if self._ranks.rank == 0:
            arrays |= {f"learned/{name}": array for name, array in self._learned.state().items()}
            arrays |= {f"held_out/{name}": array for name, array in self._held_out.state().items()}
        return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()} | {
            "version": torch.tensor(self.version)
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state`."""

        def part(prefix: str) -> dict[str, Array]:
            return {name.removeprefix(prefix): x.numpy() for name, x in state.items() if name.startswith(prefix)}

        self._head.load(part("head/"))
        self._ledger.load(part("ledger/"))
        self.version = int(state["version"])
        if self._ranks.rank == 0:
            self._learned.load(part("learned/"))
            self._held_out.load(part("held_out/"))
