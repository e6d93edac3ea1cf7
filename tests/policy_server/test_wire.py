"""Messages hold plain values and arrays of numbers, in openpi's form; nothing else is read."""

import pickle
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from embodied_rl.deployment.policy_client.wire import DTYPES, WireError, WireLimits, pack, unpack
from tests.support.recorded_messages import FRONT, HARNESS, OPENPI, SMALL

ARRAYS = st.sampled_from(sorted(DTYPES)).flatmap(
    lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
)
VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20) | ARRAYS
MAPS = st.dictionaries(st.text(max_size=10), VALUES | st.lists(VALUES, max_size=3), max_size=4)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@pytest.mark.thorough
@given(MAPS.filter(lambda value: "__ndarray__" not in value), st.booleans())
def test_what_is_packed_is_read(value: dict[str, Any], text_keys: bool) -> None:
    assert same(unpack(pack(value, text_keys)), value)


@given(st.binary(max_size=300) | MAPS.map(pack).flatmap(lambda data: st.integers(0, len(data)).map(lambda n: data[:n])))
def test_anything_is_read_or_refused_in_words(message: bytes) -> None:
    try:
        unpack(message)
    except WireError as error:
        assert str(error) and "\n" not in str(error)


def test_messages_of_openpis_client_are_read() -> None:
    said = unpack(bytes.fromhex(OPENPI["observation"]))
    assert same(said["images/front"], FRONT) and same(said["state"], np.array([0.5, -1.25], np.float32))
    assert said["prompt"] == "pick up the red cube"
    said = unpack(bytes.fromhex(OPENPI["nested, float64, scalar"]))
    assert same(said["images"]["front"], FRONT) and said["state"].dtype == np.float64
    assert (said["step"], said["gripper"], said["open"]) == (7, 0.25, True)
    with pytest.raises(WireError, match="'>f4'"):
        unpack(bytes.fromhex(OPENPI["big-endian"]))


def test_what_is_written_is_what_openpi_writes() -> None:
    actions = {"actions": np.arange(6, dtype=np.float32).reshape(3, 2), "server_timing": {"infer_ms": 1.5}}
    assert pack(actions) == bytes.fromhex(OPENPI["actions"])


def test_messages_of_the_harness_are_read() -> None:
    said = unpack(bytes.fromhex(HARNESS["observation raw"]))
    assert said["type"] == "observation" and same(said["payload"]["images"]["front"], SMALL)


class Evil:
    """Leaves a trace where it is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("import tests.support; tests.support.UNPICKLED = True",))


def array(**changed: Any) -> dict[str, Any]:
    return {"__ndarray__": True, "data": b"\0" * 8, "dtype": "<f4", "shape": [2]} | changed


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (array(dtype="|O", data=pickle.dumps(Evil())), "Objects are never read"),
        (array(dtype="O"), "dtype is one of"),
        (array(dtype="|V8"), "dtype is one of"),
        (array(dtype="<c8"), "dtype is one of"),
        (array(dtype="<M8[s]"), "dtype is one of"),
        (array(dtype=[["a", "<f4"]]), "dtype is one of"),
        (array(dtype=b"<f4"), "dtype is one of"),
        (array(shape=[3]), "says shape"),
        (array(shape=[-1]), "says shape"),
        (array(shape=[2.0]), "says shape"),
        (array(shape=[True, 2]), "says shape"),
        (array(shape=2), "says shape"),
        (array(shape=[1] * 9 + [2]), "says shape"),
        (array(shape=[2**31, 0]), "says shape"),
        (array(data=b"", shape=[0, *[2**31 - 1] * 7]), "says shape"),
        (array(data="text"), "data are at most"),
        (array(more=1), "this has"),
        ({"__npgeneric__": True, "data": b"\0", "dtype": "|O"}, "a number of NumPy"),
        ({"__npgeneric__": True, "data": 1, "dtype": "|O"}, "dtype is one of"),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": 1}}}}}}}, "deep"),
        ({"a": "x" * 10_001}, "text has at most"),
        ({"a": list(range(1025))}, "no msgpack"),
        ({str(key): [1] * 100 for key in range(20)}, "at most 1024 entries"),
        ({"a" * 201: 1}, "keys of maps"),
        ({"a": 1, b"a": 2}, "same text"),
        (msgpack.ExtType(5, b"evil"), "extension of msgpack"),
        (msgpack.Timestamp(1), "Timestamp"),
    ],
)
def test_what_is_no_plain_value_is_refused(value: Any, said: str) -> None:
    import tests.support

    with pytest.raises(WireError, match=said):
        unpack(msgpack.packb({"x": value}))
    assert not hasattr(tests.support, "UNPICKLED")


def test_a_pickle_is_no_message() -> None:
    import tests.support

    with pytest.raises(WireError):
        unpack(pickle.dumps(Evil()))
    assert not hasattr(tests.support, "UNPICKLED")


def test_a_bomb_of_lists_is_refused() -> None:
    with pytest.raises(WireError):
        unpack(b"\x91" * 100_000)


def test_many_empty_maps_are_refused_before_they_take_memory() -> None:
    message = b"\xdc\x04\x00" + (b"\xdc\x04\x00" + b"\x80" * 1024) * 1024
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="at most 1024 entries"):
            unpack(message)
        assert tracemalloc.get_traced_memory()[1] < len(message)
    finally:
        tracemalloc.stop()


def test_a_key_that_is_said_twice_is_refused() -> None:
    with pytest.raises(WireError, match="same text"):
        unpack(b"\x82" + b"\xa5state\x01" + b"\xa5state\x02")


def test_a_text_frame_and_a_large_message_are_refused() -> None:
    with pytest.raises(WireError, match="binary frame"):
        unpack("{}")
    with pytest.raises(WireError, match="at most 10 bytes; this has 12"):
        unpack(b"\0" * 12, WireLimits(message=10))
    with pytest.raises(WireError, match="data are at most 4"):
        unpack(pack({"x": np.zeros(2, np.float32)}), WireLimits(array=4))


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([object()]), np.array([1j]), object(), {1, 2}])
def test_what_cannot_be_sent_is_named(value: Any) -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        pack({"x": value})
