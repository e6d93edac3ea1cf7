"""What a collector asks about: each observation it decides on, the ends of episodes, and that of the rollout.

Shapes: T decisions, N environments of the collector, n of one call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.scorer import ScoreKind, ScoreRequest, Span, list_scored_cameras
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec, StepResult
from embodied_rl.judge.requests.priority import ENDS, FIRST, rank_decision
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.requests.service import ScoreService
from embodied_rl.judge.reward.frame_history import FrameHistory


@dataclass(frozen=True)
class Question:
    """What is asked about an observation.

    Attributes:
        kind: the question; for "pair" there is none about an episode's first observation.
        frames: that it shows, at most.
        span: which ones.
    """

    kind: ScoreKind
    frames: int = 1
    span: Span = "latest"


class Asker:
    """Submits the questions of one rollout after the other, and keeps their tickets.

    Args:
        service: answers them.
        spec: of the simulator.
        sizes: T and N.
        every: ask at each so many decisions of an episode.
        question: which one, and of which frames.
        newest_first: whether later questions are answered earlier, where not all can be.

    Attributes:
        rows, finals: (row, column) → ticket: before a decision; of the final observation of a truncated episode.
        lasts: column → ticket, of the observation after the last decision.
        lost: tickets of episodes that were lost.
    """

    def __init__(
        self,
        service: ScoreService,
        spec: SimulatorSpec,
        sizes: tuple[int, int],
        every: int,
        question: Question,
        newest_first: bool = False,
    ) -> None:
        self._service, self._spec, self._decisions, self._every = service, spec, sizes[0], every
        self._kind: ScoreKind = question.kind
        self._newest_first, self._turns = newest_first, 0
        self._cameras = list_scored_cameras(spec)
        self._history = FrameHistory(spec, self._cameras, sizes[1], question.frames, question.span)
        self._first: list[dict[str, Array]] = [{} for _ in range(sizes[1])]
        self._states = np.full((sizes[1], len(spec.state_names)), np.nan, np.float32)
        """Of the observation that was, or could have been, asked about last; NaN where nobody knows."""
        self._progress = np.zeros((sizes[1], 2), np.int64)
        """Index and next decision of each running episode."""
        self._asked = np.zeros(sizes[1], bool)
        """Whether the observation after the last row was asked about, so that it is not asked about again."""
        self._clear()

    def _clear(self) -> None:
        self.rows: dict[tuple[int, int], Ticket] = {}
        self.finals: dict[tuple[int, int], Ticket] = {}
        self.lasts: dict[int, Ticket] = {}
        self.lost: list[Ticket] = []

    def tickets(self) -> list[Ticket]:
        """Return the tickets of this rollout that are waited for."""
        return [*self.lasts.values(), *self.finals.values(), *self.rows.values()]

    def begin_rollout(self) -> None:
        """Forget the tickets of a rollout that was settled."""
        self._asked[:] = False
        self._asked[list(self.lasts)] = True
        self._clear()

    def ask_before(self, row: Tensor | int, columns: Tensor, observation: Observation, keys: NoiseKeys) -> list[Ticket]:
        """Ask about the observations before the decisions, but for those asked about at the end of the last rollout."""
        rows = np.broadcast_to(np.asarray(row), (len(columns),)).tolist()
        numbers, listed = keys.decision.tolist(), columns.tolist()
        self._progress[listed] = np.stack([keys.episode, keys.decision], axis=1)
        for place, column in enumerate(listed):
            if numbers[place] == 0 or not self._first[column]:
                self._first[column] = {name: observation.images[name][place].copy() for name in self._cameras}
                self._history.begin(column)
        due = [place for place, column in enumerate(listed) if self._is_due(rows[place], column, numbers[place])]
        asked = [place for place in due if self._can_ask(listed[place])]
        ranks = [FIRST if numbers[i] == 0 else rank_decision(rows[i], self._decisions) for i in asked]
        tickets = self._ask(observation, asked, [listed[i] for i in asked], ranks)
        self.rows |= {(rows[i], listed[i]): ticket for i, ticket in zip(asked, tickets, strict=True)}
        self._remember(observation, due, [listed[i] for i in due])
        return tickets

    def _is_due(self, row: int, column: int, number: int) -> bool:
        if row == 0 and number and self._asked[column]:
            return False
        return number % self._every == 0

    def _can_ask(self, column: int) -> bool:
        return self._kind != "pair" or self._history.has_earlier(column)

    def _remember(self, observation: Observation, places: Sequence[int], columns: Sequence[int]) -> None:
        self._states[list(columns)] = observation.state[list(places)]
        for place, column in zip(places, columns, strict=True):
            self._history.add(column, {name: observation.images[name][place] for name in self._cameras})

    def ask_finals(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> None:
        """Ask about the final observations of episodes that were truncated; a termination needs no question."""
        listed = columns.tolist()
        cut = result.truncated[result.ended] & ~result.terminated[result.ended]
        places = np.flatnonzero(cut).tolist()
        if not places or result.final_observation is None:
            return
        at = {int(simulated): column for simulated, column in zip(rows, listed, strict=True)}
        places = [place for place in places if self._can_ask(at[int(result.ended[place])])]
        ended = [at[int(result.ended[place])] for place in places]
        tickets = self._ask(result.final_observation, places, ended, [ENDS] * len(places))
        self.finals |= {(row, column): ticket for column, ticket in zip(ended, tickets, strict=True)}

    def note_step(self, columns: Tensor) -> None:
        """Count a decision of the environments `columns`."""
        self._progress[columns.tolist(), 1] += 1

    def ask_lasts(self, columns: Array, observation: Observation, keys: NoiseKeys) -> None:
        """Ask about the observations that the next rollout begins with, where an episode goes on."""
        listed, numbers = columns.tolist(), keys.decision.tolist()
        self._progress[listed] = np.stack([keys.episode, keys.decision], axis=1)
        places = [place for place, number in enumerate(numbers) if number > 0 and self._can_ask(listed[place])]
        asked = [listed[place] for place in places]
        tickets = self._ask(observation, places, asked, [ENDS] * len(places))
        self.lasts |= dict(zip(asked, tickets, strict=True))
        self._remember(observation, places, asked)

    def lose(self, columns: Tensor) -> None:
        """Wait no longer for scores of episodes that were lost."""
        lost = set(columns.tolist())
        for kept in (self.rows, self.finals):
            self.lost += [kept.pop(key) for key in list(kept) if key[1] in lost and key[0] >= 0]
        for column in lost:
            self._asked[column] = False
            self._history.begin(column)

    def _ask(
        self, observation: Observation, places: Sequence[int], columns: Sequence[int], priorities: Sequence[int]
    ) -> list[Ticket]:
        """Submit a request for each of `places`, rows of the observation; return the tickets."""
        if not places:
            return []
        chosen = list(places)
        frames = {name: observation.images[name][chosen] for name in self._cameras}  # a copy
        states = observation.state[chosen]
        told = [None] * len(chosen) if observation.progress is None else observation.progress[chosen].tolist()
        requests = [
            ScoreRequest(
                episode=int(self._progress[column, 0]),
                decision=int(self._progress[column, 1]),
                kind=self._kind,
                instruction=observation.instruction[place],
                frames=self._history.show(column, {name: pictures[i] for name, pictures in frames.items()}),
                first=self._first[column],
                state=states[i],
                progress=told[i],
                state_before=self._find_state_before(column),
            )
            for i, (place, column) in enumerate(zip(chosen, columns, strict=True))
        ]
        self._turns += 1
        return self._service.submit(requests, [-self._turns] * len(chosen) if self._newest_first else priorities)

    def _find_state_before(self, column: int) -> Array | None:
        known = self._kind == "pair" and np.isfinite(self._states[column]).all()
        return self._states[column].copy() if known else None

    def state(self) -> dict[str, Array]:
        """Return the first frames of running episodes, and what was asked at the boundary."""
        first = {
            f"first/{name}": np.stack([_frame(kept, name, self._spec) for kept in self._first])
            for name in self._cameras
        }
        pairs = {"states": self._states.copy()} if self._kind == "pair" else {}
        return first | {"asked": self._asked.copy()} | pairs | self._history.state()

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        self._asked[:] = state["asked"]
        self._states[:] = state.get("states", np.nan)
        self._history.load(state)
        for column in range(len(self._first)):
            self._first[column] = {name: state[f"first/{name}"][column].copy() for name in self._cameras}


def _frame(kept: Mapping[str, Array], name: str, spec: SimulatorSpec) -> Array:
    camera = next(camera for camera in spec.cameras if camera.name == name)
    return kept.get(name, np.zeros((camera.height, camera.width, 3), np.uint8))
