"""Given episodes are run once each, with all events passed to observers."""

from collections.abc import Sequence

import numpy as np
import pytest

from embodied_rl.deployment.execution.executor import Hold
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, StepResult
from embodied_rl.rollout.delay import Delay
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode, split_into_batches
from embodied_rl.runtime.processes.handle import WorkerDied
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor

HORIZON, EXECUTED = 30, 4


def episodes(count: int) -> list[Episode]:
    return [Episode(10 + i, i % 2, 50 + i) for i in range(count)]


class Diary(Observer):
    """The events of each episode: states before each step, executed actions, and numbers of starts and ends."""

    def __init__(self) -> None:
        self.states: dict[int, list[Array]] = {}
        self.actions: dict[int, list[Array]] = {}
        self.begun: list[int] = []
        self.ended: list[int] = []

    def on_start(self, started: Sequence[RunningEpisode], observation: Observation) -> None:
        for each in started:
            index = each.episode.index
            self.begun.append(index)
            self.states[index], self.actions[index] = [], []
            np.testing.assert_array_equal(observation.state[each.row], FakeSimulator(1).reset([each.episode]).state[0])

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        for each in running:
            assert each.episode.index not in self.ended
            self.states[each.episode.index].append(before.state[each.row].copy())
            self.actions[each.episode.index] += list(result.executed[each.row, : result.steps[each.row]])

    def on_end(self, ended: Sequence[RunningEpisode]) -> None:
        for each in ended:
            assert each.steps == len(self.actions[each.episode.index])
            self.ended.append(each.episode.index)


def handle(envs: int = 3, **settings) -> InlineHandle:
    return InlineHandle(lambda: FakeSimulator(envs, FakeSimulator.Config(horizon=HORIZON, **settings)))


def run(listed: list[Episode], handles: list[InlineHandle], envs: int = 3, **options) -> Diary:
    diary, spec = Diary(), handles[0].spec
    actor = RowwiseFakeActor(spec, EXECUTED, seed=5)
    actor.weight.data *= 20  # so that some episodes reach their goal before the time limit
    EpisodeRunner(actor, spec, 7, **options).run(handles, envs, listed, diary)
    return diary


def actions(diary: Diary) -> dict[int, Array]:
    return {index: np.stack(taken) for index, taken in diary.actions.items()}


@pytest.mark.parametrize("stepwise", [False, True])
def test_observers_get_each_episode_once(stepwise: bool) -> None:
    diary = run(episodes(8), [handle(), handle()], stepwise=stepwise)
    assert sorted(diary.begun) == sorted(diary.ended) == list(range(10, 18))
    assert len({len(taken) for taken in diary.actions.values()}) > 1, "episodes of one length would prove little"


def test_a_control_step_at_a_time_executes_the_same_chunks() -> None:
    """Episodes that begin in the middle of the others' chunks get chunks of their own."""
    whole, stepwise = (run(episodes(8), [handle()], stepwise=each) for each in (False, True))
    for index, taken in actions(whole).items():
        np.testing.assert_array_equal(actions(stepwise)[index], taken)
        assert len(stepwise.states[index]) == len(taken)
        np.testing.assert_array_equal(stepwise.states[index][::EXECUTED], whole.states[index])


def test_only_the_first_actions_of_a_chunk_are_executed() -> None:
    diary = run(episodes(3), [handle()], executed=1)
    assert all(len(diary.states[index]) == len(taken) for index, taken in diary.actions.items())


def test_an_episode_is_cut_after_the_longest() -> None:
    diary = run(episodes(3), [handle()], stepwise=True, longest=2)
    assert diary.begun == diary.ended == [10, 11, 12]
    assert {len(taken) for taken in diary.actions.values()} == {2}


def test_a_cut_environment_runs_no_second_episode() -> None:
    with pytest.raises(AssertionError, match="no second episode"):
        run(episodes(4), [handle()], longest=2)


def test_observers_hear_again_of_episodes_that_a_dead_worker_loses() -> None:
    mortal = handle()
    sound, calls = mortal.submit, iter(range(1000))

    def submit(method: str, *args):
        if next(calls) == 2:
            raise WorkerDied("killed by hand")
        return sound(method, *args)

    mortal.submit = submit
    diary, alone = run(episodes(5), [mortal]), run(episodes(5), [handle()])
    assert diary.begun[:6] == [10, 11, 12] * 2 and sorted(diary.ended) == list(range(10, 15))
    for index, taken in actions(alone).items():
        np.testing.assert_array_equal(actions(diary)[index], taken)


def test_batches_hold_every_episode_in_order() -> None:
    assert [len(batch) for batch in split_into_batches(episodes(7), 3)] == [3, 3, 1]
    assert [each for batch in split_into_batches(episodes(7), 3) for each in batch] == episodes(7)


class Remembering:
    """A fake actor that reads three observations: it keeps the earlier states that it was given."""

    observations = 3

    def __init__(self, spec: SimulatorSpec) -> None:
        self.actor, self.given = RowwiseFakeActor(spec, EXECUTED, seed=5), dict[tuple[int, int], list[Array]]()
        self.actor.weight.data *= 20

    def infer(self, observation: Observation, keys: NoiseKeys, earlier: Sequence[Observation] = ()) -> Array:
        for row, key in enumerate(zip(keys.episode.tolist(), keys.decision.tolist(), strict=True)):
            self.given[key] = [each.state[row] for each in earlier]
        return self.actor.infer(observation, keys)


@pytest.mark.parametrize(("stepwise", "batch"), [(False, None), (False, 4), (True, None)])
def test_a_policy_gets_the_observations_of_the_last_control_steps(stepwise: bool, batch: int | None) -> None:
    """Of its own episode alone, and the first one in place of those before it; its chunks are executed as usual."""
    plain, seen, made = run(episodes(8), [handle()], stepwise=True), Diary(), handle()
    policy = Remembering(made.spec)
    EpisodeRunner(policy, made.spec, 7, stepwise=stepwise, batch=batch).run([made], 3, episodes(8), seen)
    assert len({len(taken) for taken in seen.actions.values()}) > 1, "episodes of one length would prove little"
    for index, taken in actions(plain).items():
        np.testing.assert_array_equal(actions(seen)[index], taken)
        states = plain.states[index]
        for decision, step in enumerate(range(0, len(taken), EXECUTED)):
            expected = [states[max(step - back, 0)] for back in (2, 1)]
            np.testing.assert_array_equal(policy.given[index, decision], expected)
    assert stepwise or len(seen.states[10]) < len(plain.states[10])


def test_a_policy_that_reads_several_observations_takes_no_delay() -> None:
    spec = handle().spec
    with pytest.raises(ValueError, match="reads the observations of 3 control steps"):
        EpisodeRunner(
            Remembering(spec),
            spec,
            7,
            delay=Delay(1, "naive", 2, EXECUTED, Hold(np.zeros(2, np.float32), np.zeros(2, bool))),
        )
