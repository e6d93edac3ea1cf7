"""Ask a scorer about judged episodes, frame by frame, under the own and other instructions, and note what it said.

What the scorer did not answer stays missing, with its reason. Requests go through the service of training runs, with
its limits, attempts and breaker.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal, Relation
from embodied_rl.critic.measures import add_up_gains
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Reason, Score, ScoreKind, Scorer, ScoreRequest, ScorerTraits
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.judge.requests.request_queue import Ticket
from embodied_rl.judge.requests.service import ScoreService, ServiceLimits
from embodied_rl.judge.scorers.registry import configure_scorer
from embodied_rl.schema import RewardNode

KINDS: tuple[ScoreKind, ...] = ("absolute", "trajectory", "pair", "done")
"""The questions that can be evaluated; of those that a scorer answers, the first is asked."""
RELATIONS: tuple[Relation, ...] = ("object", "task", "place")
"""Other goals, in the order in which they are chosen."""
WAVE = 512
"""About so many requests wait at once."""
PATIENCE = 4.0
"""So many times the timeout is the longest that one request may take, with all its attempts and pauses."""


@dataclass(frozen=True, eq=False)
class JudgedSequence:
    """What a scorer said of an episode under one instruction. What it did not say is NaN.

    Attributes:
        episode: number of the episode; goal: the goal that was asked about.
        values: float64 [t], progress in 0…1; of pairs, their sum, see `add_up_gains`.
        done: float64 [t], probability that the goal holds.
        reasons: of each request.
        gains, back: float64 [t - 1] in -1…1, of pairs and of the same pairs in the other order; else empty.
    """

    episode: int
    goal: JudgedGoal
    values: Array
    done: Array
    reasons: tuple[Reason, ...]
    gains: Array
    back: Array


@dataclass(frozen=True)
class _Place:
    """Where the answer to a request belongs.

    Attributes:
        sequence: number of the sequence; frame: of the later picture; back: whether a pair is shown in reverse.
    """

    sequence: int
    frame: int
    back: bool = False


def build_scorer(reward: RewardNode, spec: SimulatorSpec) -> Scorer:
    """Build the scorer of a configuration.

    Raises:
        UserError: none was chosen, it is unknown, or it does not fit the simulator.
    """
    if reward.name is None:
        raise UserError("reward=<scorer> is missing: `embodied-rl list rewards` shows them.", code="scorer-missing")
    kind, options = configure_scorer(reward)
    return kind(options, spec)


def make_limits(reward: RewardNode) -> ServiceLimits:
    """Return the limits of a configuration."""
    return ServiceLimits(in_flight=reward.in_flight, timeout=reward.timeout)


def choose_kind(traits: ScorerTraits) -> ScoreKind:
    """Return the question to ask.

    Raises:
        UserError: the scorer answers none that can be evaluated.
    """
    kind: ScoreKind | None = next((kind for kind in KINDS if kind in traits.kinds), None)
    if kind is None:
        known = ", ".join(traits.kinds)
        raise UserError(
            f"the scorer ({traits.identity}) answers {known}; {', '.join(KINDS)} can be evaluated.",
            code="scorer-kind-unsupported",
        )
    return kind


def choose_goals(episode: JudgedEpisode, others: int, number: int) -> list[JudgedGoal]:
    """Return the robot's goal and at most `others` other goals: one of each relation first, then further ones.

    Args:
        episode: the episode.
        others: how many.
        number: of the episode; another number chooses others among equals.
    """
    own, rest = episode.goals[0], episode.goals[1:]
    rows: list[tuple[int, int, JudgedGoal]] = []
    for place, relation in enumerate(RELATIONS):
        alike = [goal for goal in rest if goal.relation == relation]
        turned = [alike[(turn + number) % len(alike)] for turn in range(len(alike))]
        rows += [(turn, place, goal) for turn, goal in enumerate(turned)]
    return [own, *(goal for _, _, goal in sorted(rows, key=lambda row: row[:2])[:others])]


def add_mismatches(episodes: Sequence[JudgedEpisode], seed: int) -> list[JudgedEpisode]:
    """Add the instruction of another episode to episodes without other goals, with the assumed progress 0.

    Args:
        episodes: with at least one goal each.
        seed: of the choice.
    """
    random = np.random.default_rng(seed)
    words = sorted({episode.goals[0].instruction for episode in episodes})
    found: list[JudgedEpisode] = []
    for episode in episodes:
        others = [each for each in words if each != episode.goals[0].instruction]
        if others and len(episode.goals) == 1:
            t = len(episode.goals[0].progress)
            chosen = others[int(random.integers(len(others)))]
            other = JudgedGoal(chosen, "task", np.zeros(t, np.float32), np.zeros(t, bool), true=False)
            found.append(replace(episode, goals=(episode.goals[0], other)))
        else:
            found.append(episode)
    return found


def judge_episodes(
    scorer: Scorer,
    episodes: Sequence[JudgedEpisode],
    limits: ServiceLimits,
    others: int,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> list[JudgedSequence]:
    """Ask a scorer about every frame of every episode, under its own and `others` other instructions.

    Args:
        scorer: not open; it is opened and closed in a separate thread.
        episodes: what is judged.
        limits: requests in flight, and the time of one.
        others: how many other goals of each episode.
        tell: called with the number of episodes that are done, and of all.

    Returns:
        The sequences, by episode, the own goal first.

    Raises:
        UserError: the scorer cannot be evaluated on these, or answered nothing at all.
    """
    kind = choose_kind(scorer.traits)
    if not (scorer.traits.reads_instruction or scorer.traits.needs_progress):  # the truth of each goal is known here
        others = 0
    asked = [(n, goal) for n, each in enumerate(episodes) for goal in choose_goals(each, others, n)]
    if scorer.traits.needs_progress and not all(goal.true for _, goal in asked):
        raise UserError(
            f"the scorer ({scorer.traits.identity}) repeats the simulator's truth, and these have none.",
            code="scorer-needs-ground-truth",
        )
    service = ScoreService(lambda: scorer, replace(limits, queued=sys.maxsize))
    judged: list[JudgedSequence] = []
    try:
        for wave in _divide(asked, episodes):
            judged += _judge_wave(service, (kind, scorer.traits), wave, episodes, limits)
            tell(judged[-1].episode + 1, len(episodes))
    finally:
        service.close()
    cause = service.cause or "Look at its answers with `embodied-rl critic probe`."
    if not any(reason == "ok" for each in judged for reason in each.reasons):
        raise UserError(
            f"the scorer ({scorer.traits.identity}) gave no valid score: {describe_reasons(judged)}. {cause}",
            code="scorer-no-valid-scores",
        )
    return judged


def count_reasons(judged: Sequence[JudgedSequence]) -> dict[str, int]:
    """Return how many requests ended for which reason, the most frequent first."""
    return dict(Counter(reason for each in judged for reason in each.reasons).most_common())


def describe_reasons(judged: Sequence[JudgedSequence]) -> str:
    """Say how many requests ended for which reason."""
    return ", ".join(f"{count} {reason}" for reason, count in count_reasons(judged).items())


# -- asking -----------------------------------------------------------------------------------------------------------

_Asked = list[tuple[int, JudgedGoal]]


def _divide(asked: _Asked, episodes: Sequence[JudgedEpisode]) -> list[_Asked]:
    """Divide sequences into waves of about `WAVE` requests."""
    waves: list[_Asked] = [[]]
    size = 0
    for number, goal in asked:
        if size >= WAVE:
            waves.append([])
            size = 0
        waves[-1].append((number, goal))
        size += 2 * len(episodes[number].state)
    return waves if asked else []


def _judge_wave(
    service: ScoreService,
    asks: tuple[ScoreKind, ScorerTraits],
    wave: _Asked,
    episodes: Sequence[JudgedEpisode],
    limits: ServiceLimits,
) -> list[JudgedSequence]:
    kind, traits = asks
    places = [each for n, (number, _) in enumerate(wave) for each in _list_places(n, episodes[number], kind)]
    shown = [_choose_frames(place, kind, traits) for place in places]
    requests = [
        _make_request(kind, episodes[wave[place.sequence][0]], wave[place.sequence], place.frame, frames)
        for place, frames in zip(places, shown, strict=True)
    ]
    tickets = service.submit(requests, [0] * len(requests))
    turns = 1 + len(requests) // limits.in_flight
    service.wait(tickets, PATIENCE * limits.timeout * turns)
    service.abandon(tickets)
    service.check()
    answers: list[list[tuple[_Place, Score]]] = [[] for _ in wave]
    for place, ticket in zip(places, tickets, strict=True):
        answers[place.sequence].append((place, _read(ticket)))
    sizes = [len(episodes[number].state) for number, _ in wave]
    return [_collect(kind, *asked, t, given) for asked, t, given in zip(wave, sizes, answers, strict=True)]


def _list_places(sequence: int, episode: JudgedEpisode, kind: ScoreKind) -> list[_Place]:
    if kind != "pair":
        return [_Place(sequence, frame) for frame in range(len(episode.state))]
    later = range(1, len(episode.state))
    return [_Place(sequence, frame, back) for back in (False, True) for frame in later]


def _choose_frames(place: _Place, kind: ScoreKind, traits: ScorerTraits) -> list[int]:
    """Return the frames that a request shows, none of them later than its own but in a reversed pair."""
    if kind == "pair":
        return [place.frame, place.frame - 1] if place.back else [place.frame - 1, place.frame]
    count = min(traits.frames, place.frame + 1)
    if traits.span == "latest":
        return list(range(place.frame + 1 - count, place.frame + 1))
    spread = np.linspace(0, place.frame, count) if count > 1 else [place.frame]
    return [round(float(each)) for each in spread]


def _make_request(
    kind: ScoreKind, episode: JudgedEpisode, asked: tuple[int, JudgedGoal], frame: int, shown: list[int]
) -> ScoreRequest:
    number, goal = asked
    frames = {camera: pictures[shown] for camera, pictures in episode.frames.items()}
    first = {camera: pictures[0] for camera, pictures in episode.frames.items()}
    truth = float(goal.progress[frame]) if goal.true else None
    before = episode.state[shown[-2]] if kind == "pair" else None
    return ScoreRequest(number, frame, kind, goal.instruction, frames, first, episode.state[shown[-1]], truth, before)


def _read(ticket: Ticket) -> Score:
    assert ticket.score is not None, "abandoned tickets have a score"
    return ticket.score


def _collect(
    kind: ScoreKind, number: int, goal: JudgedGoal, t: int, given: Sequence[tuple[_Place, Score]]
) -> JudgedSequence:
    """Put the answers of a sequence in order."""
    values, done = np.full(t, np.nan), np.full(t, np.nan)
    gains, back = (np.full(max(0, t - 1) if kind == "pair" else 0, np.nan) for _ in range(2))
    for place, score in given:
        if not score.valid:
            continue
        if kind == "pair":
            (back if place.back else gains)[place.frame - 1] = score.value
        elif kind == "done":
            done[place.frame] = score.value
        else:
            values[place.frame] = score.value
        if kind != "done" and not place.back and score.done is not None:
            done[place.frame] = score.done
    if kind == "pair":
        values = add_up_gains(gains)
    return JudgedSequence(number, goal, values, done, tuple(score.reason for _, score in given), gains, back)
