"""State from messages by joint names, and digests that detect repeated messages."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.robots.description import RobotDescription
from embodied_rl.deployment.robots.fields import UnusableMessageError
from embodied_rl.deployment.robots.mapping import ObservationMapping, digest_content, make_stream, read_stamp
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.messages import Messages
from tests.support.robots import JOINTS, make_tabletop_messages

MESSAGES = Messages()
ROBOT = load_robot("tabletop")
HEADER = "std_msgs/msg/Header"
STAMP = {"stamp": {"sec": 5, "nanosec": 7}}


def name_joints(*names: str, count: int | None = None) -> Any:
    values = np.arange(len(names) if count is None else count, dtype=float)
    return MESSAGES.make("sensor_msgs/msg/JointState", name=list(names), position=values)


def read_with(robot: RobotDescription = ROBOT, **messages: Any) -> Any:
    return ObservationMapping(robot).read_state(make_tabletop_messages(MESSAGES) | messages)


def test_the_state_is_the_simulator_s() -> None:
    state = read_with()
    assert state.dtype == np.float64
    assert np.array_equal(state, [0.5, 0.1, 0.2, 0.011 + 0.013, 0.53 - 0.5, 0.1 - 0.1, 0.17 - 0.2])


def test_joints_are_found_by_name_in_any_order() -> None:
    mapping = ObservationMapping(ROBOT)
    messages = make_tabletop_messages(MESSAGES)
    for names in ((*JOINTS, "finger1", "finger2"), ("finger2", "other", "finger1")):
        messages["joints"] = name_joints(*names)
        assert mapping.read_state(messages)[3] == names.index("finger1") + names.index("finger2")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ({"joints": name_joints("finger1")}, "/joint_states: finger2 is not one of its joints: finger1"),
        ({"joints": name_joints("finger1", "finger2", "finger1")}, "/joint_states: finger1 is listed 2 times"),
        ({"joints": name_joints("finger1", "finger2", count=1)}, "1 entries; that of finger2 is missing"),
        ({"joints": name_joints("finger1", "finger2", count=0)}, "position has 0 entries"),
        ({"joints": name_joints()}, "it has none"),
        ({"joints": None}, "/joint_states: no message received"),
    ],
)  # fmt: skip
def test_missing_and_repeated_joints_are_refused(messages: dict[str, Any], words: str) -> None:
    with pytest.raises(UnusableMessageError, match=words):
        read_with(**messages)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_non_finite_numbers_are_refused(value: float) -> None:
    pose = MESSAGES.make("geometry_msgs/msg/PoseStamped")
    pose.pose.position.y = value
    with pytest.raises(UnusableMessageError, match=r"/tool_pose: pose.position.y is -?(nan|inf)"):
        read_with(tool=pose)


def test_factors_and_sums() -> None:
    terms = ROBOT.state[3].terms
    state = (replace(ROBOT.state[3], terms=(replace(terms[0], scale=1000.0), replace(terms[1], scale=-1.0))),)
    assert read_with(replace(ROBOT, state=state))[0] == pytest.approx(11 - 0.013)


def test_topics_of_an_observation() -> None:
    mapping = ObservationMapping(ROBOT)
    assert mapping.state_topics == ("tool", "joints", "commanded") and mapping.picture_topics == ("front",)
    assert mapping.topics == ("tool", "joints", "commanded", "front", "front_info")
    picture = mapping.read_pictures(make_tabletop_messages(MESSAGES))["front"]
    assert picture.shape == (64, 64, 3) and picture.flags.writeable


def test_a_repeated_message_has_the_same_digest_with_any_stamp() -> None:
    for message in make_tabletop_messages(MESSAGES).values():
        again = MESSAGES.decode(message.__msgtype__, MESSAGES.encode(message.__msgtype__, message))
        assert digest_content(again) == digest_content(message)
        stamped = replace(again, header=MESSAGES.make(HEADER, **STAMP))
        assert digest_content(stamped) == digest_content(message)
        assert read_stamp(message) is None and read_stamp(stamped) == 5_000_000_007


@pytest.mark.parametrize(
    ("topic", "change"),
    [
        ("joints", lambda message: message.position.__setitem__(8, 0.0130001)),
        ("joints", lambda message: message.name.__setitem__(0, "elbow")),
        ("joints", lambda message: message.velocity.__setitem__(0, 1e-9)),
        ("tool", lambda message: setattr(message.pose.orientation, "w", 1.0)),
        ("front", lambda message: message.data.__setitem__(64 * 64, 7)),
        ("front", lambda message: setattr(message, "encoding", "bgr8")),
    ],
)
def test_any_other_content_has_another_digest(topic: str, change: Callable[[Any], None]) -> None:
    message = make_tabletop_messages(MESSAGES)[topic]
    before = digest_content(message)
    change(message)
    assert digest_content(message) != before and len(before) == 16


def test_a_stream_has_the_sensor_s_stamp_if_there_is_one() -> None:
    message = make_tabletop_messages(MESSAGES)["tool"]
    assert make_stream(message, 11, 2.0).source_ns == 11
    stream = make_stream(replace(message, header=MESSAGES.make(HEADER, **STAMP)), 11, 2.0)
    assert (stream.source_ns, stream.received_s) == (5_000_000_007, 2.0)
    assert stream.digest == digest_content(message)
