"""What every transport promises, checked on each that can be opened here."""

from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.transport.messages import MessageError
from embodied_rl.deployment.transport.opening import has_ros
from embodied_rl.deployment.transport.qos import PROFILES, QoS
from embodied_rl.interfaces.errors import TransportError, UserError
from tests.support.transports import JOINTS, STAND_IN, Pair, list_kinds

KEPT = QoS(depth=50)
STAMP = {"stamp": {"sec": 7, "nanosec": 8}, "frame_id": "base"}
MESSAGES: dict[str, dict[str, Any]] = {
    "sensor_msgs/msg/Image": {
        "header": STAMP,
        "height": 2,
        "width": 1,
        "encoding": "rgb8",
        "step": 3,
        "data": range(6),
    },
    "sensor_msgs/msg/CompressedImage": {"header": STAMP, "format": "jpeg", "data": [255, 216, 255]},
    "sensor_msgs/msg/JointState": {"header": STAMP, "name": ["a", "b"], "position": [1.5, -2.5], "effort": [0.1, 0.2]},
    "std_msgs/msg/Float64MultiArray": {"data": [1.0, 2.0, 3.0]},
    "trajectory_msgs/msg/JointTrajectory": {
        "joint_names": ["a"],
        "points": [{"positions": [1.0], "time_from_start": {"nanosec": 50_000_000}}, {"positions": [2.0]}],
    },
    "geometry_msgs/msg/Twist": {"linear": {"x": 1.0}, "angular": {"z": -2.0}},
    "geometry_msgs/msg/PoseStamped": {"header": STAMP, "pose": {"position": {"y": 0.5}, "orientation": {"w": 1.0}}},
    "rosgraph_msgs/msg/Clock": {"clock": {"sec": 3, "nanosec": 999_999_999}},
    "sensor_msgs/msg/Joy": {"header": STAMP, "axes": [0.5, -1.0], "buttons": [0, 1]},
    "std_msgs/msg/String": {"data": "über"},
    "diagnostic_msgs/msg/DiagnosticArray": {
        "status": [{"level": 2, "name": "arm", "message": "hot", "values": [{"key": "t", "value": "90"}]}]
    },
}


def test_rclpy_is_among_the_transports_that_are_tested() -> None:
    """Itself where it is installed, else its stand-in, and the skip says so."""
    assert list_kinds() == ["in_process", "dds", "rclpy" if has_ros() else STAND_IN]
    if not has_ros():
        pytest.skip("rclpy cannot be imported: it comes with an installation of ROS 2, which is not here")


@pytest.mark.parametrize("reliability", ["reliable", "best_effort"])
def test_messages_arrive_in_order_with_both_times(pair: Pair, reliability: Any) -> None:
    before = pair.talker.now()
    publisher = pair.connect(QoS(reliability, depth=50))
    for step in range(20):
        publisher.publish(pair.joints([step]))
        pair.wait(0.001)
    assert pair.spin_for(20)
    assert [message.position.tolist() for message in pair.got] == [[step] for step in range(20)]
    assert all(before <= source <= received <= pair.listener.now() for received, source in pair.times)
    sources = [source for _, source in pair.times]
    assert sources == sorted(sources) and len(set(sources)) == 20


def test_a_message_says_when_it_was_published_and_when_it_came(pair: Pair) -> None:
    publisher, before = pair.connect(KEPT), pair.talker.now()
    publisher.publish(pair.joints([0]))
    published = pair.talker.now()
    pair.wait(0.2)
    assert pair.spin_for(1)
    ((received_ns, source_ns),) = pair.times
    assert before <= source_ns <= published < received_ns <= pair.listener.now()


@pytest.mark.parametrize("type_name", MESSAGES)
def test_the_messages_of_robots_come_as_they_were_sent(pair: Pair, type_name: str) -> None:
    message = pair.talker.messages.make(type_name, **MESSAGES[type_name])
    pair.listener.create_subscription("/thing", type_name, KEPT, pair.note)
    publisher = pair.talker.create_publisher("/thing", type_name, KEPT)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    publisher.publish(message)
    assert pair.spin_for(1)
    assert repr(pair.got[0]) == repr(message), "every field, its type included"


def test_a_large_image_comes_whole(pair: Pair) -> None:
    picture = np.random.default_rng(0).integers(0, 256, 2160 * 3840 * 3, dtype=np.uint8)  # hundreds of fragments
    make = pair.talker.messages.make
    image = make("sensor_msgs/msg/Image", height=2160, width=3840, encoding="rgb8", step=3840 * 3, data=picture)
    pair.listener.create_subscription("/camera", "sensor_msgs/msg/Image", "sensor_data", pair.note)
    publisher = pair.talker.create_publisher("/camera", "sensor_msgs/msg/Image", "sensor_data")
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    publisher.publish(image)
    assert pair.spin_for(1) and np.array_equal(pair.got[0].data, picture)


def test_two_ends_share_no_memory(pair: Pair) -> None:
    publisher, sent = pair.connect(KEPT), np.ones(3)
    publisher.publish(pair.joints(sent))
    sent[:] = 7
    assert pair.spin_for(1) and pair.got[0].position.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        pair.got[0].position[:] = 0


def test_a_slow_subscription_gets_the_newest(pair: Pair) -> None:
    publisher = pair.connect(QoS(depth=20), QoS(depth=3))
    for step in range(10):
        publisher.publish(pair.joints([step]))
    assert pair.spin_for(3)
    pair.spin_in_vain()
    assert [message.position[0] for message in pair.got] == [7, 8, 9]


def test_a_late_subscription_gets_what_is_latched(pair: Pair) -> None:
    latched = QoS("reliable", "transient_local", depth=2)
    publisher = pair.talker.create_publisher("/status", JOINTS, latched)
    for step in range(5):
        publisher.publish(pair.joints([step]))
    pair.listener.create_subscription("/status", JOINTS, latched, pair.note)
    assert pair.spin_for(2)
    publisher.publish(pair.joints([5]))
    assert pair.spin_for(3)
    assert [message.position[0] for message in pair.got] == [3, 4, 5]


def test_a_late_subscription_that_asks_for_nothing_latched_gets_none(pair: Pair) -> None:
    publisher = pair.talker.create_publisher("/status", JOINTS, "latched")
    publisher.publish(pair.joints([0]))
    pair.listener.create_subscription("/status", JOINTS, QoS(), pair.note)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    pair.spin_in_vain()
    assert pair.got == []


def test_what_is_latched_goes_with_its_publisher(pair: Pair) -> None:
    publisher = pair.talker.create_publisher("/status", JOINTS, "latched")
    publisher.publish(pair.joints([0]))
    publisher.close()
    publisher.close()
    pair.listener.create_subscription("/status", JOINTS, "latched", pair.note)
    pair.spin_in_vain()
    assert pair.got == []
    with pytest.raises(TransportError, match="/status: this publisher is closed"):
        publisher.publish(pair.joints([1]))


def test_old_commands_are_not_delivered(pair: Pair) -> None:
    publisher = pair.connect(QoS(lifespan_s=0.05), QoS())
    publisher.publish(pair.joints([0]))
    pair.wait(0.5)
    pair.spin_in_vain()
    assert pair.got == []


@pytest.mark.parametrize(
    ("offered", "requested", "words"),
    [
        (QoS("best_effort"), QoS("reliable"), "offers best_effort, the subscription requests reliable"),
        (QoS(), QoS(durability="transient_local"), "offers volatile, the subscription requests transient_local"),
    ],
)
def test_incompatible_ends_are_told(pair: Pair, offered: QoS, requested: QoS, words: str) -> None:
    subscription = pair.listener.create_subscription("/camera", JOINTS, requested, pair.note)
    publisher = pair.talker.create_publisher("/camera", JOINTS, offered)
    (fault,) = pair.faults_of(subscription)
    assert fault.startswith("/camera: no message arrives") and words in fault
    assert publisher.find_faults() == (fault,)
    publisher.publish(pair.joints([0]))
    pair.spin_in_vain()
    assert pair.got == [] and subscription.count_matched() == publisher.count_matched() == 0


def test_ends_of_different_types_are_told(pair: Pair) -> None:
    subscription = pair.listener.create_subscription("/arm", "std_msgs/msg/String", KEPT, pair.note)
    publisher = pair.talker.create_publisher("/arm", JOINTS, KEPT)
    fault = f"/arm: the publisher's type is {JOINTS}, the subscription's std_msgs/msg/String"
    assert pair.faults_of(subscription) == (fault,) == publisher.find_faults()
    publisher.publish(pair.joints([0]))
    pair.spin_in_vain()
    assert pair.got == []


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_meets_itself(pair: Pair, name: str) -> None:
    publisher = pair.connect(name)
    publisher.publish(pair.joints([1]))
    assert pair.spin_for(1)
    assert publisher.find_faults() == ()


def test_a_second_publisher_is_seen(pair: Pair) -> None:
    mine = pair.talker.create_publisher("/command", JOINTS, "command")
    assert [each.gid for each in pair.talker.list_publishers("/command")] == [mine.gid]
    theirs = pair.listener.create_publisher("/command", JOINTS, "command")
    seen = lambda: {each.gid: each.own for each in pair.talker.list_publishers("/command")}  # noqa: E731
    assert len(seen()) == 2 or pair.talker.spin_until(lambda: len(seen()) == 2, 30)
    assert seen() == {mine.gid: True, theirs.gid: False}
    nodes = lambda: [each.node for each in mine.find_rivals()]  # noqa: E731
    assert nodes() == ["/listener"] or pair.talker.spin_until(lambda: nodes() == ["/listener"], 30)
    assert [each.gid for each in mine.find_rivals()] == [theirs.gid]
    theirs.close()
    assert len(seen()) == 1 or pair.talker.spin_until(lambda: len(seen()) == 1, 30)
    assert mine.find_rivals() == ()


def test_both_publishers_reach_a_subscription(pair: Pair) -> None:
    first = pair.connect(KEPT)
    second = pair.listener.create_publisher("/joints", JOINTS, KEPT)
    assert second.count_matched() or pair.listener.spin_until(lambda: second.count_matched() == 1, 30)
    for step in range(3):
        first.publish(pair.joints([step]))
        second.publish(pair.joints([10 + step]))
    assert pair.spin_for(6)
    came = [message.position[0] for message in pair.got]
    assert [each for each in came if each < 10] == [0, 1, 2] and [each for each in came if each >= 10] == [10, 11, 12]


def test_a_topic_of_nobody_is_empty(pair: Pair) -> None:
    subscription = pair.listener.create_subscription("/nobody", JOINTS, KEPT, pair.note)
    pair.spin_in_vain()
    assert pair.listener.list_publishers("/nobody") == () and subscription.find_faults() == ()
    assert [each.own for each in pair.listener.list_subscriptions("/nobody")] == [True]


@pytest.mark.parametrize("topic", ["joints", "", "/", "/a//b", "/a/", "/1a", "/a b", "/~/a", "/a__b", "/" + "a" * 300])
def test_a_name_that_is_no_topic_is_refused(pair: Pair, topic: str) -> None:
    with pytest.raises(UserError, match="is no topic: write its full name"):
        pair.talker.create_publisher(topic, JOINTS, KEPT)


@pytest.mark.parametrize(
    ("type_name", "words"),
    [
        ("sensor_msgs/msg/JointStates", "did you mean sensor_msgs/msg/JointState"),
        ("JointState", "is no type of message: write it as"),
        ("os/path", "is no type of message: write it as"),
        ("made_up/msg/Thing", "is no type of message that ROS 2 jazzy brings"),
    ],
)
def test_an_unknown_type_is_refused(pair: Pair, type_name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        pair.listener.create_subscription("/a", type_name, KEPT, pair.note)


def test_an_unknown_profile_is_refused(pair: Pair) -> None:
    with pytest.raises(UserError, match="qos='camera' is no profile: choose one of sensor_data, state"):
        pair.listener.create_subscription("/a", JOINTS, "camera", pair.note)


def test_a_message_of_another_type_is_refused(pair: Pair) -> None:
    publisher = pair.connect(KEPT)
    with pytest.raises(MessageError, match=f"a message of {JOINTS} was expected, and std_msgs/msg/String was given"):
        publisher.publish(pair.talker.messages.make("std_msgs/msg/String"))


def test_bytes_come_as_they_are_where_they_are_asked_for(pair: Pair) -> None:
    pair.listener.create_subscription("/joints", JOINTS, KEPT, pair.note, raw=True)
    publisher = pair.talker.create_publisher("/joints", JOINTS, KEPT)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    raw = pair.talker.messages.encode(JOINTS, pair.joints([1.0, 2.0]))
    publisher.send(raw)
    assert pair.spin_for(1) and pair.got == [raw]


def test_a_callback_that_fails_is_heard(pair: Pair) -> None:
    def fail(*_: object) -> None:
        raise KeyError("arm")

    publisher = pair.talker.create_publisher("/joints", JOINTS, KEPT)
    pair.listener.create_subscription("/joints", JOINTS, KEPT, fail)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    publisher.publish(pair.joints([0]))
    with pytest.raises(KeyError, match="arm"):
        pair.listener.spin_until(lambda: False, 30)


def test_a_closed_subscription_is_silent(pair: Pair) -> None:
    publisher = pair.talker.create_publisher("/joints", JOINTS, KEPT)

    def once(*of: Any) -> None:
        pair.note(*of)
        subscription.close()

    subscription = pair.listener.create_subscription("/joints", JOINTS, KEPT, once)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    publisher.publish(pair.joints([0]))
    publisher.publish(pair.joints([1]))
    assert pair.spin_for(1)
    pair.spin_in_vain()
    assert len(pair.got) == 1
    assert publisher.count_matched() == 0 or pair.listener.spin_until(lambda: publisher.count_matched() == 0, 30)


def test_a_closed_node_says_so(pair: Pair) -> None:
    pair.talker.close()
    pair.talker.close()
    for use in (
        lambda: pair.talker.create_publisher("/a", JOINTS, KEPT),
        lambda: pair.talker.create_subscription("/a", JOINTS, KEPT, pair.note),
        lambda: pair.talker.spin_once(),
    ):
        with pytest.raises(TransportError, match="talker is closed"):
            use()
