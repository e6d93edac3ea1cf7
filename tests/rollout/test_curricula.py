"""The weights of each method against their formulas, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.assembly import build
from embodied_rl.interfaces.curriculum import EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.rollout.curricula import (
    LearningProgress,
    LearningProgressConfig,
    SuccessRate,
    SuccessRateConfig,
    Weighted,
    WeightedConfig,
)
from embodied_rl.schema import CurriculumNode
from tests.support.refusals import refuses

TASKS = (Task("push0", "push"), Task("lift0", "lift"), Task("lift1", "lift"), Task("press", "press"))
SPEC = SimulatorSpec((), (), ("x",), (-1.0,), (1.0,), 10.0, 10, TASKS)


def finished(task: int, success: bool) -> EpisodeRecord:
    """An episode that ended; whether the goal held at the end is another matter."""
    return EpisodeRecord(0, task, 0, "train", success, False, 5, 0.0)


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, [1, 0.5, 0.5, 1]),
        ({"push": 3}, [3, 0.5, 0.5, 1]),
        ({"lift": 3}, [1, 1.5, 1.5, 1]),
        ({"lift1": 0.25}, [1, 0.5, 0.125, 1]),
        ({"lift": 2, "lift0": 3, "push": 0}, [0, 3, 1, 1]),
        ({"press": 3}, [1, 0.5, 0.5, 3]),  # a family of one task of the same name counts once
    ],
)
def test_a_weight_multiplies_the_uniform_one(weights: dict[str, float], expected: list[float]) -> None:
    assert Weighted(WeightedConfig(weights), SPEC).weights().tolist() == expected


@pytest.mark.parametrize(
    ("weights", "named"),
    [
        ({"lfit": 1}, "Did you mean 'lift'?"),
        ({"push_0": 1}, "Did you mean 'push0'?"),
        ({"push": -0.5}, "curriculum.weights.push"),
        ({"push": float("nan")}, "curriculum.weights.push"),
        ({"push": float("inf")}, "curriculum.weights.push"),
        ({"push": 0, "lift0": 0, "lift1": 0, "press": 0}, "curriculum.weights"),
    ],
)
def test_wrong_weights_are_refused(weights: dict[str, float], named: str) -> None:
    with refuses("curriculum-setting-invalid", named):
        Weighted(WeightedConfig(weights), SPEC)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=40),
    st.floats(0.01, 1.0),
    st.floats(0.001, 1.0),
)
def test_success_rate_is_floor_plus_variance(outcomes: list[tuple[int, bool]], rate: float, floor: float) -> None:
    """The running mean in closed form: (1 − rate)^n / 2 + rate · Σ (1 − rate)^(n − 1 − j) success_j of each task."""
    curriculum = SuccessRate(SuccessRateConfig(floor, rate), SPEC)
    half = len(outcomes) // 2
    for part in (outcomes[:half], outcomes[half:]):
        curriculum.update([finished(*outcome) for outcome in part])
    for task, uniform in enumerate((1, 0.5, 0.5, 1)):
        own = [success for drawn, success in outcomes if drawn == task]
        n = len(own)
        mean = 0.5 * (1 - rate) ** n + sum(rate * (1 - rate) ** (n - 1 - j) * own[j] for j in range(n))
        assert curriculum.weights()[task] == pytest.approx(uniform * (floor + mean * (1 - mean)), abs=1e-12)


@pytest.mark.parametrize("settings", [{"floor": 0.0}, {"floor": -1.0}, {"rate": 0.0}, {"rate": 1.1}])
def test_wrong_settings_of_success_rate_are_refused(settings: dict[str, float]) -> None:
    (name,) = settings
    with refuses("curriculum-setting-invalid", f"curriculum.{name}"):
        SuccessRate(SuccessRateConfig(**settings), SPEC)


def test_learning_progress_by_hand() -> None:
    """Of push0 1, 0, 0, 1 and of lift0 0, 1 at rate 1/2; lift1 and press are never drawn.

    push0: fast 1, 1/2, 1/4, 5/8 and slow 1, 3/4, 1/2, 9/16, so 1/16. lift0: fast 0, 1/2 and slow 0, 1/4, so 1/4. The
    uniform weights 1, 1/2, 1/2, 1 make these 1/16 and 1/8 of 3/16 together: 1/3 and 2/3.
    """
    curriculum = LearningProgress(LearningProgressConfig(uniform_share=0.25, rate=0.5), SPEC)
    uniform = np.array([2, 1, 1, 2]) / 6
    assert curriculum.weights() == pytest.approx(uniform)
    curriculum.update([finished(0, True), finished(1, False)])
    assert curriculum.weights() == pytest.approx(uniform), "a first outcome is no progress"
    curriculum.update([finished(0, False), finished(1, True), finished(0, False), finished(0, True)])
    assert curriculum.weights() == pytest.approx(uniform / 4 + 0.75 * np.array([1 / 3, 2 / 3, 0, 0]))


def test_tasks_that_were_learned_long_ago_have_no_progress() -> None:
    """The remainders of the means, which only fade, do not share out the draws; a new failure does."""
    curriculum = LearningProgress(LearningProgressConfig(), SPEC)
    uniform = curriculum.weights()
    for number in range(1000):
        curriculum.update([finished(0, number > 3), finished(1, number > 40)])
    assert curriculum.weights() == pytest.approx(uniform)
    curriculum.update([finished(0, False)])
    assert curriculum.weights()[0] > 0.8


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.sampled_from([0.05, 0.1, 0.3]))
def test_its_running_means_are_plain_means_at_first(outcomes: list[bool], rate: float) -> None:
    """Fast: the mean of the first 1 / rate outcomes, then exponential; slow: the same of the fast means."""

    def running(values: list[float]) -> list[float]:
        whole = int(1 / rate + 1e-9)
        means = [float(np.mean(values[: n + 1])) for n in range(min(whole, len(values)))]
        for value in values[whole:]:
            means.append((1 - rate) * means[-1] + rate * value)
        return means

    curriculum = LearningProgress(LearningProgressConfig(rate=rate), SPEC)
    curriculum.update([finished(3, outcome) for outcome in outcomes])
    fast = running([float(outcome) for outcome in outcomes])
    state = curriculum.state()
    assert (state["fast"][3], state["slow"][3]) == pytest.approx((fast[-1], running(fast)[-1]), abs=1e-12)
    assert state["episodes"].tolist() == [0, 0, 0, len(outcomes)]


def test_learning_and_forgetting_are_drawn_more_often_than_what_is_certain_or_hopeless() -> None:
    """push0 is learned, press forgotten; lift0 always succeeds, lift1 never."""
    curriculum = LearningProgress(LearningProgressConfig(), SPEC)
    for late in (False, True):
        successes = {0: late, 1: True, 2: False, 3: not late}
        curriculum.update([finished(task, success) for task, success in successes.items() for _ in range(20)])
    share = curriculum.weights()
    assert share[[1, 2]] == pytest.approx(0.2 * np.array([1, 1]) / 6) and share[0] == pytest.approx(share[3])
    assert share.sum() == pytest.approx(1)


@pytest.mark.parametrize("kind", [SuccessRate, LearningProgress])
def test_a_curriculum_goes_on_from_its_state(kind: type[SuccessRate | LearningProgress]) -> None:
    records = [finished(task, task % 2 == 0) for task in (0, 1, 2, 3, 0, 0)]
    records += [finished(task, task % 2 == 1) for task in (0, 1, 2)]
    one, other = (kind(kind.Config(), SPEC) for _ in range(2))
    one.update(records)
    state, before = one.state(), one.weights().copy()
    one.update(records)
    assert not np.array_equal(one.weights(), before)
    other.load(state)
    assert np.array_equal(other.weights(), before)
    other.update(records)
    assert np.array_equal(one.weights(), other.weights())


@pytest.mark.parametrize("settings", [{"uniform_share": 0.0}, {"uniform_share": 1.1}, {"rate": 0.0}, {"rate": 1.0}])
def test_wrong_settings_of_learning_progress_are_refused(settings: dict[str, float]) -> None:
    (name,) = settings
    with refuses("curriculum-setting-invalid", f"curriculum.{name}"):
        LearningProgress(LearningProgressConfig(**settings), SPEC)


def test_an_unknown_curriculum_or_key_is_refused() -> None:
    assert isinstance(build.build_curriculum(CurriculumNode("weighted", {"weights": {"push": 2}}), SPEC), Weighted)
    for node, named in (
        (CurriculumNode("sucess_rate"), "Did you mean 'success_rate'?"),
        (CurriculumNode("success_rate", {"flor": 1}), "Did you mean 'curriculum.floor'?"),
    ):
        with pytest.raises(UserError) as caught:
            build.build_curriculum(node, SPEC)
        assert named in str(caught.value)
