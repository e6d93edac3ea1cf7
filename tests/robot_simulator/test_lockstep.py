"""In lockstep a robot behind topics is the simulator behind it: the same observations, results and evaluations."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from embodied_rl.assembly.loaded import load_policy
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate_policy
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, Simulator, Source, StepResult
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl.runtime.processes.local import wrap_simulator
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode
from embodied_rl.schema.untrusted_settings import check_file
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig

POLICY = "asset:tabletop_careful.safetensors"


def draw_chunks(seed: int, length: int) -> Iterator[Array]:
    """Random chunks within the actions' range."""
    random = np.random.default_rng(seed)
    while True:
        yield (random.uniform(-1, 1, (1, length, 4)) * [0.03, 0.03, 0.03, 1]).astype(np.float32)


def compare(ours: StepResult, theirs: StepResult) -> None:
    """A result over topics equals the simulator's own."""
    for name in ("reward", "success", "steps", "source", "terminated", "truncated", "ended", "failures"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
    used = int(theirs.steps[0])
    assert ours.executed[0, :used] == pytest.approx(theirs.executed[0, :used], abs=1e-6)
    for mine, other in (
        (ours.observation, theirs.observation),
        (ours.final_observation, theirs.final_observation),
    ):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine.state.tobytes() == other.state.tobytes()
            assert mine.images["front"].tobytes() == other.images["front"].tobytes()
            assert mine.instruction == other.instruction


@pytest.mark.parametrize(("length", "split"), [(1, "train"), (8, "train"), (3, "vision"), (7, "execution")])
def test_results_are_those_of_the_simulator_to_the_bit(robot: RobotSimulator, length: int, split: str) -> None:
    simulator = Tabletop(TabletopConfig(), 1)
    episodes = [Episode(5 + task, task, 30 + task, split=split, final_picture=True) for task in (0, 4, 4, 6)]
    assert robot.reset(episodes[:1]).state.tobytes() == simulator.reset(episodes[:1]).state.tobytes()
    chunks = draw_chunks(3, length)
    following: Sequence[Episode | None] = [*episodes[1:], None]
    for after in following:
        while True:
            chunk = next(chunks)
            theirs = simulator.step(chunk, [after])
            compare(robot.step(chunk, [after]), theirs)
            if len(theirs.ended):
                break


def test_actions_beyond_their_range_are_executed_as_the_simulator_does(robot: RobotSimulator) -> None:
    simulator, episode = Tabletop(TabletopConfig(), 1), Episode(0, 1, 4)
    robot.reset([episode]), simulator.reset([episode])
    for chunk, _ in zip(draw_chunks(5, 4), range(4), strict=False):
        compare(robot.step(3 * chunk, [episode]), simulator.step(3 * chunk, [episode]))


def test_a_parked_robot_does_nothing(robot: RobotSimulator) -> None:
    robot.reset([None])
    result = robot.step(np.zeros((1, 4, 4), np.float32), [None])
    assert result.steps[0] == 0 and not len(result.ended) and (result.source == Source.HOLD).all()


class Noting:
    """A simulator whose executed actions are kept."""

    def __init__(self, simulator: Simulator) -> None:
        self.simulator, self.spec, self.executed = simulator, simulator.spec, list[Array]()

    def __getattr__(self, name: str):
        return getattr(self.simulator, name)

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        result = self.simulator.step(actions, next_episodes)
        self.executed.append(result.executed[0, : result.steps[0]].copy())
        return result


@pytest.mark.thorough
def test_an_evaluation_through_the_robot_is_the_simulators_own(robot: RobotSimulator) -> None:
    policy, simulators = load_policy(POLICY).actor, [Noting(Tabletop(TabletopConfig(), 1)), Noting(robot)]
    episodes = enumerate_episodes(robot.spec, "eval", 5)
    own, ours = (
        evaluate_policy(policy, [wrap_simulator(each)], robot.spec, episodes, 0, 1, None)  # type: ignore[arg-type]
        for each in simulators
    )
    assert ours == own and sum(each.success for each in own) > 0
    mine, theirs = (np.concatenate(each.executed) for each in simulators)
    assert mine.shape == theirs.shape and np.abs(mine - theirs).max() <= 1e-6


def test_its_spec_is_the_robots_without_what_only_a_simulator_knows(robot: RobotSimulator) -> None:
    kind = SimulatorKind.find(SimNode("robot", num_envs=1))
    assert kind.spec == robot.spec and not kind.spec.can_snapshot and kind.spec.privileged_names == ()
    assert kind.spec.body == Tabletop.spec_of(TabletopConfig()).body and kind.limit_environments(16) == 1
    assert SimulatorKind.find(SimNode("tabletop")).limit_environments(16) == 16
    with pytest.raises(NotImplementedError):
        robot.snapshot()


def test_chunks_of_another_length_wait_for_the_next_episode(robot: RobotSimulator) -> None:
    robot.reset([Episode(0, 0, 1)])
    robot.step(np.zeros((1, 2, 4), np.float32), [None])
    with pytest.raises(UserError, match="Use chunks of one length"):
        robot.step(np.zeros((1, 3, 4), np.float32), [None])
    robot.reset([Episode(1, 0, 1)])
    assert robot.step(np.zeros((1, 3, 4), np.float32), [None]).steps[0] == 3


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"lockstep": False}, "sim.transport=dds"),
        ({"simulator": None}, "sim.transport=dds"),
        ({"simulator": None, "transport": "dds"}, "sim.lockstep=false and its instructions"),
        ({"tasks": ("lift",)}, "tabletop has its own tasks"),
        ({"transport": "dds", "human": "scripted"}, "sim.human=scripted"),
        ({"patience": 0.0}, "sim.patience"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(keys: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        RobotSimulatorConfig(**keys)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"simulated": {"image_size": 32}}, "does not simulate robot=tabletop"),
        ({"simulator": "robot"}, "choose the robot"),
        ({"robot": "tabletopp"}, "tabletop"),
        ({"simulated": {"imagesize": 32}}, "imagesize"),
    ],
)
def test_a_robot_that_nobody_simulates_is_refused(keys: dict, words: str) -> None:
    with pytest.raises(UserError) as caught:
        RobotSimulator.spec_of(RobotSimulatorConfig(**keys))
    assert words in str(caught.value)


def test_there_is_one_robot() -> None:
    with pytest.raises(UserError, match=r"sim\.num_envs=1"):
        RobotSimulator(RobotSimulatorConfig(), 2)


@pytest.mark.parametrize("key", ["robot", "transport", "simulator", "simulated", "deadman"])
def test_a_file_does_not_choose_the_robot_that_moves(key: str) -> None:
    """Not even between robots: what is not the default must be typed."""
    said = {"robot": "arm.yaml", "transport": "dds", "simulator": "gymnasium", "deadman": False}
    value = said.get(key, {"package": "evil"})
    with pytest.raises(UserError, match=f"sim.{key}"):
        check_file(SimNode, {"name": "robot", key: value}, "a policy file", where="sim")
    check_file(SimNode, {"name": "robot", key: value}, "a policy file", typed=[f"sim.{key}"], where="sim")
