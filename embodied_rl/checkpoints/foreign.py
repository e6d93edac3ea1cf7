"""Contents of another project's checkpoint, read before a network is built: tensors, small files, statistics.

Tensors are in one safetensors file, or in several with an index.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from embodied_rl.actors.embodiment import Normalisation
from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, unsupported_error
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import check_inside, read_json, shorten

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
PREFIX_KEY = "embodied_rl.prefix_trained_to"
"""Entry of a safetensors header with `FlowBackbone.prefix_trained_to`; loaders of lerobot and openpi skip it."""
LARGEST_HEADER = 100_000_000
PICKLES = ("pytorch_model.bin", "model.pt", "model.pth", "model.bin", "model.ckpt")


@dataclass(frozen=True)
class TensorEntry:
    """The file, dtype and shape of one stored tensor; `stored` is its name there, if that is another one."""

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    stored: str = ""

    @property
    def nbytes(self) -> int:
        """Return the bytes of the tensor's content."""
        return math.prod(self.shape) * self.dtype.itemsize


class TensorFiles(Mapping[str, TensorEntry]):
    """A mapping from tensor names to their entries; `load` reads a tensor.

    Attributes:
        metadata: further header entries of a single file; empty for several files.
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
        """Read one tensor, in the dtype it is stored in.

        Raises:
            CheckpointError: the file is damaged.
        """
        file = self._entries[name].file
        try:
            with safe_open(file, "pt") as opened:
                return opened.get_tensor(self._entries[name].stored or name)
        except SafetensorError as error:
            raise damaged_error(f"{file} is damaged at {name}: {error}.") from error

    @property
    def nbytes(self) -> int:
        """Return the size of all tensors in bytes."""
        return sum(entry.nbytes for entry in self._entries.values())


@dataclass(frozen=True)
class FoundStatistics:
    """The normalisation statistics of state and actions (None if there are none), and the file they were read from.

    `problem` is an error message for missing statistics: the cause and the remedy; empty for the standard message.
    """

    state: Normalisation | None
    action: Normalisation | None
    where: str
    problem: str = ""


@dataclass(frozen=True)
class FoundCheckpoint:
    """A checkpoint of another project, of `format` "lerobot", "openpi", "gr00t" or "openvla".

    Attributes:
        policy: name of the policy plug-in; None if the files do not say.
        candidates: names of the plug-ins that it may be of, where the files leave several open.
        config: its configuration file; empty if it has none.
        tensors: its weights, by their names in the checkpoint.
        statistics: normalisation statistics of the embodiment that it was trained for.
        cameras: the names of the views it was trained with, in order.
        executed, denoise_steps: number of actions of a chunk that are executed, and K; None if it does not say.
        relative: whether actions are relative to the state; exceptions: parts of the names of absolute actions.
        action_names: names of the action's entries; empty if it does not say.
        clipped: whether its actions are clipped to [-1, 1] before they are converted to the robot's units.
        gripper: convention of its gripper actions; see `Embodiment.gripper`.
        reads_state: whether its network reads the state; else the state needs no statistics.
        tokenizer: content of its tokenizer.json; empty if it has none.
        files: its small files, name → content, for a later export.
    """

    format: str
    folder: Path
    policy: str | None
    config: Mapping[str, Any]
    tensors: TensorFiles
    statistics: FoundStatistics
    cameras: tuple[str, ...]
    executed: int | None = None
    denoise_steps: int | None = None
    relative: bool = False
    exceptions: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    clipped: bool = False
    gripper: str = "same"
    candidates: tuple[str, ...] = ()
    reads_state: bool = True
    tokenizer: str = field(default="", repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def read_contents(folder: Path, files: Iterable[Path]) -> dict[str, bytes]:
    """Read small files; return their contents by path relative to `folder`. Skip an index of weight shards.

    Raises:
        CheckpointError: a file is a link out of the folder; its content would go into policy files.
    """
    kept = sorted(file for file in files if file.is_file() and file.name != INDEX)
    for file in kept:
        check_inside(folder, file, CheckpointError)
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in kept}


def read_text(file: Path) -> str:
    """Read a file of UTF-8 text.

    Raises:
        CheckpointError: it is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise damaged_error(f"{file} is damaged: {error}.") from error


def parse_json(file: Path) -> dict[str, Any]:
    """Read a JSON file that holds a mapping.

    Raises:
        CheckpointError: the file is damaged, or does not hold a mapping.
    """
    data = read_json(file, CheckpointError)
    if not isinstance(data, dict):
        raise damaged_error(f"{file} is damaged: it should hold a mapping.")
    return data


def check_keys(entries: Mapping[str, Any], known: frozenset[str], only: Mapping[str, Any], where: str) -> None:
    """Check that every key is known, and has a supported value; a tuple in `only` has several.

    Raises:
        CheckpointError: a key or a value is not; the message names it.
    """
    for key, value in entries.items():
        if key not in known and key not in only:
            raise unsupported_error(
                f"{where} has the key {key!r}, which is not understood.{suggest_name(key, sorted({*known, *only}))} "
                f"The policy could act differently than in its own project. If {key} changes no action, remove it in "
                "a copy of the file."
            )
        allowed = only.get(key, value)
        if value not in (allowed if isinstance(allowed, tuple) else (allowed,)):
            raise unsupported_error(
                f"{where}: {key}={as_json(value)} changes the policy's actions and is not supported yet, only "
                f"{key}={as_json(allowed)} is."
            )


def as_json(value: object) -> str:
    """Return a value as JSON has it, shortened."""
    text = json.dumps(value)
    return text if len(text) < 60 else f"{text[:60]}…"


def find_tensors(folder: Path) -> TensorFiles:
    """Find the weights of a checkpoint folder.

    Raises:
        CheckpointError: the folder has no weights, they are a pickle, a shard is missing, or a file is damaged.
    """
    if (folder / SINGLE).is_file():  # it counts beside an index, too, as in these projects
        return read_tensor_file(folder / SINGLE)
    if (folder / INDEX).is_file():
        listed = parse_json(folder / INDEX).get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise damaged_error(f"{folder / INDEX} is damaged: it has no 'weight_map' from tensors to names of files.")
        entries: dict[str, TensorEntry] = {}
        for name in sorted(set(listed.values())):
            file = folder / Path(name).name
            if not file.is_file():
                message = f"{folder / INDEX} names {name}, which is missing."
                raise CheckpointError(message, code="checkpoint-file-missing")
            held = _read_header(file)[0]
            if wrong := sorted(held.keys() ^ {tensor for tensor, place in listed.items() if place == name}):
                raise damaged_error(f"{folder / INDEX} and {name} differ in whether {wrong[0]} is in the latter.")
            entries |= held
        return TensorFiles(entries)
    if pickled := [name for name in PICKLES if (folder / name).exists()]:
        raise CheckpointError(
            f"{folder / pickled[0]} is a pickle, which can run any code when opened, and is not read: store it as "
            f"{SINGLE} with the project that it comes from.",
            code="checkpoint-is-pickle",
        )
    raise CheckpointError(f"{folder} has no weights: {SINGLE} is missing.", code="checkpoint-file-missing")


def read_tensor_file(file: Path) -> TensorFiles:
    """Read the header of one safetensors file.

    Raises:
        CheckpointError: the file is damaged, or not a safetensors file.
    """
    return TensorFiles(*_read_header(file))


def _read_header(file: Path) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Read a file's header; return the entries of its tensors, and its other metadata."""
    check_inside(file.parent, file, CheckpointError)
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > LARGEST_HEADER:
                raise damaged_error(f"{file} is damaged or not a safetensors file: its header is too long.")
            header = json.loads(opened.read(length))
        metadata = header.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("its metadata is not text")
        found = {name: _read_entry(file, entry) for name, entry in header.items()}
        spans = sorted((*entry["data_offsets"], found[name].nbytes) for name, entry in header.items())
        ends = [0, *(end for _, end, _ in spans)]
        if [begin for begin, _, _ in spans] != ends[:-1] or any(end - begin != size for begin, end, size in spans):
            raise ValueError("its tensors do not lie one behind the other, as their shapes say")
        if file.stat().st_size != 8 + length + ends[-1]:
            raise ValueError(f"it has {file.stat().st_size} bytes instead of {8 + length + ends[-1]}")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise damaged_error(f"{file} is damaged or not a safetensors file: {shorten(error)}.") from error
    return found, metadata


def _read_entry(file: Path, entry: Mapping[str, Any]) -> TensorEntry:
    if str(entry["dtype"]).startswith("F8_"):
        raise unsupported_error(
            f"{file} holds weights in float8 ({entry['dtype']}), which is not supported: their values "
            "depend on scales. Use the checkpoint in bfloat16 or float32 that they were made from."
        )
    shape = tuple(entry["shape"])
    if not all(type(size) is int and 0 <= size < 2**63 for size in shape):
        raise ValueError(f"the shape {shape} is invalid")
    return TensorEntry(file, DTYPES[entry["dtype"]], shape)


def check_shapes(
    path: Path, own: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]], prefix: str
) -> None:
    """Check that a file's tensors have the names and shapes of a network's; names are shown after `prefix`.

    Raises:
        CheckpointError: a name or a shape differs.
    """
    differences = [f"{prefix}{name} is missing" for name in own.keys() - stored.keys()]
    differences += [f"{prefix}{name} has no place in this network" for name in stored.keys() - own.keys()]
    differences += [
        f"{prefix}{name} is {stored[name]}, expected {own[name]}"
        for name in own.keys() & stored.keys()
        if own[name] != stored[name]
    ]
    if differences:
        more = f" ({len(differences) - 3} more)" if len(differences) > 3 else ""
        listed = "; ".join(sorted(differences)[:3])
        raise CheckpointError(
            f"{path} is a checkpoint of another network: {listed}{more}. Check policy.* and sim.name.",
            code="checkpoint-of-another-network",
        )


def parse_prefix_length(value: object) -> int:
    """Return an untrusted stored length.

    Raises:
        ValueError: it is not a number of actions.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"prefix_trained_to {value!r:.40} is not a number of actions")
    return value


def write_prefix_length(header: Mapping[str, str], length: int) -> dict[str, str]:
    """Return the header of another project's weights with a length, or without one if it is 0."""
    others = {name: text for name, text in header.items() if name != PREFIX_KEY}
    return others | ({PREFIX_KEY: str(length)} if length else {})


def read_prefix_length(header: Mapping[str, str], where: str) -> int:
    """Return the length in the header of another project's weights, or 0.

    Raises:
        CheckpointError: it is not a number of actions.
    """
    text = header.get(PREFIX_KEY, "0")
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise damaged_error(
            f"{where} is damaged: {PREFIX_KEY} in the header of its weights is {text!r:.40}, not a number."
        )
    return int(text)
