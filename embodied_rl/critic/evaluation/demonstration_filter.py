"""Filter demonstrations by the progress that a scorer returns (rules: `filter_rules`).

`FilterReport` lists each episode that was dropped, entirely or in part, with its figures.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.critic.evaluation.filter_rules import FilterVerdict, ProgressCurve, judge_curve, measure_falls
from embodied_rl.critic.evaluation.validation import check_built_scorer
from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.critic.sequence_scoring import build_scorer, choose_kind, judge_episodes, make_limits
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScorerTraits
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.judge.reward.run_scoring import name_model
from embodied_rl.schema import FilterNode, RewardNode

PICTURES = 512 * 2**20
"""Approximate number of bytes of images that are scored together."""


@dataclass(frozen=True, eq=False)
class DemonstrationFrames:
    """The frames of a demonstration that are scored; t frames.

    Attributes:
        name: of the episode in the report.
        task: its group in the report.
        instruction: text of the task.
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
    """A demonstration with its scores.

    Attributes:
        episode: the scored frames.
        curve: its progress.
        verdict: violated rules.
        missing: requests without a valid score.
    """

    episode: DemonstrationFrames
    curve: ProgressCurve
    verdict: FilterVerdict
    missing: int


class DemonstrationFilter:
    """Scores demonstrations and applies the rules.

    Args:
        reward: names the scorer; mode "audit" drops nothing.
        rules: thresholds.
        spec: of the simulator; demonstrations have its cameras and state.

    Attributes:
        rules: thresholds.
        identity: of the scorer.
        applies: whether episodes are dropped, and not only reported.
        notice: a warning about a scorer without evaluation, if any.

    Raises:
        UserError: the scorer does not fit the simulator, cannot score progress from images, or did not pass its
            evaluation.
    """

    def __init__(self, reward: RewardNode, rules: FilterNode, spec: SimulatorSpec) -> None:
        scorer = build_scorer(reward, spec)
        check_traits(scorer.traits)
        self.notice = check_built_scorer(scorer, reward)
        self.rules, self.identity, self.applies = rules, scorer.traits.identity, reward.mode != "audit"
        self._reward, self._spec = reward, spec

    def score(self, episodes: Iterable[DemonstrationFrames], chunk: int, whole: bool) -> Iterator[JudgedDemonstration]:
        """Yield episodes with their verdicts, in their order.

        Args:
            episodes: demonstrations; several are held in memory at once.
            chunk: control steps within which a fall of progress counts.
            whole: whether such a fall drops the whole episode instead of its rows.

        Raises:
            UserError: the scorer gave no valid score at all for some of them.
        """
        for group in group_episodes(episodes):
            limits = make_limits(self._reward)
            judged = judge_episodes(
                build_scorer(self._reward, self._spec), list(map(_without_ground_truth, group)), limits, 0
            )
            for episode, said in zip(group, judged, strict=True):
                curve = ProgressCurve(episode.steps, said.values, said.gains)
                missing = sum(reason != "ok" for reason in said.reasons)
                yield JudgedDemonstration(episode, curve, judge_curve(curve, self.rules, chunk, whole), missing)

    def find_kept_rows(self, scored: JudgedDemonstration, steps: Array, chunk: int) -> Array:
        """Return which rows of an episode are kept, bool [m]; rows before a large fall of progress are dropped.

        Args:
            scored: the episode.
            steps: int64 [m], control steps of the rows.
            chunk: control steps of a chunk.
        """
        if scored.verdict.faults:
            return np.zeros(len(steps), bool)
        if self.rules.drop is None:
            return np.ones(len(steps), bool)
        return measure_falls(scored.curve, steps, chunk) <= self.rules.drop


def choose_filter(
    reward: RewardNode, rules: FilterNode, spec: SimulatorSpec, say: Callable[[str], None] = lambda line: None
) -> DemonstrationFilter | None:
    """Return the filter of a configuration, or None if there is none.

    Args:
        reward: the scorer.
        rules: the thresholds.
        spec: of the simulator.
        say: called with a warning about a scorer without evaluation.

    Raises:
        UserError: a scorer without a threshold, or vice versa; a key or mode without effect; or see
            `DemonstrationFilter`.
    """
    if reward.name is None and not rules.rules:
        check_unused_keys(reward, rules)
        return None
    if reward.name is None:
        key = next(iter(rules.rules))
        raise UserError(
            f"filter.{key} needs a scorer: reward=embedded, or see `embodied-rl list rewards`.",
            code="scorer-missing",
        )
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
        say(chosen.notice)
    return chosen


def check_unused_keys(reward: RewardNode, rules: FilterNode) -> None:
    """Check that no key without effect was given.

    Raises:
        UserError: one was given.
    """
    if reward.options:
        key = next(iter(reward.options))
        raise UserError(
            f"reward.{key} has no meaning without a scorer: choose one with reward=<name>.", code="key-unused"
        )
    if rules != FilterNode():
        raise UserError(
            f"filter.every={rules.every} has no meaning without a rule, such as filter.voc=0.9.", code="key-unused"
        )


def check_traits(traits: ScorerTraits) -> None:
    """Check that a scorer can score progress of recorded images.

    Raises:
        UserError: it cannot.
    """
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


def choose_frames(steps: Array, every: int) -> Array:
    """Return the indices of frames at least `every` steps apart, with the first and the last, int64 [t].

    Args:
        steps: int64 [m], recorded control steps, increasing; at least one.
        every: control steps.
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


def _without_ground_truth(shown: DemonstrationFrames) -> JudgedEpisode:
    """Return an episode for scoring, without ground truth."""
    count = len(shown.steps)
    goal = JudgedGoal(shown.instruction, "own", np.zeros(count, np.float32), np.zeros(count, bool), true=False)
    return JudgedEpisode(shown.frames, shown.state, (goal,), success=True, actor="demonstration", family=shown.task)
