"""The simulated robot over DDS on the loopback interface, as the commands of a process beside it would see it."""

from collections.abc import Iterator

import numpy as np
import pytest

from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.sim import Episode
from embodied_rl.simulated_robot.node import RobotSettings, SimulatedRobot
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from embodied_rl_sims.tabletop.servo import TabletopServo
from tests.support.tabletop_robot import HZ, TYPES, Peer, describe_tabletop
from tests.support.transports import borrow_environment

MEASURED = [topic for topic in TYPES if topic not in ("/instruction", "/simulation/outcome", "/simulation/status")]


@pytest.fixture
def connected() -> Iterator[tuple[SimulatedRobot, Peer]]:
    with (
        borrow_environment() as environment,
        open_transport("dds", "robot", environment) as node,
        open_transport("dds", "bridge", environment) as other,
    ):
        robot = SimulatedRobot(TabletopServo(TabletopConfig()), describe_tabletop(), node, RobotSettings(lockstep=True))
        peer = Peer(other)
        peer.wait_until(robot.node, peer.is_matched)
        yield robot, peer
        robot.close()


def test_an_episode_in_lockstep_is_the_simulator_s_to_the_bit(connected: tuple[SimulatedRobot, Peer]) -> None:
    robot, peer = connected
    episode = Episode(3, 6, 11, final_picture=True)
    simulator = Tabletop(TabletopConfig(), 1)
    observation = simulator.reset([episode])
    operator = simulator.expert()
    peer.ask(index=3, task=6, seed=11)
    while True:
        assert peer.wait_until(robot.node, lambda: all(peer.of(topic) for topic in MEASURED)), "one of each topic"
        assert peer.state.tobytes() == observation.state[0].tobytes()
        assert peer.picture.tobytes() == observation.images["front"][0].tobytes()
        assert len({str(peer.of(topic)[-1].header.stamp) for topic in MEASURED if topic != "/clock"}) == 1
        if peer.texts("/simulation/outcome"):
            break
        action = operator()[0]
        result = simulator.step(action[None, None], [None])
        observation = result.observation if result.final_observation is None else result.final_observation
        peer.forget(MEASURED)
        peer.command(action.astype(np.float64) * [HZ, HZ, HZ, 1])
    peer.wait_until(robot.node, lambda: bool(peer.texts("/simulation/outcome")))
    (outcome,) = peer.texts("/simulation/outcome")
    assert outcome["success"] and outcome["index"] == 3 and len(result.ended) == 1


def test_who_comes_later_gets_what_is_repeated_and_what_is_latched(connected: tuple[SimulatedRobot, Peer]) -> None:
    robot, peer = connected
    robot.begin(Episode(0, 2, 5))
    assert peer.wait_until(robot.node, lambda: bool(peer.of("/instruction")))
    late = Peer(peer.node)
    assert late.wait_until(robot.node, lambda: bool(late.of("/instruction")))
    assert late.of("/instruction")[-1].data == robot.robot.instruction
    assert late.wait_until(robot.node, lambda: robot.repeat() or bool(late.of("/camera/front/image_raw")))
    assert late.picture.tobytes() == robot.robot.take_pictures()["front"].tobytes()


def test_a_restarted_node_leaves_the_network_and_comes_back_as_others(
    connected: tuple[SimulatedRobot, Peer],
) -> None:
    robot, peer = connected
    listed = lambda: {each.gid for each in peer.node.list_publishers("/joint_states")}  # noqa: E731
    before = listed()
    peer.ask(index=1)
    assert peer.wait_until(robot.node, lambda: bool(peer.of("/joint_states")))
    peer.break_it(restart=0.5)
    assert peer.wait_until(robot.node, lambda: robot.run_slow_tasks() or not listed())
    peer.forget(MEASURED)
    assert peer.wait_until(robot.node, lambda: robot.run_slow_tasks() or (bool(listed()) and peer.is_matched()))
    assert not listed() & before and robot.episode is None
    peer.ask(index=2, task=3)
    assert peer.wait_until(robot.node, lambda: bool(peer.of("/joint_states")))
    assert robot.episode == Episode(2, 3, 0)
