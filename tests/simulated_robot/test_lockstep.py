"""In lockstep a policy over topics sees the simulator's own observations, and ends with its outcomes, to the bit."""

from collections.abc import Iterator
from itertools import count

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.tabletop_robot import HZ, Bench


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench(lockstep=True)
    yield bench
    bench.close()


def run_both(bench: Bench, episode: Episode, actions: np.random.Generator | None) -> None:
    """Run an episode in the simulator and over topics, and compare each step; without a generator an operator acts."""
    simulator = Tabletop(TabletopConfig(), 1)
    observation, operator = simulator.reset([episode]), simulator.expert()
    bench.peer.ask(index=episode.index, task=episode.task, seed=episode.seed, split=episode.split)
    bench.exchange()
    for step in count(1):
        assert bench.peer.of("/instruction")[-1].data == observation.instruction[0]
        assert bench.peer.state.tobytes() == observation.state[0].tobytes()
        assert bench.peer.picture.tobytes() == observation.images["front"][0].tobytes()
        action = operator()[0] if actions is None else actions.uniform(-1, 1, 4) * [0.03, 0.03, 0.03, 1]
        action = action.astype(np.float32)
        result = simulator.step(action[None, None], [episode])
        bench.peer.command(action.astype(np.float64) * [HZ, HZ, HZ, 1])
        bench.exchange()
        outcomes = bench.peer.texts("/simulation/outcome")
        if not len(result.ended):
            assert not outcomes
            observation = result.observation
            continue
        assert result.final_observation is not None and result.failures is not None
        assert bench.peer.state.tobytes() == result.final_observation.state[0].tobytes()
        assert bench.peer.picture.tobytes() == result.final_observation.images["front"][0].tobytes()
        assert outcomes == [
            {
                "index": episode.index,
                "success": bool(result.success[0, 0]),
                "failure": result.failures[0],
                "truncated": bool(result.truncated[0]),
                "steps": step,
                "reward": float(result.reward.sum()),
            }
        ]
        return


@pytest.mark.parametrize("task", range(7))
def test_an_operator_s_episode_is_the_simulator_s(bench: Bench, task: int) -> None:
    run_both(bench, Episode(5, task, 30 + task, final_picture=True), None)
    assert bench.peer.texts("/simulation/outcome")[0]["success"]


@pytest.mark.parametrize(("task", "seed", "split"), [(0, 3, "train"), (4, 8, "vision"), (6, 1, "execution")])
def test_an_episode_of_random_actions_is_the_simulator_s(bench: Bench, task: int, seed: int, split: str) -> None:
    episode = Episode(2, task, seed, split=split, final_picture=True)
    run_both(bench, episode, np.random.default_rng(seed))
    assert not bench.peer.texts("/simulation/outcome")[0]["success"]
