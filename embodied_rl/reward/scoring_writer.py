"""A writer of a collector that asks a scorer about each observation, and settles the rollout's shaping at its end.

Shapes: T decisions, N environments of the collector, n of one call.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.config.schema import RewardNode
from embodied_rl.interfaces.algorithm import Discount
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Decision, NoiseKeys
from embodied_rl.interfaces.scorer import Scorer, ScoreRequest
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.objectives.gae import make_discounts
from embodied_rl.reward.ledger import PotentialLedger, ScoredRollout
from embodied_rl.reward.priority import ENDS, FIRST, rank_decision
from embodied_rl.reward.request_queue import Ticket
from embodied_rl.reward.service import ScoreService, ServiceLimits
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.writer import Writer
from embodied_rl.scorers.score_log import FOLDER, ScoreLog, describe_score

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
        discount: of the algorithm; None where it has none, so that scores are only logged.
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
    """Asks, waits at the end of the rollout as long as allowed, and writes the column `shaping`.

    Args:
        options: see `ScoringOptions`.
        number: of the collector, for the name of its log.
    """

    final_pictures = False

    def __init__(self, options: ScoringOptions, number: int) -> None:
        self._options, self._reward, self._number = options, options.reward, number
        self._cameras = list_scored_cameras(options.spec)
        self._settles = options.reward.mode != "audit"
        self._service: ScoreService | None = None
        self._figures: dict[str, float] = {}

    def check_sizes(self, spec: SimulatorSpec, num_envs: int, executed: int) -> None:
        """Prepare for a collector of N environments, and start the service."""
        self._ledger = PotentialLedger(num_envs)
        self._first: list[dict[str, Array]] = [{} for _ in range(num_envs)]
        self._progress = np.zeros((num_envs, 2), np.int64)
        """Index and next decision of each running episode."""
        self._asked = np.zeros(num_envs, bool)
        """Whether the observation after the last row was asked about, so that it is not asked about again."""
        self._clear()
        make, config = self._options.scorer
        limits = ServiceLimits(
            max(1, self._reward.in_flight // self._options.collectors),
            QUEUED_ROLLOUTS * self._options.decisions * num_envs,
            self._reward.timeout,
        )
        self._service = ScoreService(lambda: make(config, spec), limits)
        identity = self._make_identity(make(config, spec))
        self._log = ScoreLog(Path(self._options.folder, FOLDER, f"{self._number}.jsonl"), identity)

    @staticmethod
    def _make_identity(scorer: Scorer) -> str:
        return scorer.traits.identity

    def _clear(self) -> None:
        self._began: float | None = None
        """When the first decision of the rollout was made."""
        self._rows: dict[tuple[int, int], Ticket] = {}
        self._finals: dict[tuple[int, int], Ticket] = {}
        self._lasts: dict[int, Ticket] = {}
        self._lost: list[Ticket] = []

    # -- asking -----------------------------------------------------------------------------------------------------

    def write_decision(
        self,
        row: Tensor | int,
        columns: Tensor,
        decision: Decision,
        episodes: list[Episode],
        observation: Observation,
        keys: NoiseKeys,
    ) -> None:
        """Ask about the observations before the decisions, but for those asked about at the end of the last rollout."""
        if self._began is None:
            self._began = time.monotonic()
        rows = np.broadcast_to(np.asarray(row), (len(columns),)).tolist()
        numbers, listed = keys.decision.tolist(), columns.tolist()
        self._progress[listed] = np.stack([keys.episode, keys.decision], axis=1)
        for place, column in enumerate(listed):
            if numbers[place] == 0 or not self._first[column]:
                self._first[column] = {name: observation.images[name][place].copy() for name in self._cameras}
        due = [place for place, column in enumerate(listed) if self._is_due(rows[place], column, numbers[place])]
        ranks = [FIRST if numbers[i] == 0 else rank_decision(rows[i], self._options.decisions) for i in due]
        tickets = self._ask(observation, due, [listed[i] for i in due], ranks)
        self._rows |= {(rows[i], listed[i]): ticket for i, ticket in zip(due, tickets, strict=True)}
        if self._reward.mode == "sync":
            self._wait(tickets, self._reward.timeout)

    def _is_due(self, row: int, column: int, number: int) -> bool:
        if row == 0 and number and self._asked[column]:
            return False
        return number % self._reward.every == 0

    def write_result(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Ask about the final observations of truncated episodes; a termination is worth 0 without asking."""
        listed = columns.tolist()
        self._progress[listed, 1] += 1
        cut = result.truncated[result.ended] & ~result.terminated[result.ended]
        places = np.flatnonzero(cut).tolist() if self._options.discount is None or not self._options.limit_ends else []
        if not places or result.final_observation is None:
            return
        at = {int(simulated): column for simulated, column in zip(rows, listed, strict=True)}
        ended = [at[int(result.ended[place])] for place in places]
        tickets = self._ask(result.final_observation, places, ended, [ENDS] * len(places))
        self._finals |= {(row, column): ticket for column, ticket in zip(ended, tickets, strict=True)}

    def write_last(self, columns: Array, observation: Observation, keys: NoiseKeys) -> None:
        """Ask about the observations that the next rollout begins with, where an episode goes on."""
        listed, numbers = columns.tolist(), keys.decision.tolist()
        self._progress[listed] = np.stack([keys.episode, keys.decision], axis=1)
        places = [place for place, number in enumerate(numbers) if number > 0]
        asked = [listed[place] for place in places]
        tickets = self._ask(observation, places, asked, [ENDS] * len(places))
        self._lasts |= dict(zip(asked, tickets, strict=True))

    def lose_episodes(self, row: int, columns: Tensor, first_rows: Array) -> None:
        """Wait no longer for scores of episodes that were lost."""
        lost = set(columns.tolist())
        for kept in (self._rows, self._finals):
            self._lost += [kept.pop(key) for key in list(kept) if key[1] in lost and key[0] >= 0]
        for column in lost:
            self._asked[column] = False

    def _ask(
        self, observation: Observation, places: Sequence[int], columns: Sequence[int], priorities: Sequence[int]
    ) -> list[Ticket]:
        """Submit a request for each of `places`, rows of the observation; return the tickets."""
        if not places:
            return []
        assert self._service is not None
        chosen = list(places)
        frames = {name: observation.images[name][chosen] for name in self._cameras}  # a copy
        states = observation.state[chosen]
        told = [None] * len(chosen) if observation.progress is None else observation.progress[chosen].tolist()
        requests = [
            ScoreRequest(
                episode=int(self._progress[column, 0]),
                decision=int(self._progress[column, 1]),
                kind="absolute",
                instruction=observation.instruction[place],
                frames={name: pictures[i : i + 1] for name, pictures in frames.items()},
                first=self._first[column],
                state=states[i],
                progress=told[i],
            )
            for i, (place, column) in enumerate(zip(chosen, columns, strict=True))
        ]
        return self._service.submit(requests, priorities)

    # -- settling ---------------------------------------------------------------------------------------------------

    def finish_rollout(self, rollout: Rollout) -> None:
        """Wait as long as allowed, settle potentials, write `shaping`, and log the scores.

        Raises:
            UserError: the log cannot be written, or reward.on_down=abort and the scorer is down.
        """
        assert self._service is not None
        tickets = [*self._lasts.values(), *self._finals.values(), *self._rows.values()]
        began = time.monotonic()
        self._wait(tickets, self._patience(began - (began if self._began is None else self._began)))
        waited = time.monotonic() - began
        answered = [ticket.score is not None for ticket in tickets]
        self._service.abandon([*tickets, *self._lost])
        held = self._settle(rollout) if self._settles else 0
        self._note(tickets)
        self._count(tickets, answered, held, int(rollout.valid.sum()), waited)
        self._asked[:] = False
        self._asked[list(self._lasts)] = True
        if self._reward.on_down == "abort" and self._service.status == "down":
            raise UserError(f"the scorer is down: {self._service.cause}. reward.on_down=continue trains on without it.")
        self._clear()

    def _patience(self, collecting: float) -> float:
        """Return the seconds to wait at the end of a rollout that took `collecting` seconds."""
        if self._reward.mode == "sync":
            return self._reward.timeout
        if self._reward.wait_share is None:
            return self._reward.deadline
        return min(self._reward.deadline, self._reward.wait_share * collecting)

    def _wait(self, tickets: Sequence[Ticket], seconds: float) -> None:
        assert self._service is not None
        self._service.wait(tickets, seconds)
        self._service.check()

    def _settle(self, rollout: Rollout) -> int:
        """Write `shaping`; return how many potentials were held."""
        assert self._options.discount is not None
        size = (rollout.decisions, rollout.num_envs)
        score, final, last = np.full(size, np.nan), np.full(size, np.nan), np.full(size[1], np.nan)
        for column, tickets in ((score, self._rows), (final, self._finals), (last, self._lasts)):
            for place, ticket in tickets.items():
                column[place] = self._weigh(ticket)
        truncated, terminated = rollout.truncated.cpu().numpy(), rollout.terminated.cpu().numpy()
        if self._options.limit_ends:
            truncated, terminated = np.zeros_like(truncated), terminated | truncated
        discount = make_discounts(rollout.steps.cpu(), self._options.discount.gamma, self._options.discount.per)
        known = ScoredRollout(
            score=score,
            last=last,
            final=final,
            decision=rollout.decision.cpu().numpy(),
            discount=discount.double().numpy(),
            terminated=terminated,
            truncated=truncated,
            valid=rollout.valid.cpu().numpy(),
        )
        settled = self._ledger.settle(known)
        rollout.shaping.copy_(torch.from_numpy(settled.shaping).to(rollout.shaping))
        return int(settled.held.sum())

    def _weigh(self, ticket: Ticket) -> float:
        score = ticket.score
        usable = score is not None and score.valid and score.confidence >= self._reward.confidence
        return self._reward.weight * score.value if usable and score is not None else np.nan

    # -- reporting --------------------------------------------------------------------------------------------------

    def _note(self, tickets: Sequence[Ticket]) -> None:
        self._log.write([
            describe_score(
                ticket.request.episode, ticket.request.decision, ticket.request.kind, ticket.request.instruction,
                ticket.score, ticket.seconds, used=not np.isnan(self._weigh(ticket)),
            )
            for ticket in tickets
            if ticket.score is not None
        ])  # fmt: skip

    def _count(
        self, tickets: Sequence[Ticket], answered: Sequence[bool], held: int, settled: int, waited: float
    ) -> None:
        assert self._service is not None
        valid = [ticket for ticket in tickets if ticket.score is not None and ticket.score.valid]
        self._figures = {
            "asked": len(tickets),
            "answered": sum(answered),
            "valid": len(valid),
            "progress": float(sum(ticket.score.value for ticket in valid if ticket.score is not None)),
            "held": held,
            "settled": settled,
            "waited": waited,
            "down": float(self._service.status == "down"),
            "collectors": 1,
        }

    def figures(self) -> Mapping[str, float]:
        """Return counts of the last rollout: requests, valid scores, potentials that were held, seconds waited."""
        return self._figures

    def state(self) -> dict[str, Array]:
        """Return the settled potentials at the boundary, and the first frames of running episodes."""
        first = {
            f"first/{name}": np.stack([_frame(kept, name, self._options.spec) for kept in self._first])
            for name in self._cameras
        }
        return self._ledger.state() | first | {"asked": self._asked.copy()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a state, so that a resumed run uses the potentials that were settled before."""
        self._ledger.load({"carried": state["carried"]})
        self._asked[:] = state["asked"]
        for column in range(len(self._first)):
            self._first[column] = {name: state[f"first/{name}"][column].copy() for name in self._cameras}

    def close(self) -> None:
        """End the service, and write what is left of the log."""
        if self._service is not None:
            self._service.close()
            self._log.close()


def make_scoring_writer(options: ScoringOptions, number: int) -> ScoringWriter:
    """Build the writer of collector `number`; for a `WriterFactory`."""
    return ScoringWriter(options, number)


def list_scored_cameras(spec: SimulatorSpec) -> list[str]:
    """Return the cameras whose pictures scorers see: those with the role "score", or else the policy's."""
    by_role = {role: [camera.name for camera in spec.cameras if camera.role == role] for role in ("score", "policy")}
    return by_role["score"] or by_role["policy"]


def _frame(kept: Mapping[str, Array], name: str, spec: SimulatorSpec) -> Array:
    camera = next(camera for camera in spec.cameras if camera.name == name)
    return kept.get(name, np.zeros((camera.height, camera.width, 3), np.uint8))
