"""The simulator contract lets a sound fake pass, and catches each of its broken relatives with a fitting message."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Observation, Source, StepResult
from embodied_rl.testing.contract import check_simulator
from embodied_rl.testing.fakes import FakeSimulator

CONFIG = FakeSimulator.Config(horizon=8)


def operated(kind: type[FakeSimulator]) -> type[FakeSimulator]:
    """The same simulator with an operator that goes where the task says."""

    class Operated(kind):
        def expert(self, faulty: bool = False) -> Callable[[], Array]:
            return lambda: np.column_stack([self._direction(), np.zeros(self.num_envs, np.float32)])

    return Operated


def check(kind: type[FakeSimulator]) -> None:
    kind = kind if hasattr(kind, "expert") else operated(kind)
    check_simulator(
        lambda rows: kind(rows, CONFIG),
        build_with_horizon=lambda rows, horizon: kind(rows, replace(CONFIG, horizon=horizon)),
    )


def test_a_sound_simulator_passes() -> None:
    check(FakeSimulator)


def test_a_simulator_without_snapshots_and_privileged_state_passes() -> None:
    class Modest(FakeSimulator):
        def __init__(self, num_envs, config):
            super().__init__(num_envs, config)
            self.spec = replace(self.spec, can_snapshot=False, privileged_names=())

        def _observe(self):
            return replace(super()._observe(), privileged=None)

        def snapshot(self):
            raise NotImplementedError

    check_simulator(lambda rows: Modest(rows, CONFIG))


def result_with(change: Callable[[FakeSimulator, StepResult], StepResult]) -> type[FakeSimulator]:
    """A simulator whose results are changed afterwards."""

    class Broken(FakeSimulator):
        def step(self, actions, next_episodes):
            return change(self, super().step(actions, next_episodes))

    return Broken


def observation_with(**changes: Callable[[FakeSimulator, Observation], object]) -> type[FakeSimulator]:
    """A simulator whose observations are changed afterwards."""

    class Broken(FakeSimulator):
        def _observe(self):
            observation = super()._observe()
            return replace(observation, **{name: change(self, observation) for name, change in changes.items()})

    return Broken


def spec_with(**changes: object) -> type[FakeSimulator]:
    class Broken(FakeSimulator):
        def __init__(self, num_envs, config=None):
            super().__init__(num_envs, config)
            self.spec = replace(self.spec, **changes)

    return Broken


def unused(result: StepResult) -> Array:
    return np.arange(result.reward.shape[1]) >= result.steps[:, None]


def fixed_final(simulator: FakeSimulator, result: StepResult) -> StepResult:
    """The final observation is taken after the reset."""
    return replace(result, final_observation=result.observation.select(result.ended) if len(result.ended) else None)


class Overwriting(FakeSimulator):
    """Hands out its own array of states."""

    def _observe(self):
        observation = super()._observe()
        if not hasattr(self, "_states"):
            self._states = observation.state
        self._states[:] = observation.state
        return replace(observation, state=self._states)


class NoTermination(FakeSimulator):
    """Forgets that termination wins on the last step."""

    def step(self, actions, next_episodes):
        before = self._steps.copy()
        result = super().step(actions, next_episodes)
        late = before + result.steps >= self.spec.horizon
        return replace(
            result, terminated=result.terminated & ~late, truncated=result.truncated | (result.terminated & late)
        )


class OwnStream(FakeSimulator):
    """Draws from one stream for all environments instead of from each episode's seed."""

    def __init__(self, num_envs, config=None):
        super().__init__(num_envs, config)
        self._random = np.random.default_rng(0)

    def _start(self, row, episode):
        super()._start(row, episode)
        self._drift[row] = self._random.uniform(-0.02, 0.02, 2)


class Forgetful(FakeSimulator):
    """Leaves something out of its snapshot."""

    def _arrays(self):
        return {name: array for name, array in super()._arrays().items() if name != "drift"}


class Aliasing(FakeSimulator):
    """Its snapshot holds the arrays it goes on with."""

    def snapshot(self):
        return self._arrays()


class Restarting(FakeSimulator):
    """Begins every episode at its beginning."""

    def _start(self, row, episode):
        super()._start(row, None if episode is None else replace(episode, history=None))


class Shaking(FakeSimulator):
    """Moves every environment by the history of one."""

    def _start(self, row, episode):
        super()._start(row, episode)
        if episode is not None and episode.history is not None:
            others = np.arange(self.num_envs) != row
            self._position[others] += np.float32(0.01)


class Timeless(FakeSimulator):
    """Gives episodes that begin late their whole time."""

    def _start(self, row, episode):
        super()._start(row, episode)
        self._steps[row] = 0


class LateLimit(FakeSimulator):
    """Truncates one step early."""

    def __init__(self, num_envs, config=None):
        super().__init__(num_envs, config)
        self._limit = self.spec.horizon
        self.spec = replace(self.spec, horizon=self._limit + 1)

    def step(self, actions, next_episodes):
        self.spec, spec = replace(self.spec, horizon=self._limit), self.spec
        try:
            return super().step(actions, next_episodes)
        finally:
            self.spec = spec


class Unparkable(FakeSimulator):
    """Goes on simulating what should be parked."""

    def _start(self, row, episode):
        super()._start(row, episode)
        self._parked[row] = False


class Unclipped(FakeSimulator):
    def step(self, actions, next_episodes):
        return replace(super().step(actions, next_episodes), executed=actions)


class Clipping(FakeSimulator):
    """Clips the caller's own array."""

    def step(self, actions, next_episodes):
        np.clip(actions, -1, 1, out=actions)
        return super().step(actions, next_episodes)


def operator_with(change: Callable[[Array], object]) -> type[FakeSimulator]:
    """A simulator whose operator's actions are changed afterwards."""

    class Broken(operated(FakeSimulator)):
        def expert(self, faulty: bool = False) -> Callable[[], Any]:
            operate: Any = super()
            operate = operate.expert()
            return lambda: change(operate())

    return Broken


BROKEN = [
    (spec_with(words=("go", "left")), r"'go right' has words that spec.words lacks: \['right'\]"),
    (spec_with(privileged_names=()), "privileged state and its names disagree"),
    (spec_with(state_names=("x", "y")), r"state must have shape \(4, 2\), got \(4, 3\)"),
    (observation_with(state=lambda s, o: o.state.astype(np.float64)), "state must be float32, got float64"),
    (observation_with(images=lambda s, o: {"top": o.images["top"] / 255}), "camera 'top' must be uint8"),
    (observation_with(images=lambda s, o: {"top": o.images["top"][:, :4]}), r"must have shape \(4, 8, 8, 3\)"),
    (observation_with(images=lambda s, o: {"front": o.images["top"]}), "images are not those of the cameras"),
    (
        observation_with(state=lambda s, o: np.where(s._steps[:, None] > 5, np.float32(np.nan), o.state)),
        "state is not finite",
    ),
    (result_with(lambda s, r: replace(r, reward=r.reward + unused(r).astype(np.float32))), "reward at j ≥ steps"),
    (result_with(lambda s, r: replace(r, success=r.success | unused(r))), "success at j ≥ steps"),
    (result_with(lambda s, r: replace(r, source=np.full_like(r.source, Source.POLICY))), "source at j ≥ steps"),
    (result_with(lambda s, r: replace(r, truncated=r.truncated | r.terminated)), "termination wins"),
    (result_with(lambda s, r: replace(r, ended=r.ended[::-1])), "ascending"),
    (
        result_with(lambda s, r: r if len(r.ended) else replace(r, final_observation=r.observation)),
        "None iff none ended",
    ),
    (result_with(lambda s, r: replace(r, steps=r.steps - (~(r.terminated | r.truncated)))), "cut short"),
    (result_with(fixed_final), "the final observation depends on the episode that starts next"),
    (Overwriting, "overwrites the observation before it"),
    (NoTermination, "is not reported as terminated"),
    (OwnStream, "(a reset to the next episode|position or neighbours)"),
    (Forgetful, "(restore in another simulator|after a restore)"),
    (Aliasing, "return copies"),
    (Restarting, "the observation after a history of 1 chunks"),
    (Shaking, "begins otherwise beside one with a history"),
    (Timeless, "after a history of 2 chunks, a step's steps"),
    (LateLimit, "truncated after 8 steps, not 9"),
    (Unparkable, "parked"),
    (Unclipped, "exceed the limits"),
    (Clipping, "changes the actions it is given"),
    (operator_with(lambda actions: actions.tolist()), "must return an array, got list"),
    (operator_with(lambda actions: actions.astype(np.float64)), "must be float32, got float64"),
    (operator_with(lambda actions: actions[:, None]), r"must have shape \(4, 2\), got \(4, 1, 2\)"),
    (operator_with(lambda actions: actions * np.float32(np.nan)), "the operator's actions are not finite"),
    (operator_with(lambda actions: actions * 0), "did not end an episode within 500 steps"),
]


@pytest.mark.parametrize(("kind", "message"), BROKEN, ids=[message for _, message in BROKEN])
def test_broken_simulators_are_caught(kind: type[FakeSimulator], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(kind)


def test_a_horizon_to_succeed_at_without_an_operator_is_refused() -> None:
    """Nothing is left out silently."""
    build = lambda rows, horizon: FakeSimulator(rows, replace(CONFIG, horizon=horizon))  # noqa: E731
    with pytest.raises(AssertionError, match="`expert` is missing"):
        check_simulator(lambda rows: FakeSimulator(rows, CONFIG), build_with_horizon=build)


def test_settings_without_an_operator_pass() -> None:
    """As of a package that knows an operator for some of its tasks alone."""

    class Sometimes(FakeSimulator):
        def expert(self, faulty: bool = False) -> Callable[[], Array]:
            raise UserError("there is none for this task")

    check_simulator(lambda rows: Sometimes(rows, CONFIG))


def test_an_operator_may_remember_what_it_did() -> None:
    """A restored simulator is given the same actions, not asked for new ones."""

    class Planning(FakeSimulator):
        def expert(self, faulty: bool = False) -> Callable[[], Array]:
            plan = np.random.default_rng(0)
            return lambda: plan.uniform(-1, 1, (self.num_envs, 2)).astype(np.float32)

    check_simulator(lambda rows: Planning(rows, CONFIG))


def test_rows_that_know_of_each_other_are_caught() -> None:
    """One environment pulls the others."""

    class Coupled(FakeSimulator):
        def _advance(self, running, velocity):
            super()._advance(running, velocity)
            self._position += 0.001 * self._position.mean(axis=0)

    with pytest.raises(AssertionError, match="position or neighbours"):
        check(Coupled)


def test_behaviour_that_depends_on_the_size_of_a_slice_is_caught() -> None:
    class Economising(FakeSimulator):
        """Simulates coarsely when it is small."""

        def _advance(self, running, velocity):
            super()._advance(running, velocity)
            if self.num_envs == 2:
                self._position[:] = np.round(self._position, 2)

    with pytest.raises(AssertionError, match="changes with the slicing"):
        check(Economising)
