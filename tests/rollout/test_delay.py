"""Episodes with an inference delay of d control steps: the executed action of each step, in closed form."""

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.execution.executor import Hold
from embodied_rl.deployment.execution.settings import STRATEGIES, Strategy
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult
from embodied_rl.rollout.ablation import AblatedPolicy
from embodied_rl.rollout.delay import Chunks, Delay, choose_delay, read_chunks
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode
from embodied_rl.runtime.processes.handle import WorkerDied
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor
from tests.support.refusals import refuses

LIMIT, PREDICTED = 17, 8
SPEC = FakeSimulator.spec_of(FakeSimulator.Config(horizon=LIMIT))
STILL = Hold(np.array([0, -1], np.float32), np.array([False, False]))


class Counting:
    """Entry i of decision j's chunk is [j, i] / 100, too small to reach a goal. Notes what it is shown."""

    def __init__(self, answer: Any = None) -> None:
        self.shown: list[tuple[Array | None, Array | None, str | None]] = []
        self.answer = answer

    def infer(
        self, observation: Observation, keys: NoiseKeys, prefix=None, committed=None, *, whole=False, strategy=None
    ) -> Array:
        assert whole
        self.shown.append((prefix, committed, strategy))
        entries = [[(j, i) for i in range(PREDICTED)] for j in keys.decision]
        return np.array(entries, np.float32) / 100 if self.answer is None else self.answer


class Diary(Observer):
    """The executed actions and the steps of each episode."""

    def __init__(self) -> None:
        self.actions: dict[int, list[Array]] = {}
        self.steps: dict[int, int] = {}
        self.joins: dict[int, list[bool]] = {}

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        for each in started:
            self.actions[each.episode.index], self.joins[each.episode.index] = [], []

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        for each in running:
            taken = int(result.steps[each.row])
            self.actions[each.episode.index] += list(result.executed[each.row, :taken])
            self.joins[each.episode.index] += [command.joins for command in each.commands[:taken]]

    def on_end(self, ended: Sequence[RunningEpisode]) -> None:
        self.steps |= {each.episode.index: each.steps for each in ended}


def handle(envs: int = 3) -> InlineHandle:
    return InlineHandle(lambda: FakeSimulator(envs, FakeSimulator.Config(horizon=LIMIT)))


def episodes(count: int) -> list[Episode]:
    return [Episode(10 + i, i % 2, 50 + i) for i in range(count)]


def make(d: int, strategy: Strategy, s: int | None = None) -> Delay:
    return Delay(d, strategy, s or max(d, 1), PREDICTED, STILL)


def run(delay: Delay, handles=None, envs: int = 3, count: int = 3, policy=None, **options) -> tuple[Diary, Any]:
    diary, policy = Diary(), policy or Counting()
    EpisodeRunner(policy, SPEC, 7, delay=delay, **options).run(handles or [handle()], envs, episodes(count), diary)
    return diary, policy


def expect(d: int, strategy: str, s: int) -> list[tuple[int, int] | None]:
    """(decision, entry) of each control step, None for standing still.

    Decision j is made at step j s and answered d steps later. Its entry 0 is for the robot as it stood then: since the
    beginning it has executed an action in each step but the first d.
    """
    if strategy == "stop":
        pairs = [divmod(t, d + s) for t in range(LIMIT)]
        return [None if rest < d else (j, rest - d) for j, rest in pairs]

    def executed(t: int) -> int:
        return max(0, t - d)

    found: list[tuple[int, int] | None] = [None] * d
    for t in range(d, LIMIT):
        j = (t - d) // s
        found.append((j, executed(t) - executed(j * s)))
    return found


@pytest.mark.parametrize("strategy", [each for each in STRATEGIES if each != "blend"])
@pytest.mark.parametrize(("d", "s"), [(0, 1), (0, 3), (1, 1), (1, 4), (2, 2), (2, 5), (3, 3), (4, 4)])
def test_the_executed_action_of_each_step(strategy: Strategy, d: int, s: int) -> None:
    diary, _ = run(make(d, strategy, s))
    expected = expect(d, strategy, s)
    for index, taken in diary.actions.items():
        wanted = [(0, -1) if each is None else (each[0] / 100, each[1] / 100) for each in expected]
        np.testing.assert_allclose(taken, wanted, atol=1e-7)
        assert diary.steps[index] == LIMIT, "waits count"
        firsts = {each: t for t, each in reversed(list(enumerate(expected))) if each is not None}
        begun = {min(t for each, t in firsts.items() if each[0] == j) for j, _ in firsts}
        assert [t for t, joins in enumerate(diary.joins[index]) if joins] == sorted(begun)


def test_blend_mixes_the_chunk_before_with_the_new_one() -> None:
    """d = 2, s = 4: at step 6 decision 1 arrives, whose entries 2, 3 meet entries 4, 5 of decision 0."""
    diary, _ = run(make(2, "blend", 4))
    taken, old, new = diary.actions[10], np.array([[0, 4], [0, 5]]) / 100, np.array([[1, 2], [1, 3]]) / 100
    np.testing.assert_allclose(taken[6:8], [0.75 * old[0] + 0.25 * new[0], 0.5 * old[1] + 0.5 * new[1]], atol=1e-7)
    np.testing.assert_allclose(taken[2:6], [[0, i / 100] for i in range(4)], atol=1e-7)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_prefix_that_the_policy_gets(strategy: Strategy) -> None:
    _, policy = run(make(2, strategy, 3), count=1, envs=1, handles=[handle(1)])
    first, *others = policy.shown
    if strategy in ("naive", "blend", "stop"):
        assert first == (None, None, None)
    else:
        np.testing.assert_array_equal(first[1], [0])
    for number, (prefix, committed, said) in enumerate(others, start=1):
        if strategy in ("naive", "blend", "stop"):
            assert prefix is None and committed is None and said is None
            continue
        made = number - 1  # of it, s - d = 1 action ran first, later s
        begin = 1 if made == 0 else 3
        shown = 2 if strategy == "prefix" else PREDICTED - 3
        assert said == strategy
        np.testing.assert_allclose(prefix, [[[made / 100, (begin + i) / 100] for i in range(shown)]], atol=1e-7)
        np.testing.assert_array_equal(committed, [2])


def test_rows_that_begin_and_rows_that_continue_are_inferred_together() -> None:
    """Episodes end at different times, so that their decisions differ; each row has its own committed actions."""
    policy = Counting()
    simulator = FakeSimulator(2, FakeSimulator.Config(horizon=LIMIT))
    one, two = (RunningEpisode(row, each) for row, each in enumerate(episodes(2)))
    runner = EpisodeRunner(policy, SPEC, 7, delay=make(2, "prefix"), batch=4)
    observation = simulator.reset([one.episode, two.episode])
    runner.decide(observation.select([0]), [one])
    runner.decide(observation, [one, two])
    prefix, committed, _ = policy.shown[-1]
    np.testing.assert_array_equal(committed, [2, 0, 2, 2])
    assert prefix is not None and prefix.shape == (4, 2, 2)
    np.testing.assert_allclose(prefix[0], [[0, 0], [0, 0.01]], atol=1e-7)
    assert one.pending is not None and two.pending is not None and len(one.pending) == len(two.pending) == 2


@pytest.mark.parametrize("strategy", ["naive", "stop", "blend"])
def test_results_depend_neither_on_the_number_of_simulators_nor_on_steps_at_a_time(strategy: Strategy) -> None:
    def play(handles, envs, **options) -> dict[int, Array]:
        actor = RowwiseFakeActor(SPEC, PREDICTED, seed=5)
        actor.weight.data *= 20  # so that some episodes reach their goal before the time limit
        delay = replace(make(2, strategy, 3), whole=False)
        diary, _ = run(delay, handles, envs, 8, actor, **options)
        return {index: np.stack(taken) for index, taken in diary.actions.items()}

    one = play([handle()], 3)
    ends_early = len({len(taken) for taken in one.values()}) > 1  # not with waits, in so short a time
    assert ends_early or strategy == "stop", "episodes of one length would prove little"
    for other in (play([handle(2), handle(2)], 2), play([handle(4)], 4, stepwise=True), play([handle()], 3, batch=8)):
        for index, taken in one.items():
            np.testing.assert_array_equal(other[index], taken)


def test_a_dead_worker_s_episodes_begin_again_with_waiting() -> None:
    mortal = handle()
    sound, calls = mortal.submit, iter(range(1000))

    def submit(method: str, *args: Any) -> Any:
        if next(calls) == 3:
            raise WorkerDied("killed by hand")
        return sound(method, *args)

    mortal.submit = submit
    lost, alone = run(make(2, "prefix"), [mortal], count=5)[0], run(make(2, "prefix"), count=5)[0]
    for index, taken in alone.actions.items():
        np.testing.assert_array_equal(lost.actions[index], taken)


def test_an_ablated_policy_is_shown_the_same_prefix() -> None:
    policy, plain = Counting(), Counting()
    run(make(2, "prefix"), policy=AblatedPolicy(policy, lambda observation, keys: observation))
    run(make(2, "prefix"), policy=plain)
    assert plain.shown[1][1] is not None
    for shown, wanted in zip(policy.shown, plain.shown, strict=True):
        np.testing.assert_equal(shown, wanted)


def test_a_chunk_that_is_refused_is_an_error() -> None:
    with refuses("chunk-refused", "short", 5, 8):
        run(make(1, "naive"), policy=Counting(np.zeros((3, 5, 2), np.float32)))
    with refuses("not-finite", "policy", "episode 10 (left"):
        run(make(1, "naive"), policy=Counting(np.full((3, 8, 2), np.nan, np.float32)))


CHUNKS = Chunks(PREDICTED, 5)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ((1, "auto", None, None, CHUNKS), (1, "naive", 1)),
        ((2, "auto", None, None, Chunks(PREDICTED, 5, 2)), (2, "prefix", 2)),
        ((3, "auto", None, None, Chunks(PREDICTED, 5, 2)), (3, "naive", 3)),
        ((2, "stop", None, None, CHUNKS), (2, "stop", 5)),
        ((2, "stop", 3, None, CHUNKS), (2, "stop", 3)),
        ((2, "blend", 4, None, CHUNKS), (2, "blend", 4)),
        ((0, "auto", 3, None, Chunks(PREDICTED, 5, 2)), (0, "naive", 3)),
    ],
)
def test_the_usual_strategy_and_period(given: tuple, found: tuple) -> None:
    delay = choose_delay(*given, spec=SPEC)
    assert delay is not None and delay.whole and (delay.steps, delay.strategy, delay.replan) == found
    assert delay.period == (delay.steps + delay.replan if delay.strategy == "stop" else delay.replan)
    assert f"takes {found[0]} control steps" in delay.describe() and f"strategy={found[1]}" in delay.describe()


def test_a_policy_that_gives_all_its_actions_is_not_asked_for_them() -> None:
    delay = choose_delay(1, "auto", None, None, Chunks(PREDICTED, PREDICTED), SPEC)
    assert delay is not None and not delay.whole


def test_without_a_delay_nothing_is_changed() -> None:
    assert choose_delay(0, "auto", None, None, CHUNKS, SPEC) is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((2, "prefix", None, None, CHUNKS), "algo.prefix=2"),
        ((3, "prefix", None, None, Chunks(8, 5, 2)), "up to 2 executed actions, and delay=3"),
        ((5, "naive", None, None, CHUNKS), "needs chunks of 10 actions"),
        ((1, "naive", None, (3.0, 0.0), CHUNKS), "hold=[3.0, 0.0]"),
    ],
)
def test_impossible_delays_are_refused(given: tuple, named: str) -> None:
    with pytest.raises(UserError, match=re.escape(named)):
        choose_delay(*given, spec=SPEC)


def test_chunk_sizes_are_read_from_a_policy() -> None:
    network, body = SimpleNamespace(spec=SimpleNamespace(horizon=6)), SimpleNamespace(executed=4)
    assert read_chunks(SimpleNamespace(network=network, embodiment=body)) == Chunks(6, 4, 0)
    assert read_chunks(SimpleNamespace(network=network, embodiment=body, prefix_trained_to=3)).prefix_trained_to == 3
    served = SimpleNamespace(spec=SimpleNamespace(horizon=9, executed=5, prefix_trained_to=4))
    assert read_chunks(served) == Chunks(9, 5, 4)
    with refuses("delay-unsupported"):
        read_chunks(Counting())
