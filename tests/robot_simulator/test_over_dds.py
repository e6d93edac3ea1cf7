"""A robot in another process as a simulator: in lockstep, in real time, and one that a human attends."""

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.sim import Episode, Source
from embodied_rl.robot_simulator.settings import RobotSimulatorConfig
from embodied_rl.robot_simulator.simulator import RobotSimulator
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.ready_line import start_until_ready
from tests.support.refusals import refuses
from tests.support.transports import borrow_domain

pytestmark = pytest.mark.thorough
READY = r"The robot tabletop is simulated in .*; Ctrl-C ends it\."
MOVE = np.tile(np.float32([0.0, 0.004, 0.0, 1.0]), (1, 3, 1))


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    with borrow_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        yield domain


@pytest.mark.process
@pytest.mark.usefixtures("domain")
def test_in_lockstep_over_a_network_it_is_the_simulator() -> None:
    config = RobotSimulatorConfig(transport="dds", simulated={"horizon": 6}, patience=60)
    simulator = Tabletop(TabletopConfig(horizon=6), 1)
    episodes = [Episode(4, 1, 9), Episode(5, 6, 10)]
    with start_until_ready(["robot", "robot=tabletop", "lockstep=true", "sim.horizon=6"], READY):
        robot = RobotSimulator(config, 1)
        try:
            assert robot.reset(episodes[:1]).state.tobytes() == simulator.reset(episodes[:1]).state.tobytes()
            for after in (None, episodes[1], None, None):
                ours, theirs = robot.step(MOVE, [after]), simulator.step(MOVE, [after])
                assert ours.observation.state.tobytes() == theirs.observation.state.tobytes()
                assert ours.observation.images["front"].tobytes() == theirs.observation.images["front"].tobytes()
                assert np.array_equal(ours.steps, theirs.steps) and np.array_equal(ours.truncated, theirs.truncated)
                assert ours.executed == pytest.approx(theirs.executed, abs=1e-6) and ours.failures == theirs.failures
        finally:
            robot.close()


@pytest.mark.process
@pytest.mark.usefixtures("domain")
def test_in_real_time_it_says_what_was_executed() -> None:
    config = RobotSimulatorConfig(transport="dds", lockstep=False, deadman=False, patience=60)
    with start_until_ready(["robot", "robot=tabletop"], READY):
        robot = RobotSimulator(config, 1)
        try:
            before = robot.reset([Episode(4, 1, 9)])
            results = [robot.step(MOVE, [Episode(5, 1, 9)]) for _ in range(4)]
            while (
                len(results) < 400
                and not (  # held up, it may have executed next to nothing
                    any((each.source[0, : each.steps[0]] == Source.POLICY).any() for each in results)
                    and max(each.observation.state[0, 1] for each in results) > before.state[0, 1]
                )
            ):
                results.append(robot.step(MOVE, [Episode(5, 1, 9)]))
        finally:
            robot.close()
    assert before.instruction == results[0].observation.instruction != ("",)
    sources = np.concatenate([each.source[0, : each.steps[0]] for each in results])
    executed = np.concatenate([each.executed[0, : each.steps[0]] for each in results])
    assert (sources == Source.POLICY).any() and not (sources == Source.HUMAN).any()
    assert executed[sources == Source.POLICY][:, 1] == pytest.approx(0.004, abs=1e-3)
    moved = max(each.observation.state[0, 1] for each in results) - before.state[0, 1]
    assert moved > 0, "the tool has moved to its left"


class Attendant(threading.Thread):
    """A human who presses the button for run when a scene is asked for, and says how it went."""

    def __init__(self, domain: int, label: str) -> None:
        super().__init__(daemon=True)
        self.domain, self.label, self.ended = domain, label, threading.Event()
        self.acts = threading.Event()

    def run(self) -> None:
        with open_transport("dds", "human", RosEnvironment(domain=self.domain, range="LOCALHOST")) as node:
            joy = node.create_publisher("/teleop", "sensor_msgs/msg/Joy", "sensor_data")
            label = node.create_publisher("/label", "std_msgs/msg/String", "command")
            down = False
            while not self.ended.wait(0.05):
                down = not down
                buttons = np.zeros(11, np.int32)
                buttons[5] = down and not self.acts.is_set()
                joy.publish(node.messages.make("sensor_msgs/msg/Joy", axes=np.zeros(5, np.float32), buttons=buttons))
                if self.acts.is_set():
                    label.publish(node.messages.make("std_msgs/msg/String", data=self.label))
                node.spin_once(0.01)


@pytest.mark.process
@pytest.mark.parametrize(("label", "success", "truncated"), [("success", True, False), ("abort", False, True)])
def test_a_human_begins_and_ends_the_episodes_of_a_robot_that_nobody_simulates(
    domain: int, label: str, success: bool, truncated: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    config = RobotSimulatorConfig(
        transport="dds", lockstep=False, simulator=None, tasks=("push it",), deadman=False, attend=60, patience=60
    )
    human = Attendant(domain, label)
    human.start()
    with start_until_ready(["robot", "robot=tabletop"], READY):
        robot = RobotSimulator(config, 1)
        try:
            assert robot.spec.tasks[0].name == "push it" and not robot.spec.seeded
            assert robot.reset([Episode(0, 0, 0)]).instruction == ("push it",)
            first = robot.step(MOVE, [None])
            human.acts.set()
            while not len(first.ended):
                first = robot.step(MOVE, [None])
        finally:
            human.ended.set()
            robot.close()
    human.join()
    assert "Set up the scene for: push it. Then press the button for run." in capsys.readouterr().out
    assert first.success[0].any() == success == bool(first.reward.sum()) and first.truncated[0] == truncated
    assert first.failures == (("",) if success else ("aborted by the operator",))


@pytest.mark.process
@pytest.mark.usefixtures("domain")
def test_a_robot_that_is_not_there_is_missed_in_words() -> None:
    with refuses("topic-without-publisher"):
        RobotSimulator(RobotSimulatorConfig(transport="dds", patience=0.5), 1)
