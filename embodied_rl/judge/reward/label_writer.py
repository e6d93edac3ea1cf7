"""A collector's writer of mode `distill`: it notes each observation, and which labels have come.

A question that is not answered when its rollout ends stays open. Its answer is a label of the rollout in which it
comes, and nothing waits for it.

Shapes: T decisions, N environments of a collector, D bytes of an input of a head.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec, StepResult
from embodied_rl.judge.heads.head_inputs import HeadInputs
from embodied_rl.judge.heads.rollout_columns import make_labels
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.reward.score_table import is_usable
from embodied_rl.judge.reward.scoring_writer import QUEUED_ROLLOUTS, ScoringOptions, ScoringWriter
from embodied_rl.rollout.buffer import Rollout


class LabelWriter(ScoringWriter):
    """Asks as every scoring writer does, the newest observations first, and hands over what has been answered.

    Args:
        options: see `ScoringOptions`.
        number: of the collector.
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
        """Return 0: nothing waits, but where all scores are waited for, so that a run can be repeated."""
        return self._reward.deadline if self._reward.wait_share is None else 0.0

    def _end_tickets(self, tickets: Sequence[Ticket]) -> Sequence[Ticket]:
        """Keep tickets without an answer; return those that have come to their end by now, also of earlier rollouts."""
        assert self._service is not None
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
        """Write the columns; return how many questions were asked, came to their end, and are open, and the labels."""
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
