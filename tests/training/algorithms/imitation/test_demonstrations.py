"""Recording of an operator: its chosen action of each control step, also under disturbances."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array, Episode, StepResult
from embodied_rl.testing.fakes import FakeSimulator
from embodied_rl.training.algorithms.imitation.demonstrations import Demonstrations, Disturbance, record_demonstrations

CALM = Disturbance(noise=0.0)
CONFIG = FakeSimulator.Config(horizon=12)


class Operated(FakeSimulator):
    """Its operator goes where the task says, slower by the hundredth on every call, and remembers what was executed.

    Faulty, it goes the other way.
    """

    def __init__(self, num_envs: int, config: FakeSimulator.Config = CONFIG):
        super().__init__(num_envs, config)
        self.executed: list[Array] = []

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        calls = 0

        def actions() -> Array:
            nonlocal calls
            calls += 1
            speed = (1 - 0.01 * calls) * (-1 if faulty else 1) * self._direction()
            return np.column_stack([speed, np.zeros(self.num_envs)]).astype(np.float32)

        return actions

    def step(self, actions: Array, next_episodes: list[Episode | None]) -> StepResult:
        self.executed.append(actions[:, 0].copy())
        return super().step(actions, next_episodes)


def episodes(count: int) -> list[Episode]:
    return [Episode(10 + i, i % 2, 40 + i) for i in range(count)]


def rows_of(recorded: Demonstrations, index: int) -> Array:
    return np.flatnonzero(recorded.episode == index)


def test_every_control_step_of_every_episode_is_there() -> None:
    recorded = record_demonstrations(Operated(2), episodes(5), chunk=3, disturbance=CALM, seed=0)
    assert set(recorded.episode) == {10, 11, 12, 13, 14}
    assert len(recorded) == len(recorded.observation) == len(recorded.success) == len(recorded.episode)
    assert recorded.success.all()
    for episode in episodes(5):
        rows = rows_of(recorded, episode.index)
        alone = Operated(1)
        state = [alone.reset([episode]).state[0]]
        operate = alone.expert()
        while not len((result := alone.step(operate()[:, None], [None])).ended):
            state.append(result.observation.state[0])
        np.testing.assert_array_equal(recorded.observation.state[rows], state)
        assert {recorded.observation.instruction[row] for row in rows} == {f"go {('left', 'right')[episode.task]}"}


def test_chunks_look_ahead_and_repeat_the_last_action() -> None:
    recorded = record_demonstrations(Operated(3), episodes(3), chunk=4, disturbance=CALM, seed=0)
    for index in (10, 11, 12):
        actions = recorded.actions[rows_of(recorded, index)]
        chosen = actions[:, 0]
        for step, chunk in enumerate(actions):
            ahead = np.minimum(step + np.arange(4), len(chosen) - 1)
            np.testing.assert_array_equal(chunk, chosen[ahead])
        assert len({float(x) for x, _ in chosen}) == len(chosen)


def test_the_operator_s_own_actions_are_recorded_not_the_disturbed_ones() -> None:
    simulator = Operated(64)
    recorded = record_demonstrations(simulator, episodes(64), chunk=1, disturbance=Disturbance(noise=0.2), seed=3)
    added = []
    for step, speed in enumerate((0.99, 0.98)):
        chosen = recorded.actions[64 * step :][:64, 0]
        np.testing.assert_allclose(np.abs(chosen[:, 0]), speed, atol=1e-6)
        added.append(simulator.executed[step] - chosen)
    first, second = added
    np.testing.assert_array_equal(first[:, 1], 0)
    assert np.std(first[:, 0]) == pytest.approx(0.2, rel=0.25)
    assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < 0.35


class Wide(Operated):
    """Three moves and a gripper; every episode runs to the horizon."""

    @staticmethod
    def spec_of(config):
        narrow = FakeSimulator.spec_of(config)
        names = ("x", "y", "z", "gripper")
        limits = {"action_low": (-2.0,) * 4, "action_high": (2.0,) * 4, "hold": (0.0,) * 4}
        return replace(narrow, action_names=names, **limits)

    def expert(self, faulty=False):
        return lambda: np.tile(np.array([0, 0, 0, 1], np.float32), (self.num_envs, 1))

    def _advance(self, running, velocity):
        self._steps += running


def test_drift_lasts_for_eight_steps_in_half_the_time() -> None:
    simulator = Wide(200, FakeSimulator.Config(horizon=16))
    record_demonstrations(
        simulator, episodes(200), chunk=1, disturbance=Disturbance(noise=0.0, drift=0.5, slip=0.25), seed=0
    )
    executed = np.stack(simulator.executed)  # [16, 200, 4]
    first, second = executed[:8, :, :3], executed[8:, :, :3]
    assert (first == first[0]).all() and (second == second[0]).all() and (first[0] != second[0]).any()
    drifting = first[0].any(axis=1)
    assert drifting.mean() == pytest.approx(0.5, abs=0.12)
    assert np.abs(first[0][drifting]).max() <= 1.0 and np.abs(first[0]).max() > 0.9
    assert set(np.unique(executed[..., 3])) == {-1.0, 1.0}
    assert (executed[..., 3] < 0).mean() == pytest.approx(0.25, abs=0.04)


def test_rows_whose_chunk_is_upset_can_be_left_out() -> None:
    simulator = Wide(20, FakeSimulator.Config(horizon=16))
    upset = Disturbance(noise=0.0, drift=0.5, drift_share=0.3, slip=0.1, keep=False)
    recorded = record_demonstrations(simulator, episodes(20), chunk=3, disturbance=upset, seed=0)
    as_chosen = (np.stack(simulator.executed) == [0, 0, 0, 1]).all(axis=-1)  # [16, 20]
    expected = [sum(column[step : step + 3].all() for step in range(16)) for column in as_chosen.T]
    assert 20 < sum(expected) < 250
    assert [len(rows_of(recorded, 10 + number)) for number in range(20)] == expected
    assert len(recorded.observation) == len(recorded.success) == sum(expected)


@pytest.mark.parametrize("prefix", [0, 1, 2, 3])
def test_rows_stay_whose_prefix_covers_every_upset(prefix: int) -> None:
    """They say how long it must be, and what was executed, the disturbances included."""
    simulator = Wide(20, FakeSimulator.Config(horizon=16))
    upset = Disturbance(noise=0.0, drift=0.5, drift_share=0.3, slip=0.1, keep=False)
    recorded = record_demonstrations(simulator, episodes(20), chunk=3, disturbance=upset, seed=0, prefix=prefix)
    executed = np.stack(simulator.executed)  # [16, 20, 4]
    as_chosen = (executed == [0, 0, 0, 1]).all(axis=-1)
    for number in range(20):
        expected = list[tuple[int, Array]]()
        for step in range(16):
            ahead = np.minimum(step + np.arange(3), 15)
            least = next(d for d in range(4) if as_chosen[ahead[d:], number].all())
            if least <= prefix:
                expected.append((least, executed[ahead, number]))
        rows = rows_of(recorded, 10 + number)
        assert recorded.least[rows].tolist() == [least for least, _ in expected]
        np.testing.assert_array_equal(recorded.executed[rows], np.array([x for _, x in expected]).reshape(-1, 3, 4))
        np.testing.assert_array_equal(recorded.actions[rows], np.tile(np.float32([0, 0, 0, 1]), (len(rows), 3, 1)))


def test_a_faulty_operator_is_the_one_that_is_recorded() -> None:
    recorded = record_demonstrations(Operated(2), episodes(2), chunk=1, disturbance=CALM, seed=0, faulty=True)
    assert not recorded.success.any()
    assert len(recorded) == 2 * CONFIG.horizon


def test_episodes_are_cut_at_the_longest() -> None:
    recorded = record_demonstrations(Operated(2), episodes(3), chunk=2, disturbance=CALM, seed=0, longest=2)
    assert [len(rows_of(recorded, index)) for index in (10, 11, 12)] == [2, 2, 2]
    assert not recorded.success.any()
    beyond = record_demonstrations(Operated(2), episodes(2), chunk=2, disturbance=CALM, seed=0, faulty=True, longest=20)
    assert [len(rows_of(beyond, index)) for index in (10, 11)] == [CONFIG.horizon] * 2


def test_equal_seeds_give_equal_demonstrations() -> None:
    def states(seed: int) -> Array:
        return record_demonstrations(
            Operated(2), episodes(4), chunk=1, disturbance=Disturbance(noise=0.3), seed=seed
        ).observation.state

    np.testing.assert_array_equal(states(5), states(5))
    assert not np.array_equal(states(5)[:9], states(6)[:9])
