"""The contract of a simulator, as checks for its author's tests.

Shapes: n environments, H executed actions of a chunk, A action dimensions, S state and P privileged dimensions.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch

from embodied_rl.actors.scripted import Operator
from embodied_rl.interfaces.sim import Array, Episode, Observation, Simulator, SimulatorSpec, Source, StepResult
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime.processes import simulator_checks
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fake_actor import RowwiseFakeActor
from embodied_rl.testing.operator_contract import (
    call_operator,
    check_termination_beats_truncation,
    find_operator,
)


def assert_same(left: Any, right: Any, message: str) -> None:
    """Check that two observations, results, arrays, mappings, tuples or scalars are equal; NaN equals NaN.

    Raises:
        AssertionError: they differ; the text is `message` and the part that differs.
    """
    difference = find_first_difference(left, right)
    assert difference is None, f"{message}: {difference} differs"


def find_first_difference(left: Any, right: Any, name: str = "value") -> str | None:
    """Return the name of the first part that differs, or None."""
    if type(left) is not type(right):
        return f"the type of {name} ({type(left).__name__}, {type(right).__name__})"
    if hasattr(left, "__dataclass_fields__"):
        left, right = ({f.name: getattr(side, f.name) for f in fields(side)} for side in (left, right))
    if isinstance(left, dict):
        if left.keys() != right.keys():
            return f"the set of keys of {name}"
        parts = (find_first_difference(left[key], right[key], str(key)) for key in left)
        return next((part for part in parts if part is not None), None)
    if isinstance(left, np.ndarray):
        same = left.dtype == right.dtype and np.array_equal(left, right, equal_nan=left.dtype.kind == "f")
        return None if same else name
    return None if left == right else name


def copy_observation(observation: Observation) -> Observation:
    """Return a copy that the simulator cannot change."""
    return observation.select(range(len(observation)))


Build = Callable[[int], Simulator]
NUM_ENVS = 4


def check_simulator(
    build: Build,
    *,
    executed: int = 3,
    build_with_horizon: Callable[[int, int], Simulator] | None = None,
    exact: bool = True,
) -> None:
    """Check a simulator against `interfaces.sim`, with some tens of short chunks; use a small horizon if possible.

    The simulator's operator (`interfaces.sim.Operated`) acts in half of the environments. Without one, only successes
    by chance are checked.

    Args:
        build: number of environments → a new simulator.
        executed: H of the chunks.
        build_with_horizon: (number of environments, horizon) → a new simulator with an operator that succeeds; checks
            that termination beats truncation on the last step.
        exact: whether equal seeds and actions must give equal bits; False for simulators on a GPU that cannot.

    Raises:
        AssertionError: the contract is broken.
    """
    Check(build, executed, exact).run()
    if build_with_horizon is not None:
        check_termination_beats_truncation(build_with_horizon)


@dataclass
class Check:
    """The checks of one simulator; `run` does all of them, and each can be called alone."""

    build: Build
    executed: int = 3
    exact: bool = True

    def __post_init__(self) -> None:
        simulator = self.build(1)
        self.spec: SimulatorSpec = simulator.spec
        simulator.close()

    def run(self) -> None:
        check_spec(self.spec)
        self.episodes_run_to_their_end()
        self.observations_stay_as_they_were()
        self.actions_are_clipped()
        self.parked_environments_do_nothing()
        if self.exact:
            self.final_observations_belong_to_the_episode_that_ended()
            self.neighbours_change_nothing()
            self.slicing_changes_nothing()
        if self.spec.can_snapshot:
            self.snapshots_continue_exactly()
        if self.spec.can_replay:
            for row in range(2):  # random actions, and an operator's
                self.histories_lead_to_the_recorded_state(row)

    def episodes_run_to_their_end(self) -> None:
        """Check shapes, dtypes and flags of every result, over as many chunks as two full episodes need."""
        simulator = self.build(NUM_ENVS)
        operate = find_operator(simulator)
        check_observation(self.spec, simulator.reset(self.episodes(0)), NUM_ENVS)
        taken, ended = np.zeros(NUM_ENVS, np.int64), np.zeros(NUM_ENVS, np.int64)
        for chunk in range(2 * self.chunks()):
            result = simulator.step(self.actions(chunk, NUM_ENVS, operate), self.episodes(1 + chunk))
            check_result(self.spec, result, NUM_ENVS, self.executed)
            taken += result.steps
            over = result.terminated | result.truncated
            early = result.truncated & (taken != self.spec.horizon)
            assert not early.any(), f"an episode was truncated after {taken[early][0]} steps, not {self.spec.horizon}"
            late = ~over & (taken >= self.spec.horizon)
            assert not late.any(), f"an episode runs on after the horizon of {self.spec.horizon} steps"
            ended += over
            taken[over] = 0
        assert (ended >= 1).all(), f"in {2 * self.chunks()} chunks some environment ended no episode"
        simulator.close()

    def observations_stay_as_they_were(self) -> None:
        """Check that a step does not overwrite the observation before it, which is read after the step has begun."""
        simulator = self.build(NUM_ENVS)
        first = simulator.reset(self.episodes(0))
        copy = copy_observation(first)
        simulator.step(self.actions(0, NUM_ENVS), self.episodes(1))
        assert_same(first, copy, "a step overwrites the observation before it; return new arrays")
        simulator.close()

    def actions_are_clipped(self) -> None:
        """Check that executed actions stay within the limits, and that the caller's array is not changed."""
        simulator = self.build(NUM_ENVS)
        simulator.reset(self.episodes(0))
        low, high = np.array(self.spec.action_low, np.float32), np.array(self.spec.action_high, np.float32)
        actions = np.broadcast_to(high + 10 * (high - low), (NUM_ENVS, self.executed, len(low))).astype(np.float32)
        before = actions.copy()
        result = simulator.step(actions, self.episodes(1))
        applied = result.executed[_used(result)]
        assert (applied <= high).all() and (applied >= low).all(), "executed actions exceed the limits of the spec"
        assert_same(actions, before, "step changes the actions it is given")
        simulator.close()

    def parked_environments_do_nothing(self) -> None:
        """Check that a parked environment ends no episode, and can be started again."""
        simulator = self.build(2)
        simulator.reset([self.episode(0), None])
        for chunk in range(self.chunks() + 1):
            result = simulator.step(self.actions(chunk, 2), [None, None])
            flags = result.terminated[1] or result.truncated[1] or 1 in result.ended
            assert not flags, "a parked environment reports the end of an episode"
            if chunk == self.chunks():
                assert len(result.ended) == 0, "an environment parked by next_episodes reports the end of an episode"
        check_observation(self.spec, simulator.reset(self.episodes(5)[:2]), 2)
        simulator.close()

    def final_observations_belong_to_the_episode_that_ended(self) -> None:
        """Check that a final observation does not depend on the next episode, and that this starts as after a reset."""
        runs = [self._run_episode(following) for following in (None, self.episode(7), self.episode(8))]
        finals = [result.final_observation for result in runs]
        for final in finals[1:]:
            assert_same(final, finals[0], "the final observation depends on the episode that starts next")
        for number, result in zip((7, 8), runs[1:], strict=True):
            fresh = self.build(1)
            message = "after an episode's end, the observation is not the one a reset to the next episode gives"
            assert_same(result.observation, fresh.reset([self.episode(number)]), message)
            fresh.close()

    def neighbours_change_nothing(self) -> None:
        """Check that an episode depends on neither its environment's position nor its neighbours."""
        alone, seen = self.build(1), list[Observation]()
        seen.append(copy_observation(alone.reset([self.episode(0)])))
        for chunk in range(self.chunks()):
            following = [self.episode(9)]
            seen.append(copy_observation(alone.step(self.actions(chunk, 1), following).observation))
        alone.close()
        among_others = self.build(3)
        found = among_others.reset([self.episode(1), None, self.episode(0)])
        for chunk in range(self.chunks()):
            message = f"an episode differs with its environment's position or neighbours, after {chunk} chunks"
            assert_same(found.select([2]), seen[chunk], message)
            actions = self.actions(chunk, 1)
            others = np.zeros((2, *actions.shape[1:]), np.float32)
            following = [self.episode(10), self.episode(11), self.episode(9)]
            found = among_others.step(np.concatenate([others, actions]), following).observation
        among_others.close()

    def slicing_changes_nothing(self) -> None:
        """Check that two slices collect the same bits as one, with an actor whose rows are independent."""
        whole, halves = (self._collect(parts) for parts in (1, 2))
        for name, tensor in whole.batch().items():
            assert torch.equal(tensor, halves.batch()[name]), f"'{name}' of a rollout changes with the slicing"

    def snapshots_continue_exactly(self) -> None:
        """Check that a snapshot continues bit for bit, in the same simulator and in another one."""
        simulator, other = self.build(NUM_ENVS), self.build(NUM_ENVS)
        operate = find_operator(simulator)
        simulator.reset([*self.episodes(0)[:-1], None])
        observation = simulator.step(self.actions(0, NUM_ENVS, operate), self.episodes(1)).observation
        saved = simulator.snapshot()
        for name, array in saved.items():
            plain = isinstance(array, np.ndarray) and array.dtype != object
            assert plain, f"snapshot '{name}' is no array of plain numbers"
        kept, in_hand = {name: array.copy() for name, array in saved.items()}, copy_observation(observation)
        chosen, expected = self._continue(simulator, operate)
        assert_same(saved, kept, "a snapshot changes as the simulator goes on; return copies")
        for restored, where in ((other, "another simulator"), (simulator, "the same simulator")):
            observation = restored.restore(kept)
            running = list(range(NUM_ENVS - 1))
            message = f"restore in {where} returns another observation than the one in hand"
            assert_same(observation.select(running), in_hand.select(running), message)
            for chunk, actions in enumerate(chosen, start=1):
                continued = restored.step(actions, self.episodes(1 + chunk)).observation
                message = f"{chunk} chunks after a restore in {where}, the observation"
                assert_same(continued.select(running), expected[chunk - 1].select(running), message)
            restored.close()

    def histories_lead_to_the_recorded_state(self, row: int) -> None:
        """Check that an episode with a history begins where its chunks led, beside others, and goes on alike."""
        recorded, replayed = self.build(2), self.build(NUM_ENVS)
        operate, history = find_operator(recorded), list[Array]()
        recorded.reset(self.episodes(0)[:2])
        beside = copy_observation(replayed.reset([self.episode(9), None, None, self.episode(0)]))
        for chunk in range(self.chunks()):
            actions, following = self.actions(chunk, 2, operate), self.episodes(1 + chunk)[:2]
            result = recorded.step(actions, following)
            message = f"after a history of {len(history)} chunks"
            if history:
                again = replayed.step(actions[[0, 0, row, 0]], [*following, following[row], following[0]])
                for name in ("reward", "success", "steps", "terminated", "truncated"):
                    assert_same(getattr(again, name)[2], getattr(result, name)[row], f"{message}, a step's {name}")
            if row in result.ended:
                break
            history.append(result.executed[row].copy())
            late = replace(self.episode(row), history=np.stack(history))
            begun = replayed.reset([self.episode(9), None, late, self.episode(0)])
            message = f"the observation after a history of {len(history)} chunks"
            assert_same(begun.select([2]), result.observation.select([row]), message)
            message = "an episode begins otherwise beside one with a history"
            assert_same(begun.select([0, 3]), beside.select([0, 3]), message)
        for simulator in (recorded, replayed):
            simulator.close()

    def episode(self, number: int) -> Episode:
        return EpisodeSampler(self.spec, run_seed=1).episode(number)

    def episodes(self, chunk: int) -> list[Episode]:
        return [self.episode(NUM_ENVS * chunk + row) for row in range(NUM_ENVS)]

    def chunks(self) -> int:
        """Return a number of chunks that ends any episode."""
        return -(-self.spec.horizon // self.executed)

    def actions(self, chunk: int, rows: int, operate: Operator | None = None) -> Array:
        """Return random actions within the limits [rows, H, A]; in odd rows the operator's, repeated over the chunk."""
        low, high = np.array(self.spec.action_low, np.float32), np.array(self.spec.action_high, np.float32)
        random = np.random.default_rng(chunk)
        shape = (max(NUM_ENVS, rows), self.executed, len(low))
        actions = random.uniform(low, high, shape).astype(np.float32)[:rows]
        if operate is not None:
            actions[1::2] = call_operator(operate, rows, len(low))[1::2, None]
        return actions

    def _run_episode(self, following: Episode | None) -> StepResult:
        simulator = self.build(1)
        simulator.reset([self.episode(0)])
        for chunk in range(self.chunks()):
            result = simulator.step(self.actions(chunk, 1), [following])
            check_result(self.spec, result, 1, self.executed)  # one environment, so that some chunks end nothing
            if len(result.ended):
                simulator.close()
                return result
        raise AssertionError(f"an episode did not end within its horizon of {self.spec.horizon} steps")

    def _continue(self, simulator: Simulator, operate: Operator | None) -> tuple[list[Array], list[Observation]]:
        """Run as many chunks as an episode needs; return their actions, and copies of the observations after them."""
        chosen, seen = list[Array](), list[Observation]()
        for chunk in range(1, self.chunks() + 1):
            chosen.append(self.actions(chunk, NUM_ENVS, operate))
            following: Sequence[Episode | None] = self.episodes(1 + chunk)
            seen.append(copy_observation(simulator.step(chosen[-1], following).observation))
        return chosen, seen

    def _collect(self, parts: int) -> Rollout:
        actor = RowwiseFakeActor(self.spec, self.executed)
        rollout = Rollout.allocate(actor, self.chunks() + 1, NUM_ENVS)
        handles = [InlineHandle(lambda: self.build(NUM_ENVS // parts)) for _ in range(parts)]
        sampler = EpisodeSampler(self.spec, run_seed=2)
        collector = Collector(handles, self.spec, NUM_ENVS // parts, sampler, rollout, seed=2)
        collector.collect(actor)
        for handle in handles:
            handle.close()
        return rollout


def check_spec(spec: SimulatorSpec) -> None:
    """Check that the spec is a `SimulatorSpec`, which checks its fields itself."""
    assert isinstance(spec, SimulatorSpec), f"spec must be a SimulatorSpec, got {type(spec).__name__}"


def check_observation(spec: SimulatorSpec, observation: Observation, rows: int) -> None:
    """Check that shapes, dtypes and words are those of the spec, and that numbers are finite."""
    with _asserting():
        simulator_checks.check_observation(spec, observation, rows)
    _check_finite("state", observation.state)
    if observation.privileged is not None:
        _check_finite("privileged", observation.privileged)
    for text in observation.instruction:
        unknown = set(text.split()) - set(spec.words)
        assert not spec.words or not unknown, f"'{text}' has words that spec.words lacks: {sorted(unknown)}"


def check_result(spec: SimulatorSpec, result: StepResult, rows: int, executed: int) -> None:
    """Check shapes, dtypes and flags of a chunk in which no environment was parked."""
    with _asserting():
        simulator_checks.check_step_result(spec, result, rows, executed)
    _check_finite("reward", result.reward)
    _check_finite("executed", result.executed[_used(result)])
    check_observation(spec, result.observation, rows)
    over = result.terminated | result.truncated
    assert not (result.terminated & result.truncated).any(), "terminated and truncated at once: termination wins"
    assert np.array_equal(result.ended, np.flatnonzero(over)), "'ended' must list the rows that ended, ascending"
    assert ((result.steps >= 1) & (result.steps <= executed)).all(), "steps must be 1 … H"
    assert (result.steps[~over] == executed).all(), "a chunk was cut short although the episode goes on"
    unused = ~_used(result)
    assert not result.reward[unused].any(), "reward at j ≥ steps must be zero"
    assert not result.success[unused].any(), "success at j ≥ steps must be False"
    assert (result.source[unused] == Source.HOLD).all(), "source at j ≥ steps must be HOLD"
    if result.final_observation is not None:
        check_observation(spec, result.final_observation, len(result.ended))


def _used(result: StepResult) -> Array:
    return np.arange(result.reward.shape[1]) < result.steps[:, None]


@contextmanager
def _asserting() -> Iterator[None]:
    """Turn an `InvalidOutput` in the `with` block into an `AssertionError`."""
    try:
        yield
    except simulator_checks.InvalidOutput as error:
        raise AssertionError(str(error)) from None


def _check_finite(name: str, array: Array) -> None:
    assert np.isfinite(array).all(), f"{name} is not finite"
