"""Messages: arrays are restored bit for bit without torch's own pickling; unchanged lists are not sent again."""

import pickle
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.interfaces.sim import Episode
from embodied_rl.runtime.processes.arrays import pack, unpack
from embodied_rl.runtime.processes.messages import ShortenedLists

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool, torch.complex64)


@dataclass(frozen=True)
class Holder:
    """Tensors in a frozen dataclass, as in a decision."""

    tensors: dict[str, torch.Tensor]
    array: np.ndarray
    note: Any = None


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 5)], ids=str)
def test_tensors_are_restored_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 3).to(dtype)
    back = unpack(pack({"deep": [Holder({"t": tensor}, np.arange(3))]}))["deep"][0].tensors["t"]
    assert back.dtype == dtype and back.shape == tensor.shape and bits(back) == bits(tensor)


def test_views_parameters_and_objects_within_objects() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    learned, frozen = torch.nn.Parameter(whole[:, 1]), torch.nn.Parameter(torch.ones(2), requires_grad=False)
    packed = pack((whole.t(), whole[1], learned, frozen, np.arange(12).reshape(3, 4)[:, ::2], np.float32(2), None))
    transposed, row, one, other, strided, scalar, nothing = unpack(packed)
    assert torch.equal(transposed, whole.t()) and torch.equal(row, whole[1])
    assert isinstance(one, torch.nn.Parameter) and one.requires_grad and not other.requires_grad
    np.testing.assert_array_equal(strided, [[0, 2], [4, 6], [8, 10]])
    assert scalar == np.float32(2) and nothing is None
    computed = (learned * 2)[0]
    assert not unpack(pack(computed)).requires_grad


def test_a_message_is_one_pickle_and_bytes() -> None:
    weights = torch.zeros(1000)
    packed = pack({"a": weights, "again": weights, "b": np.zeros(500)})
    assert len(packed.pickled) < 1000 and b"torch._utils" not in packed.pickled
    assert [(array.dtype, array.nbytes) for array in packed.buffers] == [(np.uint8, 4000), (np.uint8, 4000)]
    back = unpack(packed)
    assert back["a"] is back["again"]


@pytest.mark.filterwarnings("error")
def test_unpacked_arrays_are_copies_or_views() -> None:
    packed = pickle.loads(pickle.dumps(pack({"t": torch.ones(3), "a": np.ones(3)})))
    for array in packed.buffers:
        array.flags.writeable = False  # as an object store hands them out
    own = unpack(packed)
    own["t"].zero_()
    own["a"].fill(0)
    views = unpack(packed, copy=False)
    assert views["t"].tolist() == [1, 1, 1] and not views["a"].flags.writeable
    assert np.shares_memory(views["a"], packed.buffers[1])


def test_sparse_tensors_are_refused() -> None:
    with pytest.raises(TypeError, match="make it dense"):
        pack(torch.ones(2, 2).to_sparse())


@pytest.mark.process
def test_arrays_need_no_torch() -> None:
    code = (
        "import sys, numpy as np; from embodied_rl.runtime.processes.arrays import pack, unpack; "
        "print(unpack(pack(np.arange(3))).tolist(), 'torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[0, 1, 2] False\n"


def episodes(*indices: int) -> list[Episode | None]:
    return [Episode(index, 0, 10**15 + index) for index in indices]


def test_both_ends_remember_the_same_lists() -> None:
    here, there = ShortenedLists(), ShortenedLists()
    calls = [
        ("reset", (episodes(1, 2),)),
        ("step", (7, episodes(3, 4))),
        ("step", (8, episodes(3, 4))),
        ("reset", (episodes(1, 2),)),
        ("step", (9, [*episodes(3), None])),
        ("step", (9, [*episodes(3), None])),
        ("step", (9, episodes(3, 4))),
        ("snapshot", ()),
    ]
    sizes = []
    for method, args in calls:
        message = pickle.dumps(here.shorten(method, args))
        sizes.append(len(message))
        assert there.restore(method, pickle.loads(message)) == args
    assert sizes[2] < sizes[1] and sizes[3] < sizes[0] and sizes[5] < sizes[4] < sizes[6] + 40


def test_an_episode_with_another_history_is_sent() -> None:
    """Although it has the index, task and seed of the last one, and so compares equal."""
    here, there = ShortenedLists(), ShortenedLists()
    for length in (1, 2, 2):
        late = Episode(1, 0, 5, history=np.full((length, 3, 2), length, np.float32))
        (received,) = there.restore("reset", pickle.loads(pickle.dumps(here.shorten("reset", ([late],)))))
        assert np.array_equal(received[0].history, late.history)


def test_later_changes_of_a_list_have_no_effect() -> None:
    here, there = ShortenedLists(), ShortenedLists()
    mine = episodes(1, 2)
    got = there.restore("step", here.shorten("step", (mine,)))[0]
    mine[0] = None
    got.clear()
    assert there.restore("step", here.shorten("step", (mine,))) == (mine,)
    assert there.restore("step", here.shorten("step", (episodes(1, 2),))) == (episodes(1, 2),)
