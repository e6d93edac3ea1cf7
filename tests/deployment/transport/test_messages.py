"""CDR bytes and type hashes, compared with rclpy of Jazzy and another encoder; invalid values and bytes."""

import json
import keyword
import os
import random
import string
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.deployment.transport.dds_discovery import DdsTypes
from embodied_rl.deployment.transport.messages import ARRAY, BASE, MAX_MESSAGE_BYTES, NAME, MessageError, Messages
from tests.support.refusals import refuses

GOLDEN = "rclpy_jazzy_cdr_and_hashes.json"
JAZZY = Messages("jazzy")
JOINTS = "sensor_msgs/msg/JointState"


@pytest.fixture(scope="module")
def golden() -> dict[str, dict[str, Any]]:
    data = os.environ.get("EMBODIED_RL_TEST_DATA")
    if data is None or not Path(data, GOLDEN).exists():
        pytest.skip(f"no messages of rclpy: EMBODIED_RL_TEST_DATA names no folder with {GOLDEN}")
    return json.loads(Path(data, GOLDEN).read_text())


def test_messages_of_rclpy_are_reencoded_unchanged(golden: dict[str, dict[str, list[str]]]) -> None:
    compared = 0
    for type_name, texts in golden["cdr"].items():
        for text in texts:
            raw = bytes.fromhex(text)
            assert JAZZY.encode(type_name, JAZZY.decode(type_name, raw)) == raw, type_name
            compared += 1
    assert compared == 381


def test_type_hashes_match_ros(golden: dict[str, dict[str, str]]) -> None:
    known = set(JAZZY.list_types())
    hashes = {name: JAZZY.hash_type(name) for name in golden["hashes"] if name in known}
    assert hashes == {name: golden["hashes"][name] for name in hashes}
    assert len(hashes) == 127


def test_gripper_command_matches_its_definition() -> None:
    """Of its .msg file, with float64 position, float64 max_effort."""
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


def test_every_type_survives_a_round_trip() -> None:
    types = JAZZY.list_types()
    assert len(types) > 150
    for type_name in types:
        empty = JAZZY.make(type_name)
        assert repr(JAZZY.decode(type_name, JAZZY.encode(type_name, empty))) == repr(empty)


@pytest.mark.parametrize(
    ("type_name", "values", "code", "data"),
    [
        (JOINTS, {"positon": [1]}, "message-field-unknown", ["'positon'", "header, name, position, velocity, effort"]),
        (JOINTS, {"position": ["x"]}, "message-value-invalid", [f"{JOINTS}.position", "float64", "<U1"]),
        (JOINTS, {"header": {"frame_id": 3}}, "message-value-invalid", ["Header.frame_id", "str", "int"]),
        ("sensor_msgs/msg/CompressedImage", {"data": [256]}, "message-value-invalid", ["uint8"]),
        ("sensor_msgs/msg/Joy", {"buttons": [0.5]}, "message-value-invalid", ["int32"]),
        ("std_msgs/msg/Bool", {"data": 1}, "message-value-invalid", ["Bool.data", "bool", "int"]),
    ],
)
def test_values_that_do_not_fit_are_refused(type_name: str, values: dict[str, Any], code: str, data: list[str]) -> None:
    with refuses(code, *data):
        JAZZY.make(type_name, **values)


def test_invalid_messages_are_not_encoded() -> None:
    wrong_type, out_of_range = JAZZY.make(JOINTS), JAZZY.make("std_msgs/msg/UInt8", data=300)
    wrong_type.position = [1.0, 2.0]
    for message in (wrong_type, out_of_range):
        with refuses("message-invalid", message.__msgtype__, kind=MessageError):
            JAZZY.encode(message.__msgtype__, message)


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
def test_invalid_bytes_are_refused(raw: bytes) -> None:
    with refuses("message-damaged", f"{len(raw)} bytes", JOINTS, kind=MessageError):
        JAZZY.decode(JOINTS, raw)


def test_truncated_bytes_are_refused() -> None:
    raw = JAZZY.encode(JOINTS, JAZZY.make(JOINTS, name=["a", "bc"], position=[1, 2], velocity=[3, 4], effort=[5, 6]))
    for size in range(len(raw)):
        with pytest.raises(MessageError):
            JAZZY.decode(JOINTS, raw[:size])


def test_claimed_sizes_allocate_no_memory() -> None:
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


def test_too_many_bytes_are_refused() -> None:
    with refuses("message-too-large", MAX_MESSAGE_BYTES, kind=MessageError):
        JAZZY.decode("sensor_msgs/msg/Image", bytes(MAX_MESSAGE_BYTES + 1))


@settings(max_examples=300)
@given(type_name=st.sampled_from(JAZZY.list_types()), body=st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(type_name: str, body: bytes) -> None:
    try:
        message = JAZZY.decode(type_name, b"\0\1\0\0" + body)
    except MessageError as error:
        assert type_name in str(error)
        return
    encoded = JAZZY.encode(type_name, message)
    assert JAZZY.encode(type_name, JAZZY.decode(type_name, encoded)) == encoded


def test_an_unknown_release_is_refused() -> None:
    with refuses("ros-distro-unknown", "ROS_DISTRO='noetic'", "humble, iron, jazzy, kilted"):
        Messages("noetic")


def test_arrays_are_flat_with_the_dtype_of_their_field() -> None:
    message = JAZZY.make("std_msgs/msg/Float32MultiArray", data=np.arange(6).reshape(2, 3))
    assert message.data.dtype == np.float32 and message.data.tolist() == [0, 1, 2, 3, 4, 5]


TYPES = DdsTypes(JAZZY)
SHORT = 5


def sample(kind: Any, source: random.Random) -> Any:
    """Return a random value of a field: a number, a short text, a short sequence."""
    what, detail = kind
    if what == BASE:
        return sample_scalar(detail[0], source)
    if what == NAME:
        return sample_message(detail, source)
    inner, bound = detail
    count = bound if what == ARRAY else source.randrange(min(bound or SHORT, SHORT) + 1)
    return [sample(inner, source) for _ in range(count)]


def sample_scalar(name: str, source: random.Random) -> Any:
    if name == "string":
        return "".join(source.choices(string.ascii_letters + "_/ ", k=source.randrange(9)))
    if name == "bool":
        return source.random() < 0.5
    if name.startswith("float"):
        return float(np.dtype(name).type(source.uniform(-1e3, 1e3)))
    limits = np.iinfo({"byte": "int8", "char": "uint8"}.get(name, name))
    return source.randint(0 if name == "byte" else int(limits.min), int(limits.max))


def sample_message(type_name: str, source: random.Random) -> Any:
    return JAZZY.make(type_name, **{name: sample(kind, source) for name, kind in JAZZY.find_fields(type_name)})


def to_cyclone(kind: Any, value: Any) -> Any:
    """Convert a value to the classes of Cyclone DDS."""
    what, detail = kind
    if what == NAME:
        fields = JAZZY.find_fields(detail)
        return TYPES.find(detail)(**{name: to_cyclone(inner, read(value, name)) for name, inner in fields})
    return value if what == BASE else [to_cyclone(detail[0], each) for each in np.asarray(value, object).tolist()]


def read(message: Any, name: str) -> Any:
    return getattr(message, name + "_" if keyword.iskeyword(name) else name)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(3))
def test_another_encoder_makes_the_same_bytes(seed: int) -> None:
    for type_name in JAZZY.list_types():
        message = sample_message(type_name, random.Random(f"{seed} {type_name}"))
        raw, theirs = JAZZY.encode(type_name, message), bytes(to_cyclone((NAME, type_name), message).serialize())
        assert theirs.ljust(len(theirs) + -len(theirs) % 4, b"\0") == raw.ljust(len(raw) + -len(raw) % 4, b"\0"), (
            type_name
        )
