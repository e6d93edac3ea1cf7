"""The fakes: the simulator obeys its own formula, and the actor is a policy that can be learned."""

from dataclasses import replace

import numpy as np
import torch

from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.interfaces.sim import Episode, Observation
from embodied_rl.testing.fakes import FakeSimulator, RowwiseFakeActor


def test_points_move_by_velocity_and_drift_until_they_reach_their_side() -> None:
    """Two steps of velocity 1 and 0.5 to the right: 0.2 · 1.5 + 2 · drift; then the goal at 0.8 ends the episode."""
    simulator = FakeSimulator(1)
    first = simulator.reset([Episode(0, 1, seed=3)])
    drift = first.privileged[0, 1:]
    result = simulator.step(np.array([[[1.0, 0.0], [0.5, -1.0]]], np.float32), [None])
    moved = first.state[0, :2] + np.array([0.3, -0.2]) + 2 * drift
    np.testing.assert_allclose(result.observation.state[0, :2], moved, rtol=1e-6)
    line, column = (np.clip((moved[::-1] + 1) * 4, 0, 7)).astype(int)
    assert result.observation.images["top"][0, line, column].tolist() == [255, 255, 255]
    needed = int(np.ceil((0.8 - moved[0]) / (0.2 + drift[0])))
    result = simulator.step(np.ones((1, 10, 2), np.float32), [None])
    assert result.terminated[0] and result.steps[0] == needed
    assert result.reward[0].tolist() == [float(j == needed - 1) for j in range(10)]


def test_the_actor_samples_from_the_gaussian_it_scores() -> None:
    """Over many keys, the mean log-probability is minus the entropy, and actions have the policy's spread."""
    spec = FakeSimulator(1).spec
    actor, rows = RowwiseFakeActor(spec), 500
    observation = FakeSimulator(rows).reset([Episode(index, 0, seed=0) for index in range(rows)])
    with torch.no_grad():
        decision = actor.act(observation, NoiseKeys(0, np.arange(rows), np.zeros(rows, np.int64)), explore=True)
        entropy = actor.evaluate(decision.trace).entropy
    count = decision.log_prob.numel()
    assert abs(float((decision.log_prob + entropy).mean())) < 5 * (0.5 / count) ** 0.5
    assert abs(float(decision.trace["actions"].std(0).mean()) - 0.5) < 0.03


def test_a_row_of_the_actor_does_not_know_where_it_lies() -> None:
    """19 inputs and 18 outputs, so that rows begin at any multiple of four bytes."""
    spec = replace(
        FakeSimulator(1).spec,
        state_names=tuple(f"state_{number}" for number in range(16)),
        action_names=tuple(f"action_{number}" for number in range(6)),
        action_low=(-1.0,) * 6,
        action_high=(1.0,) * 6,
        hold=None,
    )
    actor, rows = RowwiseFakeActor(spec, executed=3), 64
    state = np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32)
    whole = Observation({"top": np.zeros((rows, 8, 8, 3), np.uint8)}, state, ("",) * rows)
    with torch.no_grad():
        together = actor.act(whole, NoiseKeys(0, np.arange(rows), np.zeros(rows, np.int64)), explore=False)
        for row in range(rows):
            alone = actor.act(whole.select([row]), NoiseKeys(0, np.array([row]), np.zeros(1, np.int64)), explore=False)
            assert np.array_equal(alone.actions[0], together.actions[row])
            assert torch.equal(alone.value[0], together.value[row])
