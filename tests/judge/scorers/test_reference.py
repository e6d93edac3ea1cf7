"""A reference trajectory from a file of `collect` or from pictures; what is neither is named."""

import contextlib
import io
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.scorers.reference import choose_evenly, load_reference


def draw(*codes: int, size: int = 4) -> Array:
    return np.stack([np.full((size, size, 3), code, np.uint8) for code in codes])


def read_codes(frames: Array) -> list[int]:
    return frames[:, 0, 0, 0].tolist()


@given(length=st.integers(0, 200), count=st.integers(1, 70))
def test_evenly_with_both_ends(length: int, count: int) -> None:
    chosen = choose_evenly(length, count)
    assert len(chosen) == min(length, count) and chosen == sorted(set(chosen))
    if chosen:
        assert chosen[-1] == length - 1 and (len(chosen) == 1 or chosen[0] == 0)
        steps = np.diff(chosen)
        assert len(steps) == 0 or steps.max() - steps.min() <= 1


def test_from_a_file_of_collect(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "e.npz", allow_pickle=False, **{"images/top": draw(*range(11)), "images/side": draw(*range(50, 61))}
    )
    found = load_reference(tmp_path / "e.npz", ["top", "side"], 3)
    assert read_codes(found["top"]) == [0, 5, 10] and read_codes(found["side"]) == [50, 55, 60]
    assert found["top"].dtype == np.uint8 and found["top"].shape == (3, 4, 4, 3)
    assert len(load_reference(tmp_path / "e.npz", ["top"], 64)["top"]) == 11, "not more than there are"


@pytest.mark.parametrize("ending", ["png", "jpg"])
def test_from_pictures(tmp_path: Path, ending: str) -> None:
    for camera in ("top", "side"):
        (tmp_path / camera).mkdir()
        for place, frame in enumerate(draw(10, 130, 250)):
            Image.fromarray(frame).save(tmp_path / camera / f"{place:03}.{ending}")
    (tmp_path / "top" / "notes.txt").write_text("not a picture")
    found = load_reference(tmp_path, ["top", "side"], 2)
    assert read_codes(found["top"]) == pytest.approx([10, 250], abs=2) and set(found) == {"top", "side"}
    assert read_codes(load_reference(tmp_path / "side", ["top"], 2)["top"]) == pytest.approx([10, 250], abs=2)


def test_what_is_no_reference(tmp_path: Path) -> None:
    def refuse(path: Path, says: str, cameras: tuple[str, ...] = ("top",)) -> None:
        with pytest.raises(UserError, match=says):
            load_reference(path, list(cameras), 4)

    refuse(tmp_path / "nothing.npz", "nothing.npz is neither an episode file")
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 and no more")
    refuse(tmp_path / "broken.npz", "an episode file")
    np.save(tmp_path / "array.npy", np.zeros(3))
    refuse(tmp_path / "array.npy", "an episode file")
    np.savez(tmp_path / "e.npz", allow_pickle=False, **{"images/side": draw(1, 2)})
    refuse(tmp_path / "e.npz", "no images of camera 'top', but of: side")
    np.savez(tmp_path / "f.npz", allow_pickle=False, **{"images/top": np.zeros((2, 4, 4, 3))})
    refuse(tmp_path / "f.npz", "float64")
    np.savez(tmp_path / "g.npz", allow_pickle=False, **{"images/top": draw(1)})
    refuse(tmp_path / "g.npz", "two at least")
    np.savez(tmp_path / "h.npz", allow_pickle=True, **{"images/top": np.array([{}], object)})
    refuse(tmp_path / "h.npz", "an episode file")
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", "holds no pictures")
    refuse(tmp_path / "empty", "no folder 'top'", ("top", "side"))
    (tmp_path / "empty" / "a.png").write_text("not a picture")
    (tmp_path / "empty" / "b.png").write_text("not a picture")
    refuse(tmp_path / "empty", "a.png is not a picture")
    for place, size in enumerate((4, 6)):
        Image.fromarray(draw(1, size=size)[0]).save(tmp_path / "empty" / f"{'ab'[place]}.png")
    refuse(tmp_path / "empty", "differ in size")


HEADERS = (
    "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 8, 8, 3), }\n",
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (-1, 8, 8, 3), }\n",
    "{'descr': '|u1', 'fortran_order': False, 'shape': (5, 8, 8, 3.0), }\n",
    "{'descr': '|u1', 'fortran_order': True, 'shape': (5, 8, 8, 3), }\n",
    "{}\n", "[" * 500, "(\n" * 200, "\x00" * 50,
)  # fmt: skip
"""What an array's header may say, and not mean: more than there is, objects, no literal."""


@pytest.mark.parametrize("header", HEADERS, ids=range(len(HEADERS)))
def test_an_array_that_lies_is_no_reference(header: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
        start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        archive.writestr("images/top.npy", start + draw(*range(5), size=8).tobytes())
    with pytest.raises(UserError, match="an episode file"):
        load_reference(tmp_path / "e.npz", ["top"], 3)


@given(st.integers(0, 10**9))
def test_a_damaged_archive_is_refused_or_whole(seed: int) -> None:
    random = np.random.default_rng(seed)
    with io.BytesIO() as whole:
        np.savez_compressed(whole, **{"images/top": draw(*range(5))})
        content = bytearray(whole.getvalue())
    for place in random.integers(0, len(content), random.integers(1, 4)):
        content[place] = random.integers(0, 256)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "e.npz")
        file.write_bytes(content)
        with contextlib.suppress(UserError):
            assert read_codes(load_reference(file, ["top"], 3)["top"]) == [0, 2, 4]
