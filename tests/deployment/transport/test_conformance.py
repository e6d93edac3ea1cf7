"""Requirements on every transport, checked on each that can be opened here."""

from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.transport.messages import MessageError
from embodied_rl.deployment.transport.qos import PROFILES, QoS
from embodied_rl.interfaces.errors import TransportError
from tests.support.refusals import refuses
from tests.support.transports import JOINTS, Pair

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


@pytest.mark.parametrize("reliability", ["reliable", "best_effort"])
def test_messages_arrive_in_order_with_both_times(pair: Pair, reliability: Any) -> None:
    before = pair.talker.now()
    publisher = pair.connect(QoS(reliability, depth=50))
    for step in range(20):
        publisher.publish(pair.joints([step]))
        pair.wait(0.001)
    published = pair.talker.now()
    pair.wait(0.2)
    assert pair.spin_for(20)
    assert [message.position.tolist() for message in pair.got] == [[step] for step in range(20)]
    assert all(before <= source <= published < received <= pair.listener.now() for received, source in pair.times)
    sources = [source for _, source in pair.times]
    assert sources == sorted(sources) and len(set(sources)) == 20


@pytest.mark.parametrize("type_name", MESSAGES)
def test_messages_arrive_unchanged(pair: Pair, type_name: str) -> None:
    message = pair.talker.messages.make(type_name, **MESSAGES[type_name])
    pair.listener.create_subscription("/thing", type_name, KEPT, pair.note)
    publisher = pair.talker.create_publisher("/thing", type_name, KEPT)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    publisher.publish(message)
    assert pair.spin_for(1)
    assert repr(pair.got[0]) == repr(message), "every field, its type included"


def test_a_large_image_arrives_complete(pair: Pair) -> None:
    picture = np.random.default_rng(0).integers(0, 256, 2160 * 3840 * 3, dtype=np.uint8)  # hundreds of fragments
    make = pair.talker.messages.make
    image = make("sensor_msgs/msg/Image", height=2160, width=3840, encoding="rgb8", step=3840 * 3, data=picture)
    pair.listener.create_subscription("/camera", "sensor_msgs/msg/Image", "sensor_data", pair.note)
    publisher = pair.talker.create_publisher("/camera", "sensor_msgs/msg/Image", "sensor_data")
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    publisher.publish(image)
    assert pair.spin_for(1) and np.array_equal(pair.got[0].data, picture)


def test_endpoints_share_no_memory(pair: Pair) -> None:
    publisher, sent = pair.connect(KEPT), np.ones(3)
    publisher.publish(pair.joints(sent))
    sent[:] = 7
    assert pair.spin_for(1) and pair.got[0].position.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        pair.got[0].position[:] = 0


def test_a_slow_subscription_gets_the_newest_messages(pair: Pair) -> None:
    publisher = pair.connect(QoS(depth=20), QoS(depth=3))
    for step in range(10):
        publisher.publish(pair.joints([step]))
    assert pair.spin_for(3)
    pair.spin_in_vain()
    assert [message.position[0] for message in pair.got] == [7, 8, 9]


def test_a_late_subscription_gets_latched_messages(pair: Pair) -> None:
    latched = QoS("reliable", "transient_local", depth=2)
    publisher = pair.talker.create_publisher("/status", JOINTS, latched)
    for step in range(5):
        publisher.publish(pair.joints([step]))
    pair.listener.create_subscription("/status", JOINTS, latched, pair.note)
    assert pair.spin_for(2)
    publisher.publish(pair.joints([5]))
    assert pair.spin_for(3)
    assert [message.position[0] for message in pair.got] == [3, 4, 5]


def test_a_late_volatile_subscription_gets_no_latched_messages(pair: Pair) -> None:
    publisher = pair.talker.create_publisher("/status", JOINTS, "latched")
    publisher.publish(pair.joints([0]))
    pair.listener.create_subscription("/status", JOINTS, QoS(), pair.note)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    pair.spin_in_vain()
    assert pair.got == []


def test_latched_messages_end_with_their_publisher(pair: Pair) -> None:
    publisher = pair.talker.create_publisher("/status", JOINTS, "latched")
    publisher.publish(pair.joints([0]))
    publisher.close()
    publisher.close()
    pair.listener.create_subscription("/status", JOINTS, "latched", pair.note)
    pair.spin_in_vain()
    assert pair.got == []
    with pytest.raises(TransportError, match="/status: this publisher is closed"):
        publisher.publish(pair.joints([1]))


@pytest.mark.thorough
def test_messages_past_their_lifespan_are_not_delivered(pair: Pair) -> None:
    publisher = pair.connect(QoS(lifespan_s=0.05), QoS())
    publisher.publish(pair.joints([0]))
    pair.wait(0.5)
    pair.spin_in_vain()
    assert pair.got == []


@pytest.mark.parametrize(
    ("offered", "requested", "reason"),
    [
        (QoS("best_effort"), QoS("reliable"), "offers best_effort, the subscription requests reliable"),
        (QoS(), QoS(durability="transient_local"), "offers volatile, the subscription requests transient_local"),
    ],
)
def test_incompatible_qos_is_reported(pair: Pair, offered: QoS, requested: QoS, reason: str) -> None:
    subscription = pair.listener.create_subscription("/camera", JOINTS, requested, pair.note)
    publisher = pair.talker.create_publisher("/camera", JOINTS, offered)
    (fault,) = pair.mismatches_of(subscription)
    assert fault.startswith("/camera: no message arrives") and reason in fault
    assert publisher.find_mismatches() == (fault,)
    publisher.publish(pair.joints([0]))
    pair.spin_in_vain()
    assert pair.got == [] and subscription.count_matched() == publisher.count_matched() == 0


def test_each_profile_matches_itself(pair: Pair) -> None:
    publishers = [pair.connect(name, topic=f"/{name}") for name in PROFILES]
    for publisher in publishers:
        publisher.publish(pair.joints([1]))
    assert pair.spin_for(len(publishers))
    assert {publisher.find_mismatches() for publisher in publishers} == {()}


def test_different_types_are_reported(pair: Pair) -> None:
    subscription = pair.listener.create_subscription("/arm", "std_msgs/msg/String", KEPT, pair.note)
    publisher = pair.talker.create_publisher("/arm", JOINTS, KEPT)
    fault = f"/arm: the publisher's type is {JOINTS}, the subscription's std_msgs/msg/String"
    assert pair.mismatches_of(subscription) == (fault,) == publisher.find_mismatches()
    publisher.publish(pair.joints([0]))
    pair.spin_in_vain()
    assert pair.got == []


def test_a_second_publisher_is_discovered(pair: Pair) -> None:
    mine = pair.talker.create_publisher("/command", JOINTS, "command")
    assert [each.gid for each in pair.talker.list_publishers("/command")] == [mine.gid]
    theirs = pair.listener.create_publisher("/command", JOINTS, "command")
    seen = lambda: {each.gid: each.own for each in pair.talker.list_publishers("/command")}  # noqa: E731
    assert len(seen()) == 2 or pair.talker.spin_until(lambda: len(seen()) == 2, 30)
    assert seen() == {mine.gid: True, theirs.gid: False}
    nodes = lambda: [each.node for each in mine.other_publishers()]  # noqa: E731
    assert nodes() == ["/listener"] or pair.talker.spin_until(lambda: nodes() == ["/listener"], 30)
    assert [each.gid for each in mine.other_publishers()] == [theirs.gid]
    theirs.close()
    assert len(seen()) == 1 or pair.talker.spin_until(lambda: len(seen()) == 1, 30)
    assert mine.other_publishers() == ()


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


def test_a_topic_without_publishers_is_empty(pair: Pair) -> None:
    subscription = pair.listener.create_subscription("/empty", JOINTS, KEPT, pair.note)
    pair.spin_in_vain()
    assert pair.listener.list_publishers("/empty") == () and subscription.find_mismatches() == ()
    assert [each.own for each in pair.listener.list_subscriptions("/empty")] == [True]


@pytest.mark.thorough
@pytest.mark.parametrize("topic", ["joints", "", "/", "/a//b", "/a/", "/1a", "/a b", "/~/a", "/a__b", "/" + "a" * 300])
def test_an_invalid_topic_name_is_refused(pair: Pair, topic: str) -> None:
    with refuses("topic-invalid", repr(topic[:200])):
        pair.talker.create_publisher(topic, JOINTS, KEPT)


@pytest.mark.parametrize(
    ("type_name", "code", "data"),
    [
        ("sensor_msgs/msg/JointStates", "message-type-unknown", "sensor_msgs/msg/JointState?"),
        ("JointState", "message-type-invalid", "'JointState'"),
        ("os/path", "message-type-invalid", "'os/path'"),
        ("made_up/msg/Thing", "message-type-unknown", "jazzy"),
    ],
)
def test_an_unknown_type_is_refused(pair: Pair, type_name: str, code: str, data: str) -> None:
    with refuses(code, data):
        pair.listener.create_subscription("/a", type_name, KEPT, pair.note)


def test_an_unknown_profile_is_refused(pair: Pair) -> None:
    with refuses("qos-unknown", "'camera'", "sensor_data, state"):
        pair.listener.create_subscription("/a", JOINTS, "camera", pair.note)


def test_a_message_of_another_type_is_refused(pair: Pair) -> None:
    publisher = pair.connect(KEPT)
    with refuses("message-type-mismatch", JOINTS, "std_msgs/msg/String", kind=MessageError):
        publisher.publish(pair.talker.messages.make("std_msgs/msg/String"))


def test_raw_subscriptions_get_the_bytes(pair: Pair) -> None:
    pair.listener.create_subscription("/joints", JOINTS, KEPT, pair.note, raw=True)
    publisher = pair.talker.create_publisher("/joints", JOINTS, KEPT)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    raw = pair.talker.messages.encode(JOINTS, pair.joints([1.0, 2.0]))
    publisher.send(raw)
    assert pair.spin_for(1) and pair.got == [raw]


def test_exceptions_of_callbacks_are_raised(pair: Pair) -> None:
    def fail(*_: object) -> None:
        raise KeyError("arm")

    publisher = pair.talker.create_publisher("/joints", JOINTS, KEPT)
    pair.listener.create_subscription("/joints", JOINTS, KEPT, fail)
    assert publisher.count_matched() or pair.listener.spin_until(lambda: publisher.count_matched() == 1, 30)
    publisher.publish(pair.joints([0]))
    with pytest.raises(KeyError, match="arm"):
        pair.listener.spin_until(lambda: False, 30)


def test_a_closed_subscription_gets_nothing(pair: Pair) -> None:
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


def test_a_closed_node_refuses_use(pair: Pair) -> None:
    pair.talker.close()
    pair.talker.close()
    for use in (
        lambda: pair.talker.create_publisher("/a", JOINTS, KEPT),
        lambda: pair.talker.create_subscription("/a", JOINTS, KEPT, pair.note),
        lambda: pair.talker.spin_once(),
    ):
        with pytest.raises(TransportError, match="talker is closed"):
            use()
