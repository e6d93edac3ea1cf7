"""Writer of a collector that sends each observation to a scorer and writes the reward of the run's mode.

In the modes `terminal` and `distill` scores are read at the end of the rollout. In all others the newest score of the
episode is settled before each action, and requests stay open while their episode runs.
"""

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.scorer import ScoreKind, ScorerTraits, list_scored_cameras
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.requests.service import ScoreService, ServiceLimits
from embodied_rl.judge.reward.decision_scores import DecisionScores
from embodied_rl.judge.reward.mismatch_probes import MismatchProbes
from embodied_rl.judge.reward.modes import Audit, Mode, PositiveDelta, Shaping
from embodied_rl.judge.reward.score_table import RolloutScores, count_tickets, is_usable, tabulate_scores
from embodied_rl.judge.reward.scoring_requests import Order, Question, ScoreRequester
from embodied_rl.judge.reward.strip_keeper import StripKeeper
from embodied_rl.judge.reward.terminal import Terminal
from embodied_rl.judge.scorers.cost import CostMeter, find_prices
from embodied_rl.judge.scorers.score_log import FOLDER, ScoreLog, describe_score
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.writer import Writer
from embodied_rl.schema import RewardNode

log = logging.getLogger(__name__)

MODES: dict[str, type[Mode]] = {
    "audit": Audit,
    "distill": Mode,  # computes no reward
    "late": Shaping,
    "sync": Shaping,  # differs in when it waits
    "terminal": Terminal,
    "rises": PositiveDelta,
}
QUEUED_ROLLOUTS, QUEUED_BYTES = 2, 1 << 30
"""Limits of the queue: requests in rollouts, and bytes of their pictures."""
LEAST_IN_VAIN = 20
"""Consecutive requests answered after the end of their episode before the user is warned."""


@dataclass(frozen=True)
class ScoringOptions:
    """Settings of a `ScoringWriter`; picklable.

    Attributes:
        reward, discount: of the configuration; no discount where the algorithm has none.
        scorer: class of the scorer, and its settings.
        spec: of the simulator.
        decisions: T.
        limit_ends: whether the time limit ends an episode like a termination.
        collectors: number of collectors of the run, which share its limits.
        folder: of the run.
    """

    reward: RewardNode
    scorer: tuple[type[Any], Any]
    spec: SimulatorSpec
    decisions: int
    discount: Discount | None
    limit_ends: bool
    collectors: int
    folder: str


class ScoringWriter(Writer):
    """Asks for scores, waits as long as allowed, and lets the mode of the run compute the reward of each rollout."""

    final_pictures = False

    def __init__(self, options: ScoringOptions, number: int) -> None:
        self._options, self._reward, self._number = options, options.reward, number
        self._opened = ExitStack()
        self._figures: dict[str, float] = {}
        self._useless = ""
        self._reported_cost = CostMeter().state()

    def prepare(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Prepare for a collector of N environments, and start the service."""
        options, reward, collectors = self._options, self._reward, self._options.collectors
        self._mode = MODES[reward.mode](reward, num_envs, options.discount, options.limit_ends)
        make, config = options.scorer
        traits = make(config, spec).traits
        scored = list_scored_cameras(options.spec)
        pixels = sum(each.height * each.width for each in options.spec.cameras if each.name in scored)
        room = QUEUED_BYTES // collectors // max(1, 3 * pixels)
        limits = ServiceLimits(
            in_flight=max(1, reward.in_flight // collectors),
            queued=max(2 * num_envs, min(room, QUEUED_ROLLOUTS * options.decisions * num_envs)),
            timeout=reward.timeout,
            budget=None if reward.budget is None else share_budget(reward.budget, collectors, self._number),
            prices=find_prices(reward),
            money=None if reward.budget_money is None else reward.budget_money / collectors,
            apart=reward.wait_share is None or reward.mode == "sync",
        )
        self._service = ScoreService(lambda: make(config, spec), limits)
        self._opened.callback(self._service.close)
        question = choose_question(reward, traits)
        orders: dict[str, Order] = {"distill": "newest", "terminal": "oldest"}
        order = orders.get(reward.mode, "newest per environment")
        self._requester = ScoreRequester(self._service, spec, num_envs, reward.every, question, order)
        sizes, pair = (options.decisions, num_envs), question.kind == "pair"
        self._settled = None if reward.mode in orders else DecisionScores(self._service, sizes, reward.confidence, pair)
        self._probes = MismatchProbes(self._service, reward.probes.mismatch, traits)
        self._log = ScoreLog(Path(options.folder, FOLDER, f"{self._number}.jsonl"), traits.identity)
        self._opened.callback(self._log.close)
        self._strips = StripKeeper(Path(options.folder), self._number)
        self._opened.callback(self._strips.close)
        self._lasts: dict[int, int] = {}
        """Column → decision, of the observations after the last row."""
        self._open: list[Ticket] = []
        """Of earlier rollouts, without an answer that counts."""
        self._decided: float | None = None
        """When the last action of this rollout was handed over."""
        self._waited, self._in_vain = 0.0, 0
        """Seconds waited in this rollout; consecutive requests with unused answers, -1 after the warning."""

    def write_observation(self, row: Tensor | int, columns: Tensor, observation: Observation, keys: NoiseKeys) -> None:
        """Ask about the observations before the decisions."""
        asked = self._requester.request_before_decisions(row, columns, observation, keys)
        if self._settled is not None:
            self._settled.begin_episodes(columns[torch.from_numpy(keys.decision == 0)].tolist())
            self._settled.add(asked)

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        """Settle which scores count, before the actions are handed over."""
        if self._settled is None:
            return
        listed, numbers = columns.tolist(), keys.decision.tolist()
        self._wait(self._settled.list_awaited(listed, numbers), self._wait_limit())
        self._settled.settle(np.broadcast_to(np.asarray(row), (len(listed),)).tolist(), listed, numbers)
        self._decided = time.monotonic()

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Ask about the final observations of truncated episodes, where the mode needs them."""
        self._requester.count_decision(columns)
        finals = self._requester.request_finals(row, columns, result, rows) if self._mode.asks_finals else {}
        if self._settled is not None and len(result.ended):
            ended = columns[torch.from_numpy(np.isin(rows, result.ended))].tolist()
            self._settled.end_episodes(row, ended, finals)

    def write_last(self, columns: Array, observation: Observation, keys: NoiseKeys) -> None:
        """Ask about the observations that the next rollout begins with, and settle which scores count there."""
        asked = self._requester.request_lasts(columns, observation, keys)
        if self._settled is not None:
            self._settled.add(asked)
            self._lasts |= dict(zip(columns.tolist(), keys.decision.tolist(), strict=True))

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        """Wait no longer for scores of episodes that were lost."""
        self._requester.drop_episodes(columns, first_rows)
        if self._settled is not None:
            self._settled.begin_episodes(columns.tolist())

    def finish_rollout(self, rollout: Rollout) -> None:
        """Wait as long as allowed, settle the rollout, and log the scores.

        Raises:
            UserError: the log cannot be written, or reward.on_down=abort and the scorer is down.
        """
        asked = self._requester.tickets()
        if self._settled is None:
            self._wait(asked, self._wait_limit())
        else:
            lasts = list(self._lasts), list(self._lasts.values())
            self._wait(self._settled.list_awaited(*lasts), self._wait_limit())
            self._settled.settle_lasts(*lasts)
        probed = self._probes.asked
        self._service.abandon(probed)
        ended = self._end_tickets(asked)
        settled = self._settle(rollout)
        least, by_decision = self._reward.confidence, self._settled is not None
        lines = [
            (each, each.counted is not None if by_decision else is_usable(each.score, least)) for each in ended
        ] + [(each, False) for each in probed]
        self._log.write(
            [
                describe_score(each.request, each.score, each.seconds, used, each.counted)
                for each, used in lines
                if each.score is not None
            ]
        )
        self._useless = describe_useless(ended)
        self._warn_of_latency(ended)
        self._strips.keep(ended, rollout)
        self._figures = count_tickets(ended, len(asked), self._waited, self._service.status) | dict(settled)
        cost, before = self._service.cost.state(), self._reported_cost
        self._figures |= {f"tokens_{name}": cost[name] - before[name] for name in ("read", "written", "uncounted")}
        self._figures |= self._probes.count(probed)
        self._reported_cost = cost
        if self._reward.on_down == "abort" and self._service.status == "down":
            raise UserError(
                f"the scorer is down: {self._service.cause}. reward.on_down=continue trains on without it.",
                code="scorer-down",
            )
        self._requester.begin_rollout()
        self._probes.ask(ended)
        self._waited, self._lasts, self._decided = 0.0, {}, None

    def _end_tickets(self, tickets: Sequence[Ticket]) -> Sequence[Ticket]:
        """Return the tickets that have come to their end by now, also of earlier rollouts; the others stay open."""
        self._service.abandon(self._requester.lost)
        if self._settled is None:
            self._service.abandon(tickets)
            return tickets
        pending, known = set(self._settled.list_pending()), [*self._open, *tickets]
        self._open = [ticket for ticket in known if ticket in pending]
        return [ticket for ticket in known if ticket not in pending]

    def _settle(self, rollout: Rollout) -> Mapping[str, float]:
        if self._settled is None:
            return self._mode.settle(rollout, self._tabulate(rollout))
        scores = self._settled.read()
        self._settled.begin_rollout()
        return self._mode.settle(rollout, scores)

    def _warn_of_latency(self, ended: Sequence[Ticket]) -> None:
        """Warn once where answers take longer than episodes, so that none ever counts."""
        if self._settled is None or self._in_vain < 0:
            return
        late = sum(ticket.score is not None and ticket.score.reason == "late" for ticket in ended)
        self._in_vain = 0 if any(ticket.counted is not None for ticket in ended) else self._in_vain + late
        if self._in_vain >= LEAST_IN_VAIN:
            log.warning(
                "The scorer answers more slowly than episodes end: none of its last %d scores counted. "
                "reward.mode=distill learns from answers of any age.",
                self._in_vain,
            )
            self._in_vain = -1

    def _tabulate(self, rollout: Rollout) -> RolloutScores:
        size, least = (rollout.decisions, rollout.num_envs), self._reward.confidence
        return RolloutScores(
            rows=tabulate_scores(self._requester.rows, size, least),
            finals=tabulate_scores(self._requester.finals, size, least),
            lasts=tabulate_scores(self._requester.lasts, size[1:], least),
        )

    def _wait_limit(self) -> float:
        """Return the seconds to wait now: for the scores of a decision, or with `terminal` for those of a rollout."""
        reward = self._reward
        if reward.mode == "sync":
            return reward.timeout
        if reward.wait_share is None or reward.mode == "terminal":
            return reward.deadline
        passed = 0.0 if self._decided is None else time.monotonic() - self._decided
        return min(reward.deadline, reward.wait_share * passed)

    def _wait(self, tickets: Sequence[Ticket], seconds: float) -> None:
        began = time.monotonic()
        self._service.wait(tickets, seconds)
        self._waited += time.monotonic() - began
        self._service.check()

    def figures(self) -> Mapping[str, float]:
        """Return counts of the last rollout: requests, valid scores, what the mode settled, seconds waited."""
        return self._figures

    def trouble(self) -> str:
        """Return why the scorer is down, or else why no score of the last rollout is valid; empty where neither is."""
        return self._service.cause or self._useless

    def state(self) -> dict[str, Array]:
        """Return the state of the mode, the first frames of running episodes, and the spent budget."""
        spent = {} if self._reward.budget is None else {"spent": self._service.spent}
        if self._reward.budget_money is not None:
            spent |= {f"told/{name}": value for name, value in self._reported_cost.items()}
            spent |= {f"cost/{name}": value for name, value in self._service.cost.state().items()}
        scores = {} if self._settled is None else self._settled.state()
        return self._mode.state() | self._requester.state() | scores | {k: np.array(v) for k, v in spent.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore the state of `state`."""
        self._mode.load(state)
        self._requester.load(state)
        if self._settled is not None:
            self._settled.load(state)
        if "spent" in state:
            self._service.spent = int(state["spent"])
        if self._reward.budget_money is not None:
            names = list(self._reported_cost)
            self._reported_cost = {name: float(state[f"told/{name}"]) for name in names}
            self._service.cost.load({name: float(state[f"cost/{name}"]) for name in names})

    def close(self) -> None:
        """End the service, and write what is left of the log."""
        self._opened.close()


def describe_useless(tickets: Sequence[Ticket]) -> str:
    """Return why most scores of a rollout are missing, if all are, and came in time; else an empty text."""
    reasons = Counter(ticket.score.reason for ticket in tickets if ticket.score is not None)
    (reason, _), *_ = reasons.most_common(1) or [("late", 0)]
    return "" if reasons["ok"] or reason == "late" else f"no score was valid; most are '{reason}' in the log of scores"


def choose_question(reward: RewardNode, traits: ScorerTraits) -> Question:
    """Return the question of a mode: how far the task is, unless only whether it is done matters and can be asked.

    A scorer that cannot say how far it is says how much nearer it came.
    """
    kind: ScoreKind = "absolute" if "absolute" in traits.kinds else "pair"
    if reward.mode == "terminal" and not traits.judges_done:
        kind = "done"
    return Question(kind, max(traits.frames, 2) if kind == "pair" else traits.frames, traits.span)


def share_budget(budget: int, collectors: int, number: int) -> int:
    """Return the part of collector `number`; the parts of all collectors add up to the budget."""
    return budget // collectors + (number < budget % collectors)
