"""Filter demonstrations by the progress that a scorer returns.

VLAC (arXiv:2509.15937) drops trajectories with a low rank correlation of progress and time (VOC, Spearman) or many
negative changes; GR-RL (arXiv:2512.01801) drops chunks over which progress falls. The progress at the end is our
addition: a demonstration that stops halfway has a high VOC.

Shapes: t judged frames of an episode, m rows.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.critic.evaluation.validation import check_built_scorer
from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.critic.measures import LEAST_FRAMES, correlate_ranks
from embodied_rl.critic.sequence_scoring import build_scorer, choose_kind, judge_episodes, make_limits
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.judge.reward.run_scoring import name_model
from embodied_rl.schema import FilterNode, RewardNode

PICTURES = 512 * 2**20
"""Approximate number of bytes of images that are scored together."""
LOSS = 0.01
"""Smallest fall of progress that counts as a loss: VLAC's changes are whole percents."""
DIGITS = 4
"""Decimal places of figures, so that rounding errors do not decide at a threshold."""


@dataclass(frozen=True, eq=False)
class ProgressCurve:
    """Progress of an episode by a scorer; NaN where a score is missing.

    Attributes:
        steps: int64 [t], control steps of the scored frames, increasing.
        progress: float64 [t] in 0…1.
        gains: float64 [t - 1] in -1…1, changes from frame to frame by a pairwise scorer; else empty.
    """

    steps: Array
    progress: Array
    gains: Array


@dataclass(frozen=True)
class FilterVerdict:
    """Figures by rule, empty if fewer than three frames have a score, and the rules that drop the whole episode."""

    figures: Mapping[str, float]
    faults: tuple[str, ...]


def judge_curve(curve: ProgressCurve, rules: FilterNode, chunk: int, whole: bool) -> FilterVerdict:
    """Compare a curve with the rules; a fall counts within `chunk` control steps.

    With `whole`, a fall drops the whole episode instead of its rows.
    """
    figures = measure_curve(curve, chunk)
    wrong = {
        "voc": lambda value, least: value < least,
        "losses": lambda value, most: value > most,
        "end": lambda value, least: value < least,
        "drop": lambda value, most: whole and value > most,
    }
    faults = [name for name, threshold in rules.rules.items() if figures and wrong[name](figures[name], threshold)]
    return FilterVerdict(figures, tuple(faults))


def measure_curve(curve: ProgressCurve, chunk: int) -> dict[str, float]:
    """Return the figure of each rule; empty for fewer than three known frames."""
    known = np.isfinite(curve.progress)
    progress, steps = curve.progress[known], curve.steps[known]
    if len(progress) < LEAST_FRAMES:
        return {}
    gains = curve.gains[np.isfinite(curve.gains)] if len(curve.gains) else np.diff(progress)
    order = correlate_ranks(progress, steps) if np.ptp(progress) > 0 else 0.0  # constant scores have no order
    figures = {
        "voc": order,
        "losses": float(np.mean(gains <= -LOSS)) if len(gains) else 0.0,
        "end": float(progress[-1]),
        "drop": float(measure_falls(curve, steps, chunk).max()),
    }
    return {name: round(value, DIGITS) for name, value in figures.items()}


def measure_falls(curve: ProgressCurve, steps: Array, chunk: int) -> Array:
    """Return the fall of progress within a chunk from each step on, float64 [m]; negative where it rises.

    Progress is interpolated linearly between scored frames and constant after the last one. Zero if fewer than two
    frames are known. `steps` are int64 [m].
    """
    known = np.isfinite(curve.progress)
    if known.sum() < 2:
        return np.zeros(len(steps))
    now, then = (np.interp(at, curve.steps[known], curve.progress[known]) for at in (steps, steps + chunk))
    return now - then


@dataclass(frozen=True, eq=False)
class DemonstrationFrames:
    """The t frames of a demonstration that are scored, with its name and group in the report.

    Attributes:
        steps: int64 [t], control steps of the frames, increasing.
        frames: camera → uint8 [t, h, w, 3].
        state: float32 [t, S].
    """

    name: str
    task: str
    instruction: str
    steps: Array
    frames: Mapping[str, Array]
    state: Array


@dataclass(frozen=True, eq=False)
class JudgedDemonstration:
    """A demonstration with its scores."""

    episode: DemonstrationFrames
    curve: ProgressCurve
    verdict: FilterVerdict
    missing: int


class DemonstrationFilter:
    """Scores demonstrations, which have the cameras and state of `spec`, and applies the rules.

    Attributes:
        applies: whether episodes are dropped, and not only reported.
        notice: a warning about a scorer without evaluation, if any.

    Raises:
        UserError: the scorer does not fit the simulator, cannot score progress from images, or did not pass its
            evaluation.
    """

    def __init__(self, reward: RewardNode, rules: FilterNode, spec: SimulatorSpec) -> None:
        scorer = build_scorer(reward, spec)
        traits = scorer.traits
        if traits.needs_progress:
            raise UserError(
                f"the scorer ({traits.identity}) needs the simulator's ground truth, which recordings do not contain.",
                code="scorer-needs-ground-truth",
            )
        if choose_kind(traits) == "done":
            raise UserError(
                f"the scorer ({traits.identity}) only returns whether a task is done; a filter needs progress.",
                code="scorer-without-progress",
            )
        self.notice = check_built_scorer(scorer, reward)
        self.rules, self.identity, self.applies = rules, traits.identity, reward.mode != "audit"
        self._reward, self._spec = reward, spec

    def score(self, episodes: Iterable[DemonstrationFrames], chunk: int, whole: bool) -> Iterator[JudgedDemonstration]:
        """Yield episodes with their verdicts, in their order; see `judge_curve`. Several are held in memory at once.

        Raises:
            UserError: the scorer gave no valid score at all for some of them.
        """
        for group in group_episodes(episodes):
            shown: list[JudgedEpisode] = []
            for each in group:  # without ground truth
                nothing = np.zeros(len(each.steps), np.float32)
                goal = JudgedGoal(each.instruction, "own", nothing, nothing > 0, true=False)
                shown.append(JudgedEpisode(each.frames, each.state, (goal,), True, "demonstration", each.task))
            scorer = build_scorer(self._reward, self._spec)
            judged = judge_episodes(scorer, shown, make_limits(self._reward), 0)
            for episode, scored in zip(group, judged, strict=True):
                curve = ProgressCurve(episode.steps, scored.values, scored.gains)
                missing = sum(reason != "ok" for reason in scored.reasons)
                yield JudgedDemonstration(episode, curve, judge_curve(curve, self.rules, chunk, whole), missing)

    def find_kept_rows(self, scored: JudgedDemonstration, steps: Array, chunk: int) -> Array:
        """Return which rows of an episode are kept, bool [m]; rows before a large fall of progress are dropped.

        `steps` are the control steps of the rows, int64 [m].
        """
        if scored.verdict.faults:
            return np.zeros(len(steps), bool)
        if self.rules.drop is None:
            return np.ones(len(steps), bool)
        return measure_falls(scored.curve, steps, chunk) <= self.rules.drop


def choose_filter(
    reward: RewardNode, rules: FilterNode, spec: SimulatorSpec, warn: Callable[[str], None] = lambda line: None
) -> DemonstrationFilter | None:
    """Return the filter of a configuration, or None if there is none.

    Raises:
        UserError: a scorer without a threshold, or vice versa; a key or mode without effect; or see
            `DemonstrationFilter`.
    """
    if reward.name is None:
        if rules.rules:
            key = next(iter(rules.rules))
            raise UserError(
                f"filter.{key} needs a scorer: reward=embedded, or see `embodied-rl list rewards`.",
                code="scorer-missing",
            )
        if reward.options:
            key = next(iter(reward.options))
            raise UserError(
                f"reward.{key} has no meaning without a scorer: choose one with reward=<name>.", code="key-unused"
            )
        if rules != FilterNode():
            raise UserError(
                f"filter.every={rules.every} has no meaning without a rule, such as filter.voc=0.9.", code="key-unused"
            )
        return None
    if not rules.rules:
        raise UserError(
            f"reward={reward.name} needs a rule to filter demonstrations, such as filter.voc=0.9 filter.end=0.5 "
            "filter.drop=0.2.",
            code="filter-without-rules",
        )
    if reward.mode not in ("late", "audit"):
        raise UserError(
            f"reward.mode={reward.mode} has no effect on demonstrations; audit only reports what would be dropped.",
            code="reward-mode-invalid",
        )
    chosen = DemonstrationFilter(name_model(reward, spec), rules, spec)
    if chosen.notice:
        warn(chosen.notice)
    return chosen


def choose_frames(steps: Array, every: int) -> Array:
    """Return the indices of frames at least `every` steps apart, with the first and the last, int64 [t].

    `steps` are the recorded control steps, int64 [m], increasing; at least one.
    """
    chosen = [0]
    for place in range(1, len(steps)):
        if steps[place] - steps[chosen[-1]] >= every:
            chosen.append(place)
    return np.unique([*chosen, len(steps) - 1])


def group_episodes(
    episodes: Iterable[DemonstrationFrames], most: int = PICTURES
) -> Iterator[Sequence[DemonstrationFrames]]:
    """Yield groups of consecutive episodes with about `most` bytes of images."""
    group: list[DemonstrationFrames] = []
    size = 0
    for episode in episodes:
        group.append(episode)
        size += sum(pictures.nbytes for pictures in episode.frames.values())
        if size >= most:
            yield group
            group, size = [], 0
    if group:
        yield group
