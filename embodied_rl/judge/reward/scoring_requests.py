"""Scoring requests of a collector: for observations before decisions, at ends of episodes and of the rollout.

Shapes: T decisions, N environments of the collector, n of one call, f frames of a request.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.scorer import ScoreKind, ScoreRequest, Span, list_scored_cameras
from embodied_rl.interfaces.sim import Array, Observation, SimulatorSpec, StepResult
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.requests.service import ScoreService
from embodied_rl.judge.scorers.shared_images import Picture, SharedImages


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


Order = Literal["newest per environment", "newest", "oldest"]
"""Which questions are answered first: those of the environment that has waited longest, where of each environment only
the newest question waits; the newest ones; or the oldest ones."""


class FrameHistory:
    """Bounded history of scored frames of some cameras, as many as a request may show: f with the current one.

    For the span "latest" these are the last f - 1. For "episode" every 2^k-th frame of the episode is kept; when there
    are 2 f of them, every second one is dropped.
    """

    def __init__(self, spec: SimulatorSpec, cameras: Sequence[str], num_envs: int, frames: int, span: Span) -> None:
        self._frames, self._span = frames, span
        self._room = 2 * frames if span == "episode" and frames > 1 else frames - 1
        self._sizes = {each.name: (each.height, each.width, 3) for each in spec.cameras if each.name in cameras}
        self._kept: list[list[Mapping[str, Picture]]] = [[] for _ in range(num_envs)]
        self._seen = np.zeros(num_envs, np.int64)
        """Frames of the episode so far, kept or not."""
        self._stride = np.ones(num_envs, np.int64)

    def begin(self, column: int) -> None:
        """Forget the episode of an environment."""
        self._kept[column], self._seen[column], self._stride[column] = [], 0, 1

    def has_earlier(self, column: int) -> bool:
        """Return whether an earlier frame of the running episode is kept."""
        return bool(self._kept[column])

    def show(self, column: int, present: Mapping[str, Picture]) -> SharedImages:
        """Return the frames of a request of environment `column`, at most f of each camera, the present one last."""
        kept = self._kept[column]
        count = len(kept)
        earlier = min(self._frames - 1, count)
        if self._span == "latest" or earlier == count:
            places = list(range(count - earlier, count))
        else:  # evenly; place `count` is the present one
            places = sorted({round(place * count / earlier) for place in range(earlier)})
        shown = [*(kept[place] for place in places), present]
        return SharedImages({name: tuple(each[name] for each in shown) for name in self._sizes})

    def add(self, column: int, present: Mapping[str, Picture]) -> None:
        """Keep a frame that was, or could have been, asked about."""
        number, kept = int(self._seen[column]), self._kept[column]
        self._seen[column] += 1
        if not self._room or (self._span == "episode" and number % self._stride[column]):
            return
        if len(kept) == self._room and self._span == "latest":
            del kept[0]
        elif len(kept) == self._room:
            del kept[1::2]
            self._stride[column] *= 2
            if number % self._stride[column]:
                return
        kept.append(present)

    def state(self) -> dict[str, Array]:
        """Return copies of all arrays; nothing where nothing is kept."""
        if not self._room:
            return {}
        arrays = {"count": np.array([len(kept) for kept in self._kept]), "seen": self._seen, "stride": self._stride}
        for name, size in self._sizes.items():
            arrays[f"frames/{name}"] = np.zeros((len(self._kept), self._room, *size), np.uint8)
            for column, kept in enumerate(self._kept):
                for place, each in enumerate(kept):
                    arrays[f"frames/{name}"][column, place] = each[name].pixels
        return {f"history/{name}": array.copy() for name, array in arrays.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        if not self._room:
            return
        self._seen[:], self._stride[:] = state["history/seen"], state["history/stride"]
        for column, count in enumerate(state["history/count"].tolist()):
            self._kept[column] = [
                {name: Picture(state[f"history/frames/{name}"][column, place].copy()) for name in self._sizes}
                for place in range(count)
            ]


class ScoreRequester:
    """Submits the scoring requests of rollouts, and keeps their tickets.

    Args:
        service: answers them.
        spec: of the simulator.
        num_envs: N.
        every: decisions of an episode between two requests.
        question: kind of the request, and its frames.
        order: priority of requests if not all can be answered.

    Attributes:
        rows, finals: (row, column) → ticket: before a decision; of the final observation of a truncated episode.
        lasts: column → ticket, of the observation after the last decision.
        lost: tickets of episodes that were lost.
    """

    def __init__(
        self, service: ScoreService, spec: SimulatorSpec, num_envs: int, every: int, question: Question, order: Order
    ) -> None:
        self._service, self._spec, self._every = service, spec, every
        self._kind: ScoreKind = question.kind
        self._order, self._turns = order, 0
        self._cameras = list_scored_cameras(spec)
        self._history = FrameHistory(spec, self._cameras, num_envs, question.frames, question.span)
        self._first: list[dict[str, Picture]] = [{} for _ in range(num_envs)]
        self._states = np.full((num_envs, len(spec.state_names)), np.nan, np.float32)
        """State of the observation of the last possible request; NaN if unknown."""
        self._progress = np.zeros((num_envs, 2), np.int64)
        """Index and next decision of each running episode."""
        self._asked = np.zeros(num_envs, bool)
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

    def request_before_decisions(
        self, row: Tensor | int, columns: Tensor, observation: Observation, keys: NoiseKeys
    ) -> dict[int, Ticket]:
        """Ask about observations before decisions not asked about at the end of the last rollout: column → ticket."""
        rows = np.broadcast_to(np.asarray(row), (len(columns),)).tolist()
        numbers, listed = keys.decision.tolist(), columns.tolist()
        self._progress[listed] = np.stack([keys.episode, keys.decision], axis=1)
        requests: dict[int, ScoreRequest] = {}
        for place, column in enumerate(listed):
            begins = numbers[place] == 0 or not self._first[column]
            asked = rows[place] == 0 and numbers[place] and self._asked[column]
            due = not asked and numbers[place] % self._every == 0
            if not begins and not due:
                continue
            pictures = self._copy_pictures(observation, place)
            if begins:
                self._first[column] = pictures
                self._history.begin(column)
            if due and self._can_ask(column):
                requests[column] = self._make_request(column, observation, place, pictures)
            if due:
                self._remember(column, observation, place, pictures)
        tickets = self._submit(requests)
        self.rows |= {(rows[listed.index(column)], column): ticket for column, ticket in tickets.items()}
        return tickets

    def _can_ask(self, column: int) -> bool:
        return self._kind != "pair" or self._history.has_earlier(column)

    def _copy_pictures(self, observation: Observation, place: int) -> dict[str, Picture]:
        return {name: Picture(observation.images[name][place].copy()) for name in self._cameras}

    def _remember(self, column: int, observation: Observation, place: int, pictures: Mapping[str, Picture]) -> None:
        self._states[column] = observation.state[place]
        self._history.add(column, pictures)

    def request_finals(self, row: int, columns: Tensor, result: StepResult, rows: Array) -> dict[int, Ticket]:
        """Ask about final observations of truncated episodes; a termination needs no request: column → ticket."""
        seen = result.final_observation
        if seen is None:
            return {}
        at = {int(simulated): column for simulated, column in zip(rows, columns.tolist(), strict=True)}
        cut = result.truncated[result.ended] & ~result.terminated[result.ended]
        places = {at[int(result.ended[place])]: place for place in np.flatnonzero(cut).tolist()}
        tickets = self._submit({
            column: self._make_request(column, seen, place, self._copy_pictures(seen, place))
            for column, place in places.items()
            if self._can_ask(column)
        }, final=True)  # fmt: skip
        self.finals |= {(row, column): ticket for column, ticket in tickets.items()}
        return tickets

    def count_decision(self, columns: Tensor) -> None:
        """Count a decision of the environments `columns`."""
        self._progress[columns.tolist(), 1] += 1

    def request_lasts(self, columns: Array, observation: Observation, keys: NoiseKeys) -> dict[int, Ticket]:
        """Ask about observations that the next rollout begins with, where an episode goes on: column → ticket."""
        listed, numbers = columns.tolist(), keys.decision.tolist()
        self._progress[listed] = np.stack([keys.episode, keys.decision], axis=1)
        requests: dict[int, ScoreRequest] = {}
        for place, column in enumerate(listed):
            if numbers[place] and self._can_ask(column):
                pictures = self._copy_pictures(observation, place)
                requests[column] = self._make_request(column, observation, place, pictures)
                self._remember(column, observation, place, pictures)
        self.lasts |= (tickets := self._submit(requests))
        return tickets

    def drop_episodes(self, columns: Tensor, first_rows: Array) -> None:
        """Wait no longer for scores of episodes that were lost, and which began in `first_rows`."""
        lost = dict(zip(columns.tolist(), first_rows.tolist(), strict=True))
        for kept in (self.rows, self.finals):
            self.lost += [kept.pop(key) for key in list(kept) if key[1] in lost and key[0] >= lost[key[1]]]
        for column in lost:
            self._asked[column] = False
            self._history.begin(column)

    def _make_request(
        self, column: int, observation: Observation, place: int, pictures: Mapping[str, Picture]
    ) -> ScoreRequest:
        """Return the question about row `place` of an observation."""
        known = self._kind == "pair" and np.isfinite(self._states[column]).all()
        return ScoreRequest(
            episode=int(self._progress[column, 0]),
            decision=int(self._progress[column, 1]),
            kind=self._kind,
            instruction=observation.instruction[place],
            frames=self._history.show(column, pictures),
            first=SharedImages(self._first[column]),
            state=observation.state[place].copy(),
            progress=None if observation.progress is None else float(observation.progress[place]),
            state_before=self._states[column].copy() if known else None,
        )

    def _submit(self, requests: Mapping[int, ScoreRequest], final: bool = False) -> dict[int, Ticket]:
        """Submit requests by column. A final one is open in parallel with those of the next episode."""
        self._turns += 1
        priority = -self._turns if self._order == "newest" else 0
        slots = [(column, final) for column in requests] if self._order == "newest per environment" else None
        tickets = self._service.submit(list(requests.values()), [priority] * len(requests), slots)
        return dict(zip(requests, tickets, strict=True))

    def state(self) -> dict[str, Array]:
        """Return the first frames of running episodes, and what was asked at the boundary."""
        shapes = {each.name: (each.height, each.width, 3) for each in self._spec.cameras}
        first = {
            f"first/{name}": np.stack(
                [kept[name].pixels if name in kept else np.zeros(shapes[name], np.uint8) for kept in self._first]
            )
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
            self._first[column] = {name: Picture(state[f"first/{name}"][column].copy()) for name in self._cameras}
