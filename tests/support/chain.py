"""A chain with a delayed reward, whose values are known: what its first action decides shows only at its end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, Source, StepResult
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.replay.experience import list_stored
from embodied_rl.rollout.replay.format import ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runtime.processes.local import InlineHandle
from tests.support.pointing import Pointing

LENGTH, EARLY = 6, 0.3


class Chain:
    """n environments with episodes of `LENGTH` control steps, of which only the first action matters.

    Below 0 it earns `EARLY` at once; else the last step earns `late`. The state is the place: 0 at the beginning, then
    the number of steps taken, negative after an action below 0, over `LENGTH`; if `tabular`, one-hot.
    """

    @dataclass(frozen=True)
    class Config:
        """late: reward of the last step. tabular: see `Chain`."""

        late: float = 1.0
        tabular: bool = False

    def __init__(self, config: Config, num_envs: int) -> None:
        self.config, self.num_envs, self.spec = config, num_envs, self.spec_of(config)
        self._step, self._side = 0, np.ones(num_envs, np.int64)

    @staticmethod
    def spec_of(config: Config) -> SimulatorSpec:
        spec = replace(Pointing.spec_of(Pointing.Config()), horizon=LENGTH)
        return replace(spec, state_names=tuple(f"place_{place}" for place in PLACES)) if config.tabular else spec

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        self._step = 0
        return self._observe()

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        """The number of actions divides the length."""
        count, shape = len(actions), actions.shape[:2]
        reward = np.zeros(shape, np.float32)
        for j in range(shape[1]):
            if self._step == 0:
                self._side = np.where(actions[:, j, 0] < 0, -1, 1)
                reward[:, j] = EARLY * (self._side < 0)
            self._step += 1
        ends = self._step == LENGTH
        reward[:, -1] += ends * self.config.late * (self._side > 0)
        final = self._observe() if ends else None
        self._step = 0 if ends else self._step
        return StepResult(
            reward=reward,
            success=reward == self.config.late,
            steps=np.full(count, shape[1], np.int64),
            executed=actions.astype(np.float32),
            source=np.full(shape, Source.POLICY, np.uint8),
            terminated=np.full(count, ends),
            truncated=np.zeros(count, bool),
            observation=self._observe(),
            ended=np.arange(count if ends else 0),
            final_observation=final,
        )

    def close(self) -> None:
        """Nothing to release."""

    def snapshot(self) -> dict[str, Array]:
        raise NotImplementedError

    def restore(self, state: dict[str, Array]) -> Observation:
        raise NotImplementedError

    def _observe(self) -> Observation:
        return observe_places(self._step * self._side, self.config.tabular)


PLACES = range(-LENGTH, LENGTH + 1)


def observe_places(places: Array, tabular: bool = False) -> Observation:
    """What is observed in these places, under one instruction."""
    state = np.equal.outer(places, PLACES) if tabular else places[:, None] / LENGTH
    pictures = {"front": np.zeros((len(places), 16, 16, 3), np.uint8)}
    truth = places[:, None].astype(np.float32)
    return Observation(pictures, state.astype(np.float32), ("left",) * len(places), truth)


def find_values(places: Array, gamma: float, good: float) -> Array:
    """The return from each place on, if the first action is at least 0 with probability `good`."""
    late = (places > 0) * gamma ** (LENGTH - 1.0 - places)
    return np.where(places == 0, good * gamma ** (LENGTH - 1) + (1 - good) * EARLY, late)


def collect_chain(actor: Actor, envs: int, stores: Sequence[str] = ()) -> ReplayStorage:
    """A storage of an episode in each of `envs` environments, by the exploring policy, a control step a decision."""
    simulator = Chain(Chain.Config(), envs)
    extra = list_stored(actor, stores)
    storage = ReplayStorage(ReplayFormat.of_simulator(simulator.spec, envs, LENGTH + 1, 1, extra=extra))
    rollout = Rollout.allocate(actor, LENGTH, envs)
    handles, episodes = [InlineHandle(lambda: simulator)], EpisodeSampler(simulator.spec, 0)
    Collector(handles, simulator.spec, envs, episodes, rollout, 0, writers=[storage]).collect(actor)
    return storage
