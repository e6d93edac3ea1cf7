"""The bridge in lockstep, in one process: actions and outcomes equal the simulator's, bit for bit in each run."""

from collections.abc import Sequence

import numpy as np
import pytest

from embodied_rl.evaluate.protocol import enumerate_episodes
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.sim import Array, Episode, Observation, StepResult
from embodied_rl.rollout.episode_sampler import derive_noise_seed
from embodied_rl.rollout.runner import EpisodeRunner, Observer, RunningEpisode
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.bridging import LockstepBench, load_local

SPEC = Tabletop.spec_of(TabletopConfig())
SEED = derive_noise_seed("report", 0)
EPISODES = [each for each in enumerate_episodes(SPEC, "eval", 5) if each.index != 2]  # which takes 50 steps


class RecordingObserver(Observer):
    """Records the executed actions and the ends of episodes."""

    def __init__(self) -> None:
        self.actions: dict[int, list[Array]] = {}
        self.ends: dict[int, tuple[bool, float]] = {}

    def on_step(self, running: Sequence[RunningEpisode], before: Observation, result: StepResult) -> None:
        for each in running:
            row, count = each.row, int(result.steps[each.row])
            self.actions.setdefault(each.episode.index, []).append(result.executed[row, :count].copy())
            self.ends[each.episode.index] = bool(result.success[row, :count].any()), float(result.reward[row].sum())


@pytest.fixture(scope="module")
def simulated() -> RecordingObserver:
    noted = RecordingObserver()
    handle = InlineHandle(lambda: Tabletop(TabletopConfig(), 1))
    EpisodeRunner(load_local().loaded.actor, SPEC, SEED).run([handle], 1, EPISODES, noted)
    return noted


@pytest.mark.thorough
def test_actions_and_outcomes_equal_the_simulator_s(simulated: RecordingObserver) -> None:
    for each in LockstepBench(load_local(), SEED).run(EPISODES):
        expected = np.concatenate(simulated.actions[each.episode.index])
        np.testing.assert_allclose(each.executed, expected, atol=1e-6, rtol=0)
        assert (each.outcome["success"], each.outcome["reward"]) == simulated.ends[each.episode.index]
        assert each.outcome["steps"] == len(expected)
        assert each.count_sources() == {"policy": len(expected)}


@pytest.mark.thorough
def test_a_run_is_reproducible_bit_for_bit() -> None:
    first, second = (LockstepBench(load_local(), SEED) for _ in range(2))
    done, again = first.run(EPISODES[:2]), second.run(EPISODES[:2])
    assert [each.steps for each in done] == [each.steps for each in again]
    assert np.array(first.commands).tobytes() == np.array(second.commands).tobytes()


@pytest.mark.thorough
def test_an_episode_does_not_depend_on_the_one_before_it() -> None:
    alone = LockstepBench(load_local(), SEED).run(EPISODES[1:2])
    after = LockstepBench(load_local(), SEED).run(EPISODES[:2])[1:]
    np.testing.assert_array_equal(alone[0].executed, after[0].executed)


@pytest.mark.thorough
def test_contents_of_published_steps() -> None:
    bench = LockstepBench(load_local(), SEED)
    (done,) = bench.run(EPISODES[:1])
    assert [each["step"] for each in done.steps] == list(range(len(done.steps)))
    assert {each["policy_version"] for each in done.steps} == {3}
    assert {each["instruction"] for each in done.steps} == {done.instruction}
    assert {"/joint_states", "/camera/front/image_raw"} <= set(done.steps[0]["observed"])
    np.testing.assert_allclose([each["command"] for each in done.steps], bench.commands[: len(done.steps)])


def test_nothing_is_commanded_between_episodes() -> None:
    bench = LockstepBench(load_local(), SEED)
    bench.run(EPISODES[:1])
    count = len(bench.commands)
    for _ in range(20):
        bench.turn()
        bench.robot.repeat()  # repeated messages are not new
        bench.node.spin_once()
    assert len(bench.commands) == count


def test_a_robot_that_does_not_answer_ends_the_run() -> None:
    bench = LockstepBench(load_local(), SEED, patience=0.05)
    bench.deafen()
    with pytest.raises(RunFailed, match="did not answer a command"):
        bench.run([Episode(0, 0, 1)])
