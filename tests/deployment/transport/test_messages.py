"""CDR bytes and type hashes: against what rclpy of Jazzy made, and against bytes that nobody should have sent."""

import json
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.deployment.transport import extras
from embodied_rl.deployment.transport.messages import LARGEST, MessageError, Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable

GOLDEN = "rclpy_jazzy_cdr_and_hashes.json"
JAZZY = Messages("jazzy")
JOINTS = "sensor_msgs/msg/JointState"


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, Any]]:
    data = os.environ.get("EMBODIED_RL_TEST_DATA")
    if data is None or not Path(data, GOLDEN).exists():
        pytest.skip(f"no messages of rclpy: EMBODIED_RL_TEST_DATA names no folder with {GOLDEN}")
    return json.loads(Path(data, GOLDEN).read_text())


def test_messages_of_rclpy_come_out_as_they_went_in(golden: dict[str, dict[str, list[str]]]) -> None:
    compared = 0
    for type_name, texts in golden["cdr"].items():
        for text in texts:
            raw = bytes.fromhex(text)
            assert JAZZY.encode(type_name, JAZZY.decode(type_name, raw)) == raw, type_name
            compared += 1
    assert compared == 381


def test_type_hashes_are_those_of_ros(golden: dict[str, dict[str, str]]) -> None:
    known = set(JAZZY.list_types())
    hashes = {name: JAZZY.hash_type(name) for name in golden["hashes"] if name in known}
    assert hashes == {name: golden["hashes"][name] for name in hashes}
    assert len(hashes) == 127


def test_a_gripper_command_is_two_numbers_as_control_msgs_defines_it() -> None:
    """Of its .msg file, which says: float64 position, float64 max_effort."""
    kind = "control_msgs/msg/GripperCommand"
    raw = JAZZY.encode(kind, JAZZY.make(kind, max_effort=20.0, position=0.04))
    assert raw == b"\0\1\0\0" + struct.pack("<dd", 0.04, 20.0)


def test_humble_has_no_type_hashes() -> None:
    assert Messages("humble").hash_type(JOINTS) is None


def test_a_known_message_has_these_bytes() -> None:
    message = JAZZY.make(
        "geometry_msgs/msg/PointStamped", header={"stamp": {"sec": 1}, "frame_id": "ab"}, point={"y": 2}
    )
    text = struct.pack("<iII3sx3d", 1, 0, 3, b"ab\0", 0, 2, 0)  # aligned to 8 after the text
    assert JAZZY.encode("geometry_msgs/msg/PointStamped", message) == b"\0\1\0\0" + text


def test_every_type_can_be_made_and_comes_back() -> None:
    types = JAZZY.list_types()
    assert len(types) > 150
    for type_name in types:
        empty = JAZZY.make(type_name)
        assert repr(JAZZY.decode(type_name, JAZZY.encode(type_name, empty))) == repr(empty)


@pytest.mark.parametrize(
    ("type_name", "values", "words"),
    [
        (JOINTS, {"positon": [1]}, "has no field 'positon'; it has header, name, position, velocity, effort"),
        (JOINTS, {"position": ["x"]}, f"{JOINTS}.position wants numbers of type float64, not <U1"),
        (JOINTS, {"header": {"frame_id": 3}}, "Header.frame_id wants a value of type str, not int"),
        ("sensor_msgs/msg/CompressedImage", {"data": [256]}, "holds uint8, into which not all of these numbers fit"),
        ("sensor_msgs/msg/Joy", {"buttons": [0.5]}, "holds int32, into which not all of these numbers fit"),
        ("std_msgs/msg/Bool", {"data": 1}, "Bool.data wants a value of type bool, not int"),
    ],
)
def test_values_that_do_not_fit_are_refused(type_name: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        JAZZY.make(type_name, **values)


def test_a_message_that_was_made_by_hand_and_wrongly_is_refused() -> None:
    message = JAZZY.make(JOINTS)
    message.position = [1.0, 2.0]
    with pytest.raises(MessageError, match=f"{JOINTS} cannot be encoded"):
        JAZZY.encode(JOINTS, message)


def test_texts_and_numbers_beyond_their_field_are_refused() -> None:
    message = JAZZY.make("std_msgs/msg/UInt8", data=300)
    with pytest.raises(MessageError, match="std_msgs/msg/UInt8 cannot be encoded"):
        JAZZY.encode("std_msgs/msg/UInt8", message)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\0",
        b"\0\1\0\0",
        b"\0\1\0\0" + b"\xff" * 40,
        b"\0\7\0\0" + bytes(40),  # another encoding
        b"\0\1\0\0" + struct.pack("<iII", 0, 0, 2**31 - 1),
        b"\0\1\0\0" + struct.pack("<iIIxI", 0, 0, 1, 2**32 - 1),
        b"\0\1\0\0" + bytes(4000),
    ],
)
def test_bytes_of_a_stranger_are_refused_in_words(raw: bytes) -> None:
    with pytest.raises(MessageError, match=f"^{len(raw)} bytes are no message of {JOINTS}"):
        JAZZY.decode(JOINTS, raw)


def test_a_message_cut_anywhere_is_refused() -> None:
    raw = JAZZY.encode(JOINTS, JAZZY.make(JOINTS, name=["a", "bc"], position=[1, 2], velocity=[3, 4], effort=[5, 6]))
    for size in range(len(raw)):
        with pytest.raises(MessageError):
            JAZZY.decode(JOINTS, raw[:size])


def test_a_size_that_is_claimed_takes_no_memory() -> None:
    claims = b"\0\1\0\0" + struct.pack("<iII", 0, 0, 1) + bytes(4) + b"\xff\xff\xff\x7f" + bytes(16)
    tracemalloc.start()
    try:
        for type_name in JAZZY.list_types():
            try:
                JAZZY.decode(type_name, claims)
            except MessageError:
                continue
        assert tracemalloc.get_traced_memory()[1] < 2**26  # the code that rosbags makes of each type
    finally:
        tracemalloc.stop()


def test_a_message_that_is_too_large_is_not_read() -> None:
    with pytest.raises(MessageError, match=f"{LARGEST} at most are read"):
        JAZZY.decode("sensor_msgs/msg/Image", bytes(LARGEST + 1))


@settings(max_examples=300)
@given(type_name=st.sampled_from(JAZZY.list_types()), body=st.binary(max_size=200))
def test_whatever_comes_is_a_message_or_refused(type_name: str, body: bytes) -> None:
    try:
        message = JAZZY.decode(type_name, b"\0\1\0\0" + body)
    except MessageError as error:
        assert type_name in str(error), "who reads it learns which message it was"
        return
    encoded = JAZZY.encode(type_name, message)
    assert JAZZY.encode(type_name, JAZZY.decode(type_name, encoded)) == encoded


def test_messages_of_an_unknown_release_are_refused() -> None:
    with pytest.raises(UserError, match="ROS_DISTRO='noetic': the messages of humble, iron, jazzy, kilted are known"):
        Messages("noetic")


def test_a_missing_extra_is_one_line_with_the_remedy() -> None:
    with pytest.raises(Unavailable, match=r"DDS needs no-such-package, .*: pip install 'embodied-rl\[ros2\]'$"):
        extras.require("no-such-package", "DDS")


def test_arrays_are_flat_and_of_the_type_of_their_field() -> None:
    message = JAZZY.make("std_msgs/msg/Float32MultiArray", data=np.arange(6).reshape(2, 3))
    assert message.data.dtype == np.float32 and message.data.tolist() == [0, 1, 2, 3, 4, 5]
