"""Format of policy files: one safetensors file holds weights, embodiment and the network's configuration.

The file's header holds JSON under the key "embodied_rl": format, policy name, its configuration, the names of its
auxiliary targets, the embodiment, adapters, the source checkpoint, and further entries of the writer. Nothing in the
file is executed. The tokenizer and other long files are stored as tensors of bytes. Since format 3 the JSON also holds
checksums of its other entries and of the tensors, which every reader verifies. Format 4 is format 3 with a policy over
the flow's start noise.
"""

import ctypes
import hashlib
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning import checkpoint
from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, explain_failed_writes
from embodied_rl.actors.start_noise import StartNoiseSettings
from embodied_rl.checkpoints.foreign import parse_prefix_length
from embodied_rl.checkpoints.weight_names import CheckpointSource
from embodied_rl.config.freeze import freeze_config
from embodied_rl.schema import LoraNode
from embodied_rl.system.atomic_write import make_folder, replace_file
from embodied_rl.system.untrusted_files import check_name, parse_json, shorten

FORMATS = (1, 2, 3, 4)
"""Formats that can be read."""
CHECKED = 3
"""The first format with checksums; it is written."""
STEERED = 4
"""The format of files with a start-noise policy, which readers of earlier formats would leave out."""
HEADER, HEADER_SUM, TENSORS_SUM = "embodied_rl", "header_sha256", "tensors_sha256"
BACKBONE, TOKENIZER, CARRIED, FILE = "backbone.", "tokenizer", "carried/", "file/"
PICKLE_STARTS = (b"PK\x03\x04", b"\x80")


@dataclass(frozen=True)
class PolicyMetadata:
    """The metadata in a policy file's header.

    Attributes:
        policy, config: name of the policy plug-in, and its configuration as plain JSON values.
        embodiment: robot, statistics and vocabulary it was trained with.
        auxiliary_names: names of the targets that its auxiliary head predicts.
        extra: further JSON entries, such as its origin and its success rate.
        adapters: settings of its adapters, or None without adapters.
        source: the checkpoint of another project it was made from, or None.
        prefix_trained_to: see `FlowBackbone`.
        start_noise: settings of the policy over the flow's start noise, or None without one.
    """

    policy: str
    config: Mapping[str, Any]
    embodiment: Embodiment
    auxiliary_names: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    adapters: LoraNode | None = None
    source: CheckpointSource | None = None
    prefix_trained_to: int = 0
    start_noise: StartNoiseSettings | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the header as JSON values."""
        return {
            "format": CHECKED if self.start_noise is None else STEERED,
            "policy": self.policy,
            "config": dict(self.config),
            "embodiment": self.embodiment.to_dict() | {"tokenizer": ""},
            "auxiliary_names": list(self.auxiliary_names),
            "extra": dict(self.extra),
            "adapters": None if self.adapters is None else asdict(self.adapters),
            "source": None if self.source is None else self.source.to_dict(),
            "prefix_trained_to": self.prefix_trained_to,
            **({} if self.start_noise is None else {"start_noise": asdict(self.start_noise)}),
        }


def read_metadata(path: Path) -> PolicyMetadata:
    """Read the metadata of a policy file.

    Raises:
        CheckpointError: the file is missing, damaged, a pickle, or not a policy file of a known format.
    """
    return read_file(path, weights=False)[0]


def verify_weights(path: Path) -> None:
    """Verify a policy file's checksums, without building its network.

    Raises:
        CheckpointError: the file is missing, damaged, a pickle, or not a policy file of a known format.
    """
    read_file(path)


def count_weights(path: Path) -> int:
    """Return the bytes of a policy file's network once it is loaded, in float32, from the file's header alone."""
    return sum(4 * math.prod(shape) for name, shape in read_shapes(path).items() if name.startswith(BACKBONE))


def read_file(path: Path, weights: bool = True) -> tuple[PolicyMetadata, dict[str, Tensor]]:
    """Read and verify a policy file: its metadata and, with `weights`, its tensors on the CPU.

    Raises:
        CheckpointError: the file is missing, damaged, a pickle, or not a policy file of a known format.
    """
    if not path.is_file():
        raise CheckpointError(f"There is no policy file {path}.", code="checkpoint-missing")
    verified = weights and checkpoint.verify_file(path)
    try:
        with safe_open(path, "pt") as opened:
            header = (opened.metadata() or {}).get(HEADER)
            names = [name for name in opened.keys() if weights or name.startswith((TOKENIZER, FILE))]  # noqa: SIM118
            tensors = {name: opened.get_tensor(name) for name in names}
    except SafetensorError as error:
        # Check for a pickle only after the failure: a valid safetensors file may start with the same bytes.
        with path.open("rb") as raw:
            if raw.read(4).startswith(PICKLE_STARTS):
                message = f"{path} is a pickle, which can run any code when opened; policies are safetensors files."
                raise CheckpointError(message, code="checkpoint-is-pickle") from error
        raise damaged_error(f"{path} is damaged, or not a safetensors file: {error}.") from error
    metadata, expected = _parse_header(path, header)
    if weights and not verified:
        if expected is None:
            message = f"{path} was written by an earlier version without a checksum: damage would not be detected."
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        elif _hash(tensors) != expected:
            raise damaged_error(f"{path} is damaged: its tensors have another SHA-256 than when they were written.")
    if TOKENIZER in tensors:
        try:
            tokenizer = _as_bytes(path, tensors.pop(TOKENIZER)).decode()
        except UnicodeDecodeError as error:
            raise damaged_error(f"{path} is damaged: its tokenizer is not text: {error}.") from error
        metadata = replace(metadata, embodiment=replace(metadata.embodiment, tokenizer=tokenizer))
    if metadata.source is not None:
        carried = [name for name in tensors if name.startswith(CARRIED)]
        metadata.source.carried |= {name.removeprefix(CARRIED): tensors.pop(name) for name in carried}
        files = [name for name in tensors if name.startswith(FILE)]
        for name in files:  # an export writes them
            check_name(name.removeprefix(FILE), path, CheckpointError)
        metadata.source.files |= {name.removeprefix(FILE): _as_bytes(path, tensors.pop(name)) for name in files}
    return metadata, tensors


def _parse_header(path: Path, header: str | None) -> tuple[PolicyMetadata, str | None]:
    """Return the metadata in a header, and the checksum of the tensors; None in a file of an earlier format."""
    if header is None:
        raise CheckpointError(
            f"{path} is a safetensors file, but not a policy of this library: it has no {HEADER} header.",
            code="checkpoint-not-a-policy",
        )
    data = parse_json(header, f"{path}, in its {HEADER} header,", CheckpointError)
    try:
        if data["format"] not in FORMATS:
            known = ", ".join(map(str, FORMATS))
            raise CheckpointError(
                f"{path} has format {data['format']}; this version reads formats {known}.",
                code="checkpoint-format-unknown",
            )
        if data["format"] >= CHECKED and data[HEADER_SUM] != _hash_header(data):
            raise damaged_error(f"{path} is damaged: its {HEADER} header has another SHA-256 than when written.")
        if ("start_noise" in data) != (data["format"] == STEERED):
            raise ValueError(f"start_noise belongs to format {STEERED}")
        metadata = PolicyMetadata(
            policy=str(data["policy"]),
            config=dict(data["config"]),
            embodiment=Embodiment.from_dict(data["embodiment"]),
            auxiliary_names=tuple(map(str, data["auxiliary_names"])),
            extra=dict(data["extra"]),
            adapters=freeze_config(LoraNode, data["adapters"], "adapters") if data.get("adapters") else None,
            source=CheckpointSource.from_dict(data["source"]) if data.get("source") else None,
            prefix_trained_to=parse_prefix_length(data.get("prefix_trained_to", 0)),
            start_noise=freeze_config(StartNoiseSettings, data["start_noise"], "start_noise")
            if "start_noise" in data
            else None,
        )
        return metadata, str(data[TENSORS_SUM]) if data["format"] >= CHECKED else None
    except CheckpointError as error:
        raise error if str(path) in str(error) else _damaged(path, error) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return damaged_error(f"{path} has a damaged {HEADER} header: {shorten(error)}.")


def _as_bytes(path: Path, tensor: Tensor) -> bytes:
    if tensor.dtype != torch.uint8:
        raise damaged_error(f"{path} is damaged: it stores a text as {tensor.dtype}, not as bytes.")
    return tensor.numpy().tobytes()


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a policy file's tensors, from its header."""
    with safe_open(path, "pt") as opened:
        return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}  # noqa: SIM118


def write_file(path: Path, state: Mapping[str, Tensor], metadata: PolicyMetadata, dtype: torch.dtype | None) -> None:
    """Write a policy file in one step; `dtype` is that of stored floating-point tensors, None as they are.

    Raises:
        StorageError: the disk is full or the folder cannot be written; an existing file stays unchanged.
    """
    tensors = {
        name: (value.to(dtype) if dtype and value.is_floating_point() else value).detach().cpu().contiguous()
        for name, value in state.items()
    }
    if metadata.source is not None:
        tensors |= {CARRIED + name: value for name, value in metadata.source.carried.items()}
        tensors |= {FILE + name: _as_tensor(content) for name, content in metadata.source.files.items()}
    if metadata.embodiment.tokenizer:
        tensors[TOKENIZER] = _as_tensor(metadata.embodiment.tokenizer.encode())
    make_folder(path.parent, "run.root")
    with replace_file(path) as temporary, explain_failed_writes(path):
        save_file(tensors, temporary, make_header(metadata.to_dict(), tensors))


def _as_tensor(content: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(content, np.uint8).copy())


def make_header(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return the safetensors metadata of a policy file: `data` with checksums, in one entry.

    safetensors writes several entries in random order, and equal policies have equal files.
    """
    checked = {**data, TENSORS_SUM: _hash(tensors)}
    return {HEADER: json.dumps(checked | {HEADER_SUM: _hash_header(checked)}, sort_keys=True)}


def _hash_header(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a header's JSON values without this checksum."""
    rest = {name: value for name, value in data.items() if name != HEADER_SUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _hash(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of names, dtypes, shapes and contents of tensors on the CPU."""
    digest = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
        whole = value.contiguous()  # NumPy would keep its memory, which a sharded learner must free
        digest.update((ctypes.c_char * whole.nbytes).from_address(whole.data_ptr()))
    return digest.hexdigest()
