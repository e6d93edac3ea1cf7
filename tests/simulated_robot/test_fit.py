"""A description of another robot than the one that is simulated is refused in words."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from embodied_rl.deployment.robots.description import CameraEntry, RobotDescription, StateEntry, Term
from embodied_rl.interfaces.errors import UserError
from embodied_rl.simulated_robot.checks import check_fit
from embodied_rl_sims.tabletop import TabletopConfig
from embodied_rl_sims.tabletop.servo import TabletopServo
from tests.support.tabletop_robot import Bench, describe_tabletop


@pytest.fixture(scope="module")
def robot() -> TabletopServo:
    return TabletopServo(TabletopConfig())


def change(what: RobotDescription, **changes: Any) -> RobotDescription:
    return replace(what, **changes)


def with_topic(what: RobotDescription, key: str, **changes: Any) -> RobotDescription:
    return replace(what, topics={**what.topics, key: replace(what.topics[key], **changes)})


WRONG: dict[str, tuple[Callable[[RobotDescription], RobotDescription], str]] = {
    "rate": (lambda d: change(d, control_hz=10.0), "its control_hz are 10.0, those of the simulator 12.5"),
    "picture": (lambda d: change(d, cameras=(CameraEntry("front", "front", 128, 128),)), "its cameras are"),
    "camera": (lambda d: change(d, cameras=(CameraEntry("wrist", "front", 64, 64),)), "its cameras are"),
    "state": (lambda d: change(d, state=d.state[:-1]), "its state_names are"),
    "action": (lambda d: change(d, actions=(replace(d.actions[0], name="x"), *d.actions[1:])), "its action_names are"),
    "unit": (
        lambda d: change(d, actions=(replace(d.actions[0], action_low=-30.0), *d.actions[1:])),
        "its action_low are (-30.0",
    ),
    "joint": (
        lambda d: change(
            d, state=(*d.state[:3], StateEntry("gripper_width", "m", (Term("joints", "position[left]"),)), *d.state[4:])
        ),
        "reads the joint left, which the simulated robot does not have; it has joint1",
    ),
    "pose": (lambda d: with_topic(d, "tool", name="/wrist_pose"), "a simulated robot does not publish /wrist_pose"),
    "type": (
        lambda d: with_topic(d, "front", type_name="sensor_msgs/msg/CompressedImage"),
        "does not publish /camera/front/image_raw (sensor_msgs/msg/CompressedImage)",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_robot_is_refused_in_words(robot: TabletopServo, what: str) -> None:
    changed, words = WRONG[what]
    with pytest.raises(UserError) as caught:
        check_fit(changed(describe_tabletop()), robot)
    assert words in str(caught.value) and "robot=tabletop" in str(caught.value)


def test_commands_of_another_kind_are_obeyed(make_bench: Callable[..., Bench]) -> None:
    """A forward command in another order, as the description says."""
    command = replace(describe_tabletop().command, order=("gripper", "z", "y", "x"))
    bench = make_bench(lockstep=False, description=describe_tabletop(command=command))
    bench.peer.ask()
    bench.run(0.016)
    bench.run(0.4, [1.0, 0.0, 0.0, 0.1])
    commanded = bench.peer.of("/commanded_pose")
    assert commanded[-1].pose.position.x - commanded[0].pose.position.x == pytest.approx(0.04, abs=1e-3)
