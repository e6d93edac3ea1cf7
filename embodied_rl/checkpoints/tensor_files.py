"""The tensors of a checkpoint, in one safetensors file or several with an index; read one at a time."""

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
class TensorEntry:
    """One tensor: where it lies, its type and its shape."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]


class TensorFiles(Mapping[str, TensorEntry]):
    """name → where a tensor lies; `load` reads it.

    Attributes:
        metadata: what the header of a single file says beside names.
    """

    def __init__(self, entries: Mapping[str, TensorEntry], metadata: Mapping[str, str] | None = None) -> None:
        self._entries, self.metadata = dict(entries), dict(metadata or {})

    def __getitem__(self, name: str) -> TensorEntry:
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


def read_contents(folder: Path, files: Iterable[Path]) -> dict[str, bytes]:
    """Small files, by their place in a folder; without an index of weights, which goes with its shards alone."""
    kept = sorted(file for file in files if file.is_file() and file.name != INDEX)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in kept}


def parse_json(file: Path) -> dict[str, Any]:
    """A JSON file that holds a mapping.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{file} is damaged: {error}.") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} is damaged: it should hold a mapping.")
    return data


def find_tensors(folder: Path) -> TensorFiles:
    """The weights of a checkpoint folder.

    Raises:
        CheckpointError: none are there, they are pickled, a shard is missing, or a file is damaged.
    """
    if (folder / INDEX).is_file():
        return _sharded(folder)
    if (folder / SINGLE).is_file():
        return TensorFiles(*_header(folder / SINGLE))
    if pickled := [name for name in PICKLES if (folder / name).exists()]:
        raise CheckpointError(
            f"{folder / pickled[0]} is a pickle, which can run any code when opened, and is not read: store it as "
            f"{SINGLE} with the project that it comes from."
        )
    raise CheckpointError(f"{folder} has no weights: {SINGLE} is missing.")


def _sharded(folder: Path) -> TensorFiles:
    listed = parse_json(folder / INDEX).get("weight_map")
    if not isinstance(listed, dict):
        raise CheckpointError(f"{folder / INDEX} is damaged: it has no 'weight_map'.")
    entries: dict[str, TensorEntry] = {}
    for name in sorted(set(listed.values())):
        file = folder / Path(name).name
        if not file.is_file():
            raise CheckpointError(f"{folder / INDEX} names {name}, which is missing.")
        entries |= _header(file)[0]
    if absent := sorted(set(listed) - set(entries)):
        raise CheckpointError(f"{folder / INDEX} names {absent[0]}, which no file holds.")
    return TensorFiles(entries)


def _header(file: Path) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Names, types and shapes, and what else a file's header says."""
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > LARGEST_HEADER:
                raise CheckpointError(f"{file} is no safetensors file, or damaged: its header is too long.")
            header = json.loads(opened.read(length))
        metadata = header.pop("__metadata__", {})
        found = {name: TensorEntry(file, DTYPES[said["dtype"]], tuple(said["shape"])) for name, said in header.items()}
    except (struct.error, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file} is no safetensors file, or damaged: {error}.") from error
    return found, metadata


def _product(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
