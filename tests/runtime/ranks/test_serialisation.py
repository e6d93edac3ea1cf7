"""Messages hold only values; decoding executes nothing."""

import json
import os
import pickle
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.runtime.ranks import serialisation as messages
from embodied_rl.runtime.ranks.collective import LOOPBACK, GlooRanks, make_store
from embodied_rl.runtime.ranks.serialisation import NotSerialisable


@dataclass(frozen=True)
class Point:
    name: str
    place: tuple[float, ...]


@dataclass(frozen=True)
class Other:
    name: str


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)


@pytest.mark.thorough
@given(VALUES)
def test_values_are_restored(value: Any) -> None:
    found = messages.decode(messages.encode(value))
    assert found == value and repr(found) == repr(value)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_arrays_are_restored_bit_for_bit(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    found = messages.decode(messages.encode({"a": array.T, "b": [array]}))
    for given_, came in ((array.T, found["a"]), (array, found["b"][0])):
        assert came.dtype == given_.dtype and came.shape == given_.shape and np.array_equal(came, given_)
        came.fill(1)  # a copy, which may be written


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int16, torch.bool])
def test_tensors_are_restored_bit_for_bit(dtype: torch.dtype) -> None:
    for shape in [(), (0,), (5, 3)]:
        tensor = torch.randn(shape).to(dtype).t() if len(shape) == 2 else torch.randn(shape).to(dtype)
        found = messages.decode(messages.encode((tensor,)))[0]
        assert found.dtype == dtype and found.shape == tensor.shape and torch.equal(found, tensor)


def test_numpy_scalars_and_non_finite_numbers() -> None:
    found = messages.decode(messages.encode([np.float32(0.1), np.int64(3), float("nan"), float("-inf")]))
    assert (found[0], found[1], found[3]) == (np.float32(0.1), 3, float("-inf"))
    assert isinstance(found[0], np.float32) and np.isnan(found[2])


def test_only_expected_dataclasses_are_decoded() -> None:
    data = messages.encode([Point("a", (1.0, 2.0))])
    assert messages.decode(data, [Point]) == [Point("a", (1.0, 2.0))]
    with pytest.raises(NotSerialisable, match="'Point'"):
        messages.decode(data, [Other])
    with pytest.raises(NotSerialisable, match=r"'Point'.*name"):
        messages.decode(messages.encode(Other("a")).replace(b'"Other"', b'"Point"'), [Point])


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", np.array([object()]), np.array(["text"]), print, Point])
def test_other_types_are_refused(value: Any) -> None:
    with pytest.raises(NotSerialisable, match="cannot be sent"):
        messages.encode(value)


class Planted:
    """An object that creates a file when its pickle is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._file}",)


def message(head: Any, tail: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return messages.MARK + struct.pack("<Q", len(text)) + text + tail


def test_malicious_bytes_are_not_executed(tmp_path: Path) -> None:
    """Pickles, with and without our header; arrays of objects; wrong lengths; endless nesting."""
    planted = pickle.dumps(Planted(tmp_path / "executed"))
    array = {"array": ["|O", [1], 0]}
    for data in [
        b"", planted, messages.MARK + planted, message({"value": array, "sizes": [len(planted)]}, planted),
        message({"value": {"array": ["<f4", [2**62], 0]}, "sizes": [4]}, b"1234"),
        message({"value": {"array": ["<f4", [-1], 0]}, "sizes": [-4]}), message({"value": 1, "sizes": [5]}),
        message({"value": {"read": 1}, "sizes": []}), message({"value": {"__class__": 1}, "sizes": []}),
        message({"value": {"tuple": 1, "mapping": 2}, "sizes": []}), message([1]), message({"value": 1}),
        message({"value": {"tensor": ["object", [1], 0]}, "sizes": [1]}, b"1"), messages.MARK + b"\xff" * 8 + b"{}",
        message(None).replace(b"null", b"[" * 4), messages.MARK + struct.pack("<Q", 200_000) + b"[" * 200_000,
    ]:  # fmt: skip
        with pytest.raises(NotSerialisable):
            messages.decode(data, [Point])
    assert not (tmp_path / "executed").exists()
    pickle.loads(planted)
    assert (tmp_path / "executed").exists(), "the pickle would have run"


@pytest.mark.parametrize("operation", ["gather", "scatter"])
def test_pickles_from_another_rank_are_not_executed(
    tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may connect to the store as a rank."""
    planted, store = pickle.dumps(Planted(tmp_path / "executed")), make_store(2, 20.0)

    def intrude() -> None:
        other = GlooRanks(0, 2, make_store(2, 20.0, store.port), 20.0, LOOPBACK)
        real = messages.encode
        with monkeypatch.context() as patch:
            patch.setattr(messages, "encode", lambda value: planted if value != [len(planted)] * 2 else real(value))
            with pytest.raises(NotSerialisable):
                getattr(other, operation)([1, 2] if operation == "scatter" else None)

    thread = threading.Thread(target=intrude, daemon=True)
    thread.start()
    victim = GlooRanks(1, 2, store, 20.0, LOOPBACK)
    with pytest.raises(NotSerialisable, match="not a valid message"):
        getattr(victim, operation)(None)
    thread.join(20)
    assert not (tmp_path / "executed").exists()
