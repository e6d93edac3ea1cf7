"""Mode `distill`: a head learns from the scorer's labels, and its predictions make the reward.

`LabelWriter` notes in a collector each observation and which labels have come; `Distiller` is in the learner. The head
that judges a rollout was trained only on labels of earlier rollouts. So its prediction for an observation does not
depend on later events, which makes it a valid potential; settled potentials do not change when the head is trained
further. All ranks and collectors share one head: rank 0 trains it on all labels in the order of episodes, and the
other ranks load its state.

Shapes: T decisions, N environments of a collector or rank, D bytes of an input of a head.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec, StepResult
from embodied_rl.judge.heads.agreement import measure_agreement
from embodied_rl.judge.heads.head_inputs import HeadInputs
from embodied_rl.judge.heads.heads import HEADS
from embodied_rl.judge.heads.labels import LabelMemory, Labels, hold_out, make_labels, read_labels
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.reward.modes import count_settled, join_known
from embodied_rl.judge.reward.potential_ledger import PotentialLedger
from embodied_rl.judge.reward.score_table import RolloutScores, Scores, is_usable
from embodied_rl.judge.reward.scoring_writer import QUEUED_ROLLOUTS, ScoringOptions, ScoringWriter
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.schema import RewardNode

HELD_OUT = 512
"""Newest labels that the head is compared with the judge on."""


class LabelWriter(ScoringWriter):
    """Asks as every scoring writer does, the newest observations first, and hands over the answers as labels.

    A request without an answer at the end of its rollout stays open. Its answer is a label of the rollout in which it
    comes, and nothing waits for it.
    """

    def __init__(self, options: ScoringOptions, number: int) -> None:
        super().__init__(options, number)
        self._inputs = HeadInputs(options.spec, options.reward.distill.pixels)
        self._ready: list[Ticket] = []
        self._counts: dict[str, float] = {}

    def prepare(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Prepare for N environments; see `ScoringWriter`."""
        super().prepare(spec, num_envs, executed)
        size = (self._options.decisions, num_envs, self._inputs.size)
        self._seen, self._final = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
        self._last = np.zeros(size[1:], np.uint8)

    def write_observation(self, row: Tensor | int, columns: Tensor, observation: Observation, keys: NoiseKeys) -> None:
        """Note the inputs of the observations before the decisions, and ask about them."""
        self._seen[np.asarray(row), columns.numpy()] = self._pack(observation)
        super().write_observation(row, columns, observation, keys)

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Note the inputs of the final observations of truncated episodes, and ask about them."""
        cut = result.truncated[result.ended] & ~result.terminated[result.ended]
        if cut.any() and result.final_observation is not None:
            at = {int(simulated): column for simulated, column in zip(rows, columns.tolist(), strict=True)}
            ended = [at[int(place)] for place in result.ended[cut]]
            self._final[row, ended] = self._pack(result.final_observation)[cut]
        super().write_result(row, columns, result, rows)

    def write_last(self, columns: Array, observation: Observation, keys: NoiseKeys) -> None:
        """Note the inputs of the observations that the next rollout begins with, and ask about them."""
        self._last[columns] = self._pack(observation)
        super().write_last(columns, observation, keys)

    def _pack(self, observation: Observation) -> Array:
        return self._inputs.pack(observation.images, observation.state, observation.instruction)

    def _wait_limit(self) -> float:
        """Return 0, unless all scores are waited for, so that a run can be repeated."""
        return self._reward.deadline if self._reward.wait_share is None else 0.0

    def _end_tickets(self, tickets: Sequence[Ticket]) -> Sequence[Ticket]:
        """Keep tickets without an answer; return those that were answered by now, also of earlier rollouts."""
        waiting = [*self._open, *self._requester.lost, *tickets]
        most = QUEUED_ROLLOUTS * self._seen.shape[0] * self._seen.shape[1]
        self._service.abandon([each for each in waiting if each.score is None][:-most])
        answered = [each.score is not None for each in waiting]  # read once: another thread adds answers
        ended = [each for each, known in zip(waiting, answered, strict=True) if known]
        self._open = [each for each, known in zip(waiting, answered, strict=True) if not known]
        self._ready += [each for each in ended if is_usable(each.score, self._reward.confidence)]
        self._counts = {"asked": len(tickets), "resolved": len(ended), "open": len(self._open)}
        return ended

    def _settle(self, rollout: Rollout) -> Mapping[str, float]:
        """Write the columns; return counts of requests asked, answered and open, and of labels."""
        places = rollout.extras["labelled"].numel()
        now, self._ready = self._ready[:places], self._ready[places:]
        labels = make_labels(self._inputs, [(each.request, each.score) for each in now])
        where = np.unravel_index(np.arange(len(labels)), tuple(rollout.extras["labelled"].shape))
        columns = {"label": labels.inputs, "label_episode": labels.episode, "label_decision": labels.decision}
        for name, array in (columns | {"label_value": labels.value, "labelled": np.ones(len(labels), bool)}).items():
            rollout.extras[name][where] = torch.from_numpy(array).to(rollout.extras[name])
        for name, array in {"seen": self._seen, "final": self._final, "last": self._last}.items():
            rollout.extras[name].copy_(torch.from_numpy(array))
        return self._counts | {"labels": len(labels)}


class Distiller:
    """Settles the rollouts of one rank, one after the other; all ranks call it together.

    Args:
        reward, discount, seed: of the configuration.
        inputs: how observations are packed.
        limit_ends: whether the time limit ends an episode like a termination.
        num_envs: N.
        ranks: the ranks that learn together.

    Attributes:
        version: of the head: how often it has learned.
    """

    def __init__(
        self,
        reward: RewardNode,
        inputs: HeadInputs,
        discount: Discount,
        limit_ends: bool,
        seed: int,
        num_envs: int,
        ranks: Ranks,
    ) -> None:
        node = reward.distill
        self._reward, self._discount, self._limit_ends = reward, discount, limit_ends
        self._ranks, self.version = ranks, 0
        self._head = HEADS[reward.head](inputs, seed, node)
        self._ledger = PotentialLedger(num_envs)
        self._learned = LabelMemory(node.labels, inputs.size)
        self._held_out = LabelMemory(HELD_OUT, inputs.size)
        self._counts: dict[str, float] = {}
        self._reported: dict[str, float] = {}

    def settle(self, rollout: Rollout) -> None:
        """Write the rewards of a rollout by the present head, then let the head learn from the labels that came."""
        counts = self._judge(rollout)
        gathered = self._ranks.gather((vars(read_labels(rollout.extras)), counts))
        for _, others in gathered:
            self._counts = {name: self._counts.get(name, 0.0) + value for name, value in others.items()}
        if self._ranks.rank == 0:
            self._reported = self._compare_and_learn(Labels.join([Labels(**each) for each, _ in gathered]).sort())
        if self._ranks.size > 1:
            mine = (self.version, self._head.state(), self._reported) if self._ranks.rank == 0 else None
            self.version, state, self._reported = self._ranks.gather(mine)[0]
            if self._ranks.rank:
                self._head.load(state)

    def _judge(self, rollout: Rollout) -> dict[str, float]:
        """Write the columns of a rollout; return counts."""

        def predict(name: str) -> Scores:
            seen = rollout.extras[name].cpu().numpy()
            return Scores.of(self._head.predict(seen.reshape(-1, seen.shape[-1])).reshape(seen.shape[:-1]))

        predicted = RolloutScores(rows=predict("seen"), finals=predict("final"), lasts=predict("last"))
        valid, bonus_mode = rollout.valid.cpu().numpy(), self._reward.distill.bonus
        weight = 1.0 if bonus_mode else self._reward.weight
        known = join_known(rollout, predicted, weight, self._discount, self._limit_ends)
        settled = self._ledger.settle(known)
        if bonus_mode:
            bonus = np.where(valid & ~known.terminated, self._reward.weight * settled.following, 0.0)
            rollout.bonus.copy_(torch.from_numpy(bonus).to(rollout.bonus))
        else:
            rollout.shaping.copy_(torch.from_numpy(settled.shaping).to(rollout.shaping))
            rollout.potential.copy_(torch.from_numpy(settled.potential).to(rollout.potential))
        counts = {"decisions": int(valid.sum()), "scored": int((valid & ~np.isnan(predicted.rows.value)).sum())}
        return counts | count_settled(known, settled, weight)

    def _compare_and_learn(self, labels: Labels) -> dict[str, float]:
        """Compare the head that judged the rollout with the scorer, on held-out episodes; then let it learn."""
        out = hold_out(labels.episode, self._reward.distill.held_out)
        self._held_out.add(labels.select(out))
        fresh = self._learned.add(labels.select(~out))
        kept = self._held_out.kept
        found = measure_agreement(self._head.predict(kept.inputs), kept.value, kept.episode, self.version)
        figures = {
            "reward/head_agreement": found.share,
            "reward/head_agreement_low": found.low,
            "reward/head_agreement_high": found.high,
        }
        if self._head.calibrated:
            figures["reward/head_error"] = found.error
        if len(fresh):
            figures["reward/head_loss"] = self._head.learn(fresh, self._learned.kept, self.version)
            self.version += 1
        figures |= {"reward/head_version": self.version, "reward/head_labels": len(self._learned.kept)}
        return {name: value for name, value in figures.items() if not math.isnan(value)}

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
        return found | self._reported

    def state(self) -> dict[str, Tensor]:
        """Return the state for an exact resume: on each rank its ledger and the head, on rank 0 the labels, too."""
        parts = {"head": self._head.state(), "ledger": self._ledger.state()}
        if self._ranks.rank == 0:
            parts |= {"learned": self._learned.state(), "held_out": self._held_out.state()}
        arrays = {f"{part}/{name}": array for part, state in parts.items() for name, array in state.items()}
        return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()} | {
            "version": torch.tensor(self.version)
        }

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore a `state`."""
        owners = {"head/": self._head, "ledger/": self._ledger}
        if self._ranks.rank == 0:
            owners |= {"learned/": self._learned, "held_out/": self._held_out}
        for prefix, owner in owners.items():
            owner.load({name.removeprefix(prefix): x.numpy() for name, x in state.items() if name.startswith(prefix)})
        self.version = int(state["version"])
