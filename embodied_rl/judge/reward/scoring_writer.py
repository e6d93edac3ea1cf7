"""A writer of a collector that asks a scorer about each observation, and settles what it said at the rollout's end."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from embodied_rl.config.schema import RewardNode
from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.scorer import ScoreKind, ScorerTraits
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.requests.service import ScoreService, ServiceLimits
from embodied_rl.judge.reward.asking import Asker, Question
from embodied_rl.judge.reward.counting import count_tickets
from embodied_rl.judge.reward.modes.base import ModeOptions
from embodied_rl.judge.reward.modes.choice import make_mode
from embodied_rl.judge.reward.pair_progress import PairProgress
from embodied_rl.judge.reward.probes import MismatchProbes
from embodied_rl.judge.reward.score_table import RolloutScores, is_usable, tabulate_scores
from embodied_rl.judge.reward.strip_keeper import StripKeeper
from embodied_rl.judge.scorers.cost import CostMeter, find_prices
from embodied_rl.judge.scorers.score_log import FOLDER, ScoreLog, describe_score
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.writer import Writer

QUEUED_ROLLOUTS = 2
"""As many rollouts' requests may wait for a scorer."""


@dataclass(frozen=True)
class ScoringOptions:
    """What a process needs to build its `ScoringWriter`; picklable.

    Attributes:
        reward: of the configuration.
        scorer: class of the scorer, and its settings.
        spec: of the simulator.
        decisions: T.
        discount: of the algorithm; None where it has none.
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
    """Asks, waits at the end of the rollout as long as allowed, and lets the mode of the run settle it.

    Args:
        options: see `ScoringOptions`.
        number: of the collector, for the name of its log.
    """

    final_pictures = False

    def __init__(self, options: ScoringOptions, number: int) -> None:
        self._options, self._reward, self._number = options, options.reward, number
        self._at_once = options.reward.mode == "sync" or options.reward.at_once
        self._service: ScoreService | None = None
        self._figures: dict[str, float] = {}
        self._useless = ""
        self._told_cost = CostMeter().state()

    def check_sizes(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Prepare for a collector of N environments, and start the service."""
        options, reward = self._options, self._reward
        mode = ModeOptions(reward, num_envs, options.discount, options.limit_ends)
        self._mode = make_mode(mode)
        make, config = options.scorer
        traits = make(config, spec).traits
        self._service = ScoreService(lambda: make(config, spec), self._share_limits(num_envs))
        question = choose_question(reward, traits)
        sizes, newest_first = (options.decisions, num_envs), reward.mode == "distill"
        self._asker = Asker(self._service, spec, sizes, reward.every, question, newest_first)
        self._pairs = PairProgress(num_envs) if question.kind == "pair" else None
        self._probes = MismatchProbes(self._service, reward.probes.mismatch, traits)
        self._strips = StripKeeper(Path(options.folder), self._number)
        self._log = ScoreLog(Path(options.folder, FOLDER, f"{self._number}.jsonl"), traits.identity)
        self._began: float | None = None
        """When the first decision of the rollout was made."""

    def _share_limits(self, num_envs: int) -> ServiceLimits:
        reward, collectors = self._reward, self._options.collectors
        return ServiceLimits(
            in_flight=max(1, reward.in_flight // collectors),
            queued=QUEUED_ROLLOUTS * self._options.decisions * num_envs,
            timeout=reward.timeout,
            budget=None if reward.budget is None else share_budget(reward.budget, collectors, self._number),
            prices=find_prices(reward),
            money=None if reward.budget_money is None else reward.budget_money / collectors,
        )

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        """Ask about the observations before the decisions."""
        if self._began is None:
            self._began = time.monotonic()
        tickets = self._asker.ask_before(row, columns, observation, keys)
        if self._at_once:
            self._wait(tickets, self._reward.timeout)

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Ask about the final observations of truncated episodes, where the mode wants them."""
        self._asker.note_step(columns)
        if self._mode.asks_finals:
            self._asker.ask_finals(row, columns, result, rows)

    def write_last(self, columns: Array, observation: Observation, keys: NoiseKeys) -> None:
        """Ask about the observations that the next rollout begins with."""
        self._asker.ask_lasts(columns, observation, keys)

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        """Wait no longer for scores of episodes that were lost."""
        self._asker.lose(columns)

    def finish_rollout(self, rollout: Rollout) -> None:
        """Wait as long as allowed, settle the rollout, and log the scores.

        Raises:
            UserError: the log cannot be written, or reward.on_down=abort and the scorer is down.
        """
        assert self._service is not None
        tickets = self._asker.tickets()
        began = time.monotonic()
        self._wait(tickets, self._patience(began - (began if self._began is None else self._began)))
        waited = time.monotonic() - began
        answered = sum(ticket.score is not None for ticket in tickets)
        probed = self._probes.collect()
        self._service.abandon(probed)
        ended = self._end_tickets(tickets)
        settled = self._settle(rollout)
        self._note(ended, probed)
        self._useless = describe_useless(ended)
        self._strips.keep(ended, rollout)
        self._figures = count_tickets(ended, answered, waited, self._service.status) | dict(settled)
        self._figures |= dict(self._probes.count(probed)) | self._count_tokens()
        self._check_service()
        self._asker.begin_rollout()
        self._probes.ask(tickets)
        self._began = None

    def _end_tickets(self, tickets: Sequence[Ticket]) -> Sequence[Ticket]:
        """Wait no longer for the tickets of a rollout; return those that have come to their end."""
        assert self._service is not None
        self._service.abandon([*tickets, *self._asker.lost])
        return tickets

    def _settle(self, rollout: Rollout) -> Mapping[str, float]:
        return self._mode.settle(rollout, self._tabulate(rollout))

    def _count_tokens(self) -> dict[str, float]:
        """Return what was counted since the last rollout."""
        assert self._service is not None
        now, before = self._service.cost.state(), self._told_cost
        self._told_cost = now
        return {f"tokens_{name}": now[name] - before[name] for name in ("read", "written", "uncounted")}

    def _tabulate(self, rollout: Rollout) -> RolloutScores:
        size, least = (rollout.decisions, rollout.num_envs), self._reward.confidence
        scores = RolloutScores(
            rows=tabulate_scores(self._asker.rows, size, least),
            finals=tabulate_scores(self._asker.finals, size, least),
            lasts=tabulate_scores(self._asker.lasts, size[1:], least),
        )
        return scores if self._pairs is None else self._pairs.join(scores, rollout.decision.cpu().numpy())

    def _patience(self, collecting: float) -> float:
        """Return the seconds to wait at the end of a rollout that took `collecting` seconds."""
        if self._at_once:
            return self._reward.timeout
        if self._reward.wait_share is None:
            return self._reward.deadline
        return min(self._reward.deadline, self._reward.wait_share * collecting)

    def _wait(self, tickets: Sequence[Ticket], seconds: float) -> None:
        assert self._service is not None
        self._service.wait(tickets, seconds)
        self._service.check()

    def _check_service(self) -> None:
        assert self._service is not None
        if self._reward.on_down == "abort" and self._service.status == "down":
            raise UserError(f"the scorer is down: {self._service.cause}. reward.on_down=continue trains on without it.")

    def _note(self, tickets: Sequence[Ticket], probed: Sequence[Ticket]) -> None:
        least = self._reward.confidence
        used = [(ticket, is_usable(ticket.score, least)) for ticket in tickets]
        self._log.write([
            describe_score(
                ticket.request.episode, ticket.request.decision, ticket.request.kind, ticket.request.instruction,
                ticket.score, ticket.seconds, used=counts,
            )
            for ticket, counts in (*used, *((ticket, False) for ticket in probed))
            if ticket.score is not None
        ])  # fmt: skip

    def figures(self) -> Mapping[str, float]:
        """Return counts of the last rollout: requests, valid scores, what the mode settled, seconds waited."""
        return self._figures

    def trouble(self) -> str:
        """Return why the scorer is down, or else why no score of the last rollout is valid; empty where neither is."""
        return ("" if self._service is None else self._service.cause) or self._useless

    def state(self) -> dict[str, Array]:
        """Return what the mode remembers at the boundary, the first frames of running episodes, and what was spent."""
        spent = {} if self._service is None or self._reward.budget is None else {"spent": self._service.spent}
        if self._reward.budget_money is not None:
            spent |= {f"told/{name}": value for name, value in self._told_cost.items()}
            assert self._service is not None
            spent |= {f"cost/{name}": value for name, value in self._service.cost.state().items()}
        pairs = {} if self._pairs is None else self._pairs.state()
        return self._mode.state() | self._asker.state() | pairs | {k: np.array(v) for k, v in spent.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a state, so that a resumed run goes on with what was settled before."""
        assert self._service is not None
        self._mode.load(state)
        self._asker.load(state)
        if self._pairs is not None:
            self._pairs.load(state)
        if "spent" in state:
            self._service.spent = int(state["spent"])
        if self._reward.budget_money is not None:
            names = list(self._told_cost)
            self._told_cost = {name: float(state[f"told/{name}"]) for name in names}
            self._service.cost.load({name: float(state[f"cost/{name}"]) for name in names})

    def close(self) -> None:
        """End the service, and write what is left of the log."""
        if self._service is not None:
            self._service.close()
            self._log.close()
            self._strips.close()


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
