"""Demonstrations are shown to a scorer, and left out where its progress speaks against them (`filter_rules`).

Nothing is left out silently: `FilterAccount` has each episode that was left out, wholly or in part, with its figures.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from embodied_rl.critic.evaluation import build_scorer, choose_kind, judge_episodes, make_limits
from embodied_rl.critic.examination.examined import check_built_scorer
from embodied_rl.critic.examination.filter_rules import FilterVerdict, ProgressCurve, judge_curve, measure_falls
from embodied_rl.critic.judged_episode import JudgedEpisode, JudgedGoal
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScorerTraits
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.judge.reward.run_scoring import name_model
from embodied_rl.schema import FilterNode, RewardNode

PICTURES = 512 * 2**20
"""Bytes of pictures that are judged together, about."""


@dataclass(frozen=True, eq=False)
class ShownEpisode:
    """A demonstration as a scorer sees it; t judged frames of its control steps.

    Attributes:
        name: by which it is called in the account.
        task: by which it is counted.
        instruction: the task in words.
        steps: int64 [t], control steps of the frames, rising.
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
class Sifted:
    """A judged demonstration.

    Attributes:
        episode: what was shown.
        curve: what the scorer said.
        verdict: what speaks against it.
        missing: requests without a valid score.
    """

    episode: ShownEpisode
    curve: ProgressCurve
    verdict: FilterVerdict
    missing: int


class DemonstrationFilter:
    """Judges demonstrations by a scorer.

    Args:
        reward: names the scorer; mode "audit" leaves out nothing.
        rules: thresholds.
        spec: of the simulator, whose cameras and state demonstrations have.

    Attributes:
        rules: thresholds.
        identity: of the scorer.
        applies: whether anything is left out, and not only told.
        notice: a line for the user about a scorer that nobody examined, if so.

    Raises:
        UserError: the scorer does not fit the simulator, cannot judge progress from pictures, or did not pass its
            examination.
    """

    def __init__(self, reward: RewardNode, rules: FilterNode, spec: SimulatorSpec) -> None:
        scorer = build_scorer(reward, spec)
        check_traits(scorer.traits)
        self.notice = check_built_scorer(scorer, reward)
        self.rules, self.identity, self.applies = rules, scorer.traits.identity, reward.mode != "audit"
        self._reward, self._spec = reward, spec

    def sift(self, episodes: Iterable[ShownEpisode], chunk: int, whole: bool) -> Iterator[Sifted]:
        """Yield episodes with their verdicts, in their order.

        Args:
            episodes: some of them are held in memory at once.
            chunk: control steps within which a fall of progress counts.
            whole: whether such a fall leaves out the whole episode, and not its rows alone.

        Raises:
            UserError: the scorer gave no valid score at all for some of them.
        """
        for group in group_episodes(episodes):
            limits = make_limits(self._reward)
            judged = judge_episodes(build_scorer(self._reward, self._spec), list(map(_hide_truth, group)), limits, 0)
            for episode, said in zip(group, judged, strict=True):
                curve = ProgressCurve(episode.steps, said.values, said.gains)
                missing = sum(reason != "ok" for reason in said.reasons)
                yield Sifted(episode, curve, judge_curve(curve, self.rules, chunk, whole), missing)

    def find_kept_rows(self, sifted: Sifted, steps: Array, chunk: int) -> Array:
        """Return which rows of an episode are kept, bool [m]: those whose chunk lets progress fall too far are not.

        Args:
            sifted: the episode.
            steps: int64 [m], control steps of the rows.
            chunk: control steps of a chunk.
        """
        if sifted.verdict.faults:
            return np.zeros(len(steps), bool)
        if self.rules.drop is None:
            return np.ones(len(steps), bool)
        return measure_falls(sifted.curve, steps, chunk) <= self.rules.drop


def choose_filter(
    reward: RewardNode, rules: FilterNode, spec: SimulatorSpec, say: Callable[[str], None] = lambda line: None
) -> DemonstrationFilter | None:
    """Return the filter of a configuration, or None where none is wanted.

    Args:
        reward: the scorer.
        rules: the thresholds.
        spec: of the simulator.
        say: called with a line about a scorer that nobody examined.

    Raises:
        UserError: a scorer without a threshold, or the other way round; a key or mode that means nothing; or see
            `DemonstrationFilter`.
    """
    if reward.name is None and not rules.rules:
        check_nothing_unread(reward, rules)
        return None
    if reward.name is None:
        key = next(iter(rules.rules))
        raise UserError(f"filter.{key} needs somebody who judges: reward=embedded, or `embodied-rl list rewards`.")
    if not rules.rules:
        raise UserError(
            f"reward={reward.name} judges demonstrations by the rules of filter=…, and none is set: such as "
            "filter.voc=0.9 filter.end=0.5 filter.drop=0.2."
        )
    if reward.mode not in ("late", "audit"):
        raise UserError(f"reward.mode={reward.mode} means nothing for demonstrations; audit only says what would go.")
    chosen = DemonstrationFilter(name_model(reward, spec), rules, spec)
    if chosen.notice:
        say(chosen.notice)
    return chosen


def check_nothing_unread(reward: RewardNode, rules: FilterNode) -> None:
    """Check that no key was given that means nothing without a filter.

    Raises:
        UserError: one was.
    """
    if reward.options:
        key = next(iter(reward.options))
        raise UserError(f"reward.{key} has no meaning without a scorer: choose one with reward=<name>.")
    if rules != FilterNode():
        raise UserError(f"filter.every={rules.every} has no meaning without a rule, such as filter.voc=0.9.")


def check_traits(traits: ScorerTraits) -> None:
    """Check that a scorer can judge the progress of recorded pictures.

    Raises:
        UserError: it cannot.
    """
    if traits.needs_progress:
        raise UserError(f"the scorer ({traits.identity}) repeats the simulator's truth, which recordings do not hold.")
    if choose_kind(traits) == "done":
        raise UserError(f"the scorer ({traits.identity}) only says what is done; a filter needs progress.")


def choose_frames(steps: Array, every: int) -> Array:
    """Choose frames at least so many control steps apart, with the first and the last; return their places, int64 [t].

    Args:
        steps: int64 [m], control steps that were recorded, rising; at least one.
        every: control steps.
    """
    chosen = [0]
    for place in range(1, len(steps)):
        if steps[place] - steps[chosen[-1]] >= every:
            chosen.append(place)
    return np.unique([*chosen, len(steps) - 1])


def group_episodes(episodes: Iterable[ShownEpisode], most: int = PICTURES) -> Iterator[Sequence[ShownEpisode]]:
    """Yield groups of consecutive episodes with about so many bytes of pictures."""
    group: list[ShownEpisode] = []
    size = 0
    for episode in episodes:
        group.append(episode)
        size += sum(pictures.nbytes for pictures in episode.frames.values())
        if size >= most:
            yield group
            group, size = [], 0
    if group:
        yield group


def _hide_truth(shown: ShownEpisode) -> JudgedEpisode:
    """Return an episode to ask a scorer about; nobody knows its truth."""
    count = len(shown.steps)
    goal = JudgedGoal(shown.instruction, "own", np.zeros(count, np.float32), np.zeros(count, bool), true=False)
    return JudgedEpisode(shown.frames, shown.state, (goal,), success=True, actor="demonstration", family=shown.task)
