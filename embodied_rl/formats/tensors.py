"""The tensors of a checkpoint, in one safetensors file or several with an index; read one at a time."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from embodied_rl.learning.checkpoint import CheckpointError

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
LARGEST_HEADER = 100_000_000
PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.bin", "model.ckpt")


@dataclass(frozen=True)
class Entry:
    """One tensor: where it lies, its type and its shape."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]


class TensorFiles(Mapping[str, Entry]):
    """name → where a tensor lies; `load` reads it."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, name: str) -> Entry:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> Tensor:
        """One tensor, in the type it is stored in.

        Raises:
            CheckpointError: the file is damaged.
        """
        file = self._entries[name].file
        try:
            with safe_open(file, "pt") as opened:
                return opened.get_tensor(name)
        except SafetensorError as error:
            raise CheckpointError(f"{file} is damaged at {name}: {error}.") from error

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.dtype.itemsize * _product(entry.shape) for entry in self._entries.values())


def find(folder: Path) -> TensorFiles:
    """The weights of a checkpoint folder.

    Raises:
        CheckpointError: none are there, they are pickled, a shard is missing, or a file is damaged.
    """
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if (folder / SINGLE).is_file():
        return TensorFiles(_entries(folder / SINGLE))
    if pickled := [name for name in PICKLES if (folder / name).exists()]:
        raise CheckpointError(
            f"{folder / pickled[0]} is a pickle, which can run any code when opened, and is not read: store it as "
            f"{SINGLE} with the project that it comes from."
        )
    raise CheckpointError(f"{folder} has no weights: {SINGLE} is missing.")


def _sharded(folder: Path) -> TensorFiles:
    try:
        listed: dict[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / INDEX} is damaged: {error}.") from error
    entries: dict[str, Entry] = {}
    for name in sorted(set(listed.values())):
        file = folder / Path(name).name
        if not file.is_file():
            raise CheckpointError(f"{folder / INDEX} names {name}, which is missing.")
        entries |= _entries(file)
    if absent := sorted(set(listed) - set(entries)):
        raise CheckpointError(f"{folder / INDEX} names {absent[0]}, which no file holds.")
    return TensorFiles(entries)


def _entries(file: Path) -> dict[str, Entry]:
    """Names, types and shapes from a file's header alone."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > LARGEST_HEADER:
                raise CheckpointError(f"{file} is no safetensors file, or damaged: its header is too long.")
            header = json.loads(opened.read(length))
        return {
            name: Entry(file, DTYPES[entry["dtype"]], tuple(entry["shape"]))
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (struct.error, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file} is no safetensors file, or damaged: {error}.") from error


def _product(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
