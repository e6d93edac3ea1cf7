"""A `Simulator` made of n single environments; implements the rules of chunks once for all packages.

NumPy and the standard library only, Python 3.10 or newer: it runs in the Python environment of each package.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode, NotFinite, Observation, SimulatorSpec, Source, StepResult
from embodied_rl_sims.common import NoSnapshots, make_empty_result, wants_final_picture


@dataclass
class StepOutcome:
    """The result of one control step of one environment.

    Attributes:
        reward: reward of this step.
        success: whether the goal holds after it.
        terminated: whether the task is over, in success or failure. The environment does not check the time limit.
    """

    reward: float
    success: bool
    terminated: bool


@dataclass
class View:
    """The observation of one environment.

    Attributes:
        state: float32 [S], as `Observation.state`.
        images: camera name → uint8 [h, w, 3]; empty if no picture was requested.
        privileged: float32 [P], or None if the spec has no privileged state.
    """

    state: Array
    images: dict[str, Array] = field(default_factory=dict)
    privileged: Array | None = None


class Environment(Protocol):
    """Interface of one environment, which runs episodes in sequence."""

    instruction: str
    """Instruction of the present episode."""

    def begin(self, episode: Episode) -> None:
        """Start an episode; all random numbers in it must depend on the episode only."""
        ...

    def step(self, action: Array) -> StepOutcome:
        """Apply one control step's action, float32 [A], already within the spec's limits; draw nothing."""
        ...

    def observe(self, pictures: bool) -> View:
        """Return the present observation; draw pictures, which takes most of the time, only if requested."""
        ...

    def render(self, width: int, height: int) -> Array:
        """Return a picture uint8 [height, width, 3] for videos."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


class Scene(Protocol):
    """What is built for a task and can run its episodes one after another."""

    def close(self) -> None: ...


SceneT = TypeVar("SceneT", bound=Scene)


class ScenePool(Generic[SceneT]):
    """A pool of built scenes that no environment uses at present.

    Args:
        build: function from a task to a new scene of it.
        keep: maximum number of scenes in the pool; beyond it, the scene that was returned first is closed.
    """

    def __init__(self, build: Callable[[int], SceneT], keep: int) -> None:
        self._build, self._keep = build, keep
        self._waiting: OrderedDict[int, tuple[int, SceneT]] = OrderedDict()
        self._number = 0

    def take(self, task: int) -> SceneT:
        """Take a scene of a task from the pool, or build one."""
        for number, (of_task, scene) in self._waiting.items():
            if of_task == task:
                del self._waiting[number]
                return scene
        return self._build(task)

    def give_back(self, task: int, scene: SceneT) -> None:
        """Return a scene that an environment no longer uses."""
        self._number += 1
        self._waiting[self._number] = (task, scene)
        while len(self._waiting) > self._keep:
            self._waiting.popitem(last=False)[1][1].close()

    def close(self) -> None:
        """Close all scenes of the pool."""
        while self._waiting:
            self._waiting.popitem()[1][1].close()


class Rows(NoSnapshots):
    """n environments in turn; implements `embodied_rl.interfaces.sim.Simulator`.

    The time limit is the spec's horizon. A picture is drawn once, at the end of a chunk. The final picture of an
    episode that terminated is black, because learning does not use it, unless the episode requests it
    (`Episode.final_picture`).

    Args:
        spec: specification of the simulator.
        num_envs: n.
        make: function from a row to its environment, called when the row starts its first episode.
    """

    def __init__(self, spec: SimulatorSpec, num_envs: int, make: Callable[[int], Environment]) -> None:
        self.spec, self.num_envs = spec, num_envs
        self._make = make
        self._environments: list[Environment | None] = [None] * num_envs
        self._episode: list[Episode | None] = [None] * num_envs
        self._clock = np.zeros(num_envs, np.int64)
        self.render_seconds = 0.0

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        for row, episode in enumerate(episodes):
            self._begin(row, episode)
        return self._observe(range(self.num_envs))

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        result = make_empty_result(self.spec, actions)
        for row, episode in enumerate(self._episode):
            if episode is not None:
                self._run(row, result)
        result.ended = np.flatnonzero(result.terminated | result.truncated)
        if len(result.ended):
            unasked = result.terminated & ~wants_final_picture(self._episode)
            result.final_observation = self._observe(result.ended, without_picture=unasked)
            for row in result.ended:
                self._begin(int(row), next_episodes[row])
        result.observation = self._observe(range(self.num_envs))
        return result

    def render(self, row: int, width: int, height: int) -> Array:
        """Return a picture uint8 [height, width, 3] of one environment for videos; black if it is parked."""
        if self._episode[row] is None:
            return np.zeros((height, width, 3), np.uint8)
        return self.environment(row).render(width, height)

    def close(self) -> None:
        for environment in self._environments:
            if environment is not None:
                environment.close()
        self._environments = [None] * self.num_envs

    def environment(self, row: int) -> Environment:
        """Return the environment of a row; build it at the first call."""
        found = self._environments[row]
        if found is None:
            found = self._environments[row] = self._make(row)
        return found

    def episode(self, row: int) -> Episode | None:
        """Return the episode that a row runs; None if it is parked."""
        return self._episode[row]

    def clock(self, row: int) -> int:
        """Return the number of control steps of a row's episode so far."""
        return int(self._clock[row])

    def make_operator(self, act: Callable[[int, Episode], Array]) -> Callable[[], Array]:
        """Return a function that gives one control step's actions by `act`, float32 [n, A]; zeros for parked rows."""

        def actions() -> Array:
            chosen = np.zeros((self.num_envs, self.spec.action_dim), np.float32)
            for row, episode in enumerate(self._episode):
                if episode is not None:
                    chosen[row] = act(row, episode)
            return chosen

        return actions

    def _begin(self, row: int, episode: Episode | None) -> None:
        self._episode[row], self._clock[row] = episode, 0
        if episode is not None:
            self.environment(row).begin(episode)

    def _run(self, row: int, result: StepResult) -> None:
        """Run one environment's chunk until its episode ends."""
        environment = self.environment(row)
        for j in range(result.reward.shape[1]):
            outcome = environment.step(result.executed[row, j])
            self._clock[row] += 1
            if not np.isfinite(outcome.reward):
                raise NotFinite(f"the reward of control step {self._clock[row]} is {outcome.reward}", row)
            result.reward[row, j], result.success[row, j] = outcome.reward, outcome.success
            result.source[row, j] = Source.POLICY
            result.steps[row] += 1
            result.terminated[row] = outcome.terminated
            result.truncated[row] = not outcome.terminated and self._clock[row] >= self.spec.horizon
            if result.terminated[row] or result.truncated[row]:
                return

    def _observe(self, rows: Sequence[int] | Array, without_picture: Array | None = None) -> Observation:
        """Observe `rows`; pictures of rows in `without_picture` (bool [n]) and of parked rows are black."""
        count = len(rows)
        images = {c.name: np.zeros((count, c.height, c.width, 3), np.uint8) for c in self.spec.cameras}
        state = np.zeros((count, len(self.spec.state_names)), np.float32)
        privileged = np.zeros((count, len(self.spec.privileged_names)), np.float32)
        instruction = [""] * count
        for place, row in enumerate(rows):
            if self._episode[row] is None:
                continue
            began = time.perf_counter()
            pictures = bool(self.spec.cameras) and (without_picture is None or not without_picture[row])
            view = self.environment(int(row)).observe(pictures)
            self.render_seconds += time.perf_counter() - began
            if not np.isfinite(view.state).all():
                raise NotFinite(f"the state is no longer finite after control step {self._clock[row]}", int(row))
            state[place], instruction[place] = view.state, self.environment(int(row)).instruction
            for name, image in view.images.items():
                images[name][place] = image
            if view.privileged is not None:
                privileged[place] = view.privileged
        return Observation(images, state, tuple(instruction), privileged if self.spec.privileged_names else None)
