"""Rollouts under an inference delay: the executed action of each control step, and the policy's committed actions."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.deployment.execution.executor import make_hold
from embodied_rl.interfaces.backbone import TensorSpec
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, Decision, NoiseKeys
from embodied_rl.interfaces.sim import Array, Episode, Observation, Source, StepResult
from embodied_rl.mathematics.flow.sampler import FlowSDE
from embodied_rl.rollout.action_queue import ActionQueue, check_rollout_delay
from embodied_rl.rollout.buffer import Rollout
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.delay import Delay, DelayedEpisode, stack_actions
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.rollout.writer import Writer
from embodied_rl.runtime.processes.local import InlineHandle
from embodied_rl.testing.fakes import FakeSimulator
from embodied_rl.training.algorithms.batch import find_scored
from embodied_rl_policies.pocket import Pocket
from tests.support.collecting import assert_equal, copied
from tests.support.experience import MODEL_DIM, SMALL
from tests.support.refusals import refuses

N, T, SEED = 4, 6, 3
HOLD = (0.0, 0.5)
CASES = [(delay, executed) for delay in (0, 1, 2) for executed in (1, 2, 3) if executed >= delay]


def spec_of(config: FakeSimulator.Config) -> Any:
    return replace(FakeSimulator.spec_of(config), hold=HOLD)


class RecordingSimulator(FakeSimulator):
    """Holds still by another action than zero, and records the actions that it receives in each episode."""

    def __init__(self, num_envs: int, config: FakeSimulator.Config) -> None:
        super().__init__(num_envs, config)
        self.spec = spec_of(config)
        self.running: list[Episode | None] = [None] * num_envs
        self.executed: dict[int, list[Array]] = {}

    def _start(self, row: int, episode: Episode | None) -> None:
        self.running[row] = episode
        super()._start(row, episode)

    def step(self, actions: Array, next_episodes: Any) -> StepResult:
        running = list(self.running)
        result = super().step(actions, next_episodes)
        for row, episode in enumerate(running):
            if episode is not None:
                self.executed.setdefault(episode.index, []).extend(actions[row, : result.steps[row]])
        return result


def choose(episode: int, number: int) -> list[float]:
    """Return the policy's action of this number in an episode; too small to reach the goal."""
    return [1e-3 * number, 1e-3 * (episode % 97)]


class Counting(Actor):
    """Chooses numbered actions, and records the committed ones that it gets."""

    def __init__(self, delay: int, executed: int) -> None:
        super().__init__()
        self.delay, self.executed = delay, executed
        self.committed: dict[tuple[int, int], tuple[Array, int]] = {}
        self.valued: dict[tuple[int, int], tuple[Array, int]] = {}

    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: Array | None = None,
        committed: Array | None = None,
    ) -> Decision:
        self._note(self.committed, keys, prefix, committed)
        chosen = [
            [choose(episode, decision * self.executed + j) for j in range(self.executed)]
            for episode, decision in zip(keys.episode.tolist(), keys.decision.tolist(), strict=True)
        ]
        rows = len(observation)
        zeros = torch.zeros(rows, self.executed, 1)
        actions = np.array(chosen, np.float32)
        return Decision(actions, {}, zeros, torch.zeros(rows), torch.zeros(rows, dtype=torch.int64))

    def value(
        self, observation: Observation, keys: NoiseKeys, prefix: Array | None = None, committed: Array | None = None
    ) -> Tensor:
        self._note(self.valued, keys, prefix, committed)
        return torch.zeros(len(observation))

    def _note(
        self, where: dict[tuple[int, int], tuple[Array, int]], keys: NoiseKeys, prefix: Any, committed: Any
    ) -> None:
        assert (prefix is not None) == (committed is not None) == (self.delay > 0)
        if self.delay:
            for row, pair in enumerate(zip(keys.episode.tolist(), keys.decision.tolist(), strict=True)):
                where[pair] = prefix[row].copy(), int(committed[row])

    def trace_spec(self) -> TensorSpec:
        return {}

    def log_prob_shape(self) -> tuple[int, ...]:
        return self.executed, 1


def make(
    delay: int,
    executed: int,
    config: FakeSimulator.Config,
    parts: int = 1,
    actor: Actor | None = None,
    **options: Any,
) -> tuple[Collector, Any, list[RecordingSimulator]]:
    made: list[RecordingSimulator] = []

    def build() -> RecordingSimulator:
        made.append(RecordingSimulator(N // parts, config))
        return made[-1]

    actor = actor or Counting(delay, executed)
    handles = [InlineHandle(build) for _ in range(parts)]
    sampler, rollout = EpisodeSampler(spec_of(config), SEED), Rollout.allocate(actor, T, N)
    return Collector(handles, spec_of(config), N // parts, sampler, rollout, SEED, **options), actor, made


def expect(episode: int, steps: int, delay: int) -> Array:
    """Closed form: d steps of holding still, then the chosen actions in their order."""
    chosen = [choose(episode, number) for number in range(steps)]
    return np.array([*[HOLD] * delay, *chosen][:steps], np.float32)


@pytest.mark.parametrize("config", [FakeSimulator.Config(horizon=7), FakeSimulator.Config(horizon=9, success_after=5)])
@pytest.mark.parametrize(("delay", "executed"), CASES)
@pytest.mark.parametrize("parts", [1, 2])
def test_actions_are_executed_d_steps_late(config: FakeSimulator.Config, delay: int, executed: int, parts: int) -> None:
    """Over two rollouts, and episodes that end within a chunk; the policy gets the actions of the inference."""
    collector, actor, simulators = make(delay, executed, config, parts)
    collector.collect(actor)
    collector.collect(actor)
    episodes = {index: steps for simulator in simulators for index, steps in simulator.executed.items()}
    assert len(episodes) > N
    for index, actions in episodes.items():
        np.testing.assert_array_equal(np.array(actions), expect(index, len(actions), delay))
    if not delay:
        return
    for (index, decision), (prefix, committed) in [*actor.committed.items(), *actor.valued.items()]:
        begin = decision * executed
        np.testing.assert_array_equal(prefix, expect(index, begin + delay, delay)[begin:])
        assert committed == (delay if decision else 0)
    assert actor.valued.keys() - actor.committed.keys(), "values of last and of final observations"


def test_a_new_episode_of_a_fresh_rollout_starts_with_an_empty_queue() -> None:
    collector, actor, (simulator,) = make(2, 2, FakeSimulator.Config(horizon=7), fresh=True)
    for _ in range(3):
        collector.collect(actor)
    assert len(simulator.executed) == 3 * N
    for index, actions in simulator.executed.items():
        np.testing.assert_array_equal(np.array(actions), expect(index, len(actions), 2))


@pytest.mark.parametrize(("delay", "executed"), [case for case in CASES if case[0]])
def test_evaluations_execute_the_same(delay: int, executed: int) -> None:
    """The executor of evaluations and robots requests chunks with the same prefixes, and executes the same actions."""
    spec, random = spec_of(FakeSimulator.Config()), np.random.default_rng(0)
    queue, column = ActionQueue(spec, 1, delay), np.zeros(1, np.int64)
    episode = DelayedEpisode.begin(Delay(delay, "prefix", executed, delay + executed, make_hold(spec)), spec)
    for _ in range(9):
        chosen = random.uniform(-1, 1, (executed, 2)).astype(np.float32)
        request, told = episode.ask(), queue.read(column)
        assert told["committed"].tolist() == [request.committed]
        np.testing.assert_array_equal(told["prefix"][0, : request.committed], request.prefix[: request.committed])
        rest = np.zeros((delay - request.committed, 2), np.float32)  # beyond what the next decision lets stand
        chunk = np.concatenate([request.prefix[: request.committed], chosen, rest])
        actions = stack_actions(episode.execute(request, chunk))
        np.testing.assert_array_equal(queue.push(column, chosen[None])[0], actions)


@pytest.mark.parametrize("delay", [0, 2])
def test_a_loaded_state_keeps_the_queue(delay: int) -> None:
    """In the middle of episodes; the state of a collector without a delay has none."""
    config = FakeSimulator.Config(horizon=11)
    first, actor, _ = make(delay, 2, config)
    first.collect(actor)
    state = first.state()
    assert ("plan/actions" in state) == (delay > 0)
    expected, told = copied(first.collect(actor)), actor.committed
    second, again, simulators = make(delay, 2, config)
    second.load(state)
    assert_equal(copied(second.collect(again)), expected)
    for pair, (prefix, committed) in again.committed.items():
        np.testing.assert_array_equal(prefix, told[pair][0])
        assert committed == told[pair][1]
    begun = {index: 2 * T for index in range(N)}
    for index, actions in simulators[0].executed.items():
        whole = expect(index, begun.get(index, 0) + len(actions), delay)
        np.testing.assert_array_equal(np.array(actions), whole[begun.get(index, 0) % config.horizon :][: len(actions)])


def test_a_state_of_another_delay_is_refused() -> None:
    config = FakeSimulator.Config(horizon=11)
    states = []
    for delay in (0, 1):
        collector, actor, _ = make(delay, 2, config)
        collector.collect(actor)
        states.append(collector.state())
    for state, found in zip(states, ("none", [4, 1, 2]), strict=True):
        with refuses("checkpoint-state-mismatch", found, [4, 2, 2]):
            make(2, 2, config)[0].load(state)


class ActionWriter(Writer):
    """Records the actions of decisions, by episode."""

    final_pictures = False

    def __init__(self) -> None:
        self.actions: dict[int, list[Array]] = {}

    def prepare(self, spec: Any, num_envs: int, executed: int) -> None: ...

    def write_decision(
        self, row: Any, columns: Any, decision: Decision, episodes: list[Episode], observation: Any, keys: Any
    ) -> None:
        for episode, actions in zip(episodes, decision.actions, strict=True):
            self.actions.setdefault(episode.index, []).extend(actions)

    def write_result(self, row: Any, columns: Any, result: Any, rows: Any) -> None: ...

    def lose_episodes(self, row: Any, columns: Any, first_rows: Any) -> None: ...


def test_writers_get_the_actions_that_are_sent_to_the_simulator() -> None:
    writer = ActionWriter()
    collector, actor, _ = make(1, 2, FakeSimulator.Config(horizon=20), writers=[writer])
    collector.collect(actor)
    assert set(writer.actions) == set(range(N))
    for index, actions in writer.actions.items():
        np.testing.assert_array_equal(np.array(actions), expect(index, 2 * T, 1))


@pytest.mark.parametrize(("delay", "executed"), CASES)
def test_only_executed_choices_are_scored(delay: int, executed: int) -> None:
    """Against the enumeration of control steps, with ends within a chunk, a human's steps, and an unknown future."""
    random = np.random.default_rng(executed)
    rollout = Rollout.allocate(Counting(delay, executed), 40, 3)
    rollout.steps[:] = executed
    rollout.source[:] = int(Source.POLICY)
    rollout.source[torch.from_numpy(random.random(rollout.source.shape) < 0.1)] = int(Source.HUMAN)
    ends = torch.from_numpy(random.random(rollout.steps.shape) < 0.3)
    rollout.truncated[:], rollout.terminated[:] = ends, ends & torch.from_numpy(random.random(ends.shape) < 0.5)
    rollout.steps[ends] = torch.from_numpy(random.integers(1, executed + 1, int(ends.sum())))
    for column in range(3):
        line: list[tuple[int, int]] = []  # what is chosen and not executed yet, by row and entry
        expected = np.zeros((40, executed), bool)
        line = [(-1, -1)] * delay
        for row in range(40):
            line += [(row, entry) for entry in range(executed)]
            for step in range(int(rollout.steps[row, column])):
                chosen = line[step]
                if chosen[0] >= 0 and rollout.source[row, column, step] == int(Source.POLICY):
                    expected[chosen] = True
            line = [(-1, -1)] * delay if ends[row, column] else line[executed:]
        for row, entry in line:
            if row >= 0:
                expected[row, entry] = True
        np.testing.assert_array_equal(find_scored(rollout)[:, column], expected)


def flow_actor(delay: int, config: FakeSimulator.Config) -> FlowActor:
    """A small flow policy that executes two of three actions, with large noise, so that some actions are clipped."""
    torch.manual_seed(0)
    spec = replace(spec_of(config), cameras=())
    robot = Embodiment.of_simulator(spec, 2, token_length=4)
    sizes = len(spec.state_names), robot.cameras, robot.image_size, robot.vocabulary_size, 4
    network = Pocket(SMALL, MODEL_DIM, *sizes)
    network.prefix_trained_to = delay
    return FlowActor(network, FlowSDE(3, 0.7, layers="hybrid"), None, robot, delay=delay)


@pytest.mark.parametrize("delay", [0, 1])
def test_a_rollout_holds_the_executed_actions_in_the_model_s_units(delay: int) -> None:
    """Converted to the simulator's units, they are what the simulator received, d control steps later."""
    config = FakeSimulator.Config(horizon=7)
    actor = flow_actor(delay, config)
    collector, _, (simulator,) = make(delay, 2, config, actor=actor)
    rollout = collector.collect(actor)
    assert rollout.actions.shape == (T, N, 2, MODEL_DIM) and rollout.actions.dtype == torch.float32
    assert rollout.valid.all() and rollout.actions.data_ptr() == rollout.trace["actions"].data_ptr()
    chosen: dict[int, list[Array]] = {}
    for row, column in np.ndindex(T, N):
        actions = actor.embodiment.actions(rollout.actions[row, column][None], np.zeros((1, 1)))
        chosen.setdefault(int(rollout.episode[row, column]), []).extend(actions[0])
    clipped = np.concatenate([np.array(each) for each in chosen.values()])
    assert (np.abs(clipped) == 1).any() and (np.abs(clipped) < 1).any()
    for index, received in simulator.executed.items():
        expected = np.array([*[HOLD] * delay, *chosen[index]][: len(received)], np.float32)
        np.testing.assert_array_equal(np.array(received), expected)


def test_actions_of_an_actor_that_does_not_record_them_are_refused() -> None:
    with refuses("actor-without-actions"):
        _ = Rollout.allocate(Counting(0, 2), 4, 2).actions


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"executed": 1}, "policy.executed=2"),
    ({"waits": (0, 3)}, "sim.inference_delay=[0, 3]"),
    ({"hold": None}, "holds still"),
]


@pytest.mark.parametrize(("changed", "named"), REFUSED)
def test_impossible_delays_are_refused(changed: dict[str, Any], named: str) -> None:
    spec = spec_of(FakeSimulator.Config())
    if "hold" in changed:
        spec = replace(spec, **changed)
    given = {"executed": 2, "waits": (0, 0)} | {name: x for name, x in changed.items() if name != "hold"}
    check: Callable[..., None] = check_rollout_delay
    check(0, given["executed"], spec, given["waits"])
    with pytest.raises(UserError, match=re.escape(named)):
        check(2, given["executed"], spec, given["waits"])
    if "hold" in changed:
        with pytest.raises(UserError, match=re.escape(named)):
            ActionQueue(spec, 1, 2)
