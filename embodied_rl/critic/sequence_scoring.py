"""Score judged episodes, frame by frame, under their own and other instructions.

Requests go through the service of training runs, with its limits, attempts and breaker.
"""

import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal, Relation
from embodied_rl.critic.measures import add_up_gains
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Reason, ScoreKind, Scorer, ScoreRequest, ScorerTraits
from embodied_rl.interfaces.sim import Array, SimulatorSpec
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
    """Scores of an episode under one instruction; missing ones are NaN.

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

    Another `number` of the episode chooses others among equals.
    """
    own, rest = episode.goals[0], episode.goals[1:]
    rows: list[tuple[int, int, JudgedGoal]] = []
    for place, relation in enumerate(RELATIONS):
        alike = [goal for goal in rest if goal.relation == relation]
        turned = [alike[(turn + number) % len(alike)] for turn in range(len(alike))]
        rows += [(turn, place, goal) for turn, goal in enumerate(turned)]
    return [own, *(goal for _, _, goal in sorted(rows, key=lambda row: row[:2])[:others])]


def judge_episodes(
    scorer: Scorer,
    episodes: Sequence[JudgedEpisode],
    limits: ServiceLimits,
    others: int,
    report: Callable[[int, int], None] = lambda done, of: None,
) -> list[JudgedSequence]:
    """Score every frame of every episode, under its own and `others` other instructions.

    Args:
        scorer: not open; it is opened and closed in a separate thread.
        episodes: what is judged.
        limits: requests in flight, and the time of one.
        others: how many other goals of each episode.
        report: called with the number of episodes that are done, and of all.

    Returns:
        The sequences, by episode, the own goal first.

    Raises:
        UserError: the scorer cannot be evaluated on these, or answered nothing at all.
    """
    choose_kind(scorer.traits)
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
        wave: list[tuple[int, JudgedGoal]] = []
        for place, (number, goal) in enumerate(asked, start=1):
            wave.append((number, goal))
            if place == len(asked) or sum(2 * len(episodes[each].state) for each, _ in wave) >= WAVE:
                judged += _judge_wave(service, scorer.traits, wave, episodes, limits)
                report(number + 1, len(episodes))
                wave = []
    finally:
        service.close()
    cause = service.cause or "Look at its answers with `embodied-rl critic probe`."
    if not any(reason == "ok" for each in judged for reason in each.reasons):
        counts = ", ".join(f"{count} {reason}" for reason, count in count_reasons(judged).items())
        raise UserError(
            f"the scorer ({scorer.traits.identity}) gave no valid score: {counts}. {cause}",
            code="scorer-no-valid-scores",
        )
    return judged


def count_reasons(judged: Sequence[JudgedSequence]) -> dict[str, int]:
    """Return how many requests ended for which reason, the most frequent first."""
    return dict(Counter(reason for each in judged for reason in each.reasons).most_common())


def _judge_wave(
    service: ScoreService,
    traits: ScorerTraits,
    wave: Sequence[tuple[int, JudgedGoal]],
    episodes: Sequence[JudgedEpisode],
    limits: ServiceLimits,
) -> list[JudgedSequence]:
    """Ask about several sequences at once, given as episode and goal."""
    kind = choose_kind(traits)
    asked = [_list_requests(number, episodes[number], goal, traits) for number, goal in wave]
    requests = [request for sequence in asked for request in sequence]
    tickets = service.submit(requests, [0] * len(requests))
    service.wait(tickets, PATIENCE * limits.timeout * (1 + len(requests) // limits.in_flight))
    service.abandon(tickets)
    service.check()
    assert all(ticket.score is not None for ticket in tickets), "abandoned tickets have a score"
    scores = (ticket.score for ticket in tickets if ticket.score is not None)
    judged: list[JudgedSequence] = []
    for (number, goal), sequence in zip(wave, asked, strict=True):
        given, unknown = list(islice(scores, len(sequence))), np.full(len(episodes[number].state), np.nan)
        reasons: tuple[Reason, ...] = tuple(score.reason for score in given)
        values = np.array([score.value if score.valid else np.nan for score in given], np.float64)
        done = np.array([score.done if score.valid and score.done is not None else np.nan for score in given])
        if kind == "pair":
            gains, back = np.split(values, 2)
            done = np.concatenate([[np.nan], done[: len(gains)]])
            judged.append(JudgedSequence(number, goal, add_up_gains(gains), done, reasons, gains, back))
            continue
        values, done = (unknown, values) if kind == "done" else (values, done)
        judged.append(JudgedSequence(number, goal, values, done, reasons, np.zeros(0), np.zeros(0)))
    return judged


def _list_requests(number: int, episode: JudgedEpisode, goal: JudgedGoal, traits: ScorerTraits) -> list[ScoreRequest]:
    """Return a request for each frame, with none later than it; for pairs, of all pairs and then of all in reverse."""
    kind, t = choose_kind(traits), len(episode.state)
    shown: list[list[int]] = []
    for frame in range(t):
        count = min(traits.frames, frame + 1)
        if traits.span == "latest":
            shown.append(list(range(frame + 1 - count, frame + 1)))
        else:
            spread = np.linspace(0, frame, count) if count > 1 else [frame]
            shown.append([round(float(each)) for each in spread])
    if kind == "pair":
        shown = [[frame - 1, frame] for frame in range(1, t)] + [[frame, frame - 1] for frame in range(1, t)]
    first = {camera: pictures[0] for camera, pictures in episode.frames.items()}
    requests: list[ScoreRequest] = []
    for places in shown:
        frame, now = max(places), episode.state[places[-1]]
        frames = {camera: pictures[places] for camera, pictures in episode.frames.items()}
        truth = float(goal.progress[frame]) if goal.true else None
        before = episode.state[places[-2]] if kind == "pair" else None
        requests.append(ScoreRequest(number, frame, kind, goal.instruction, frames, first, now, truth, before))
    return requests
