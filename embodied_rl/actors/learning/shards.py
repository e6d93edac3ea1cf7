"""Checkpoint files of moments that are sharded over ranks: rows of tensors in safetensors.

Every rank writes one file of `shards/` at the same time as the others; the first rank moves them into the checkpoint,
where they get their checksums (`embodied_rl.actors.learning.checkpoint`) and are complete or absent like the rest. Any
number of ranks can read them, also a single process. The format is that of PyTorch's distributed checkpoints
(`HuggingFaceStorageWriter`); PyTorch's writer is not used because it unpickles data from other ranks.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from embodied_rl.actors.learning.checkpoint import CheckpointError, damaged_error, explain_failed_writes
from embodied_rl.actors.learning.optimiser import Optimiser
from embodied_rl.actors.learning.sharded import Sharding
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.system.atomic_write import explain_errors
from embodied_rl.system.untrusted_files import shorten

FOLDER = "shards"
_PLACES = "DCP_SHARDING_INFO"


def write_shards(folder: Path, sharding: Sharding | None, ranks: Ranks) -> dict[str, Callable[[Path], None]]:
    """Write the moments of a sharded network to the run's `checkpoints/`; all ranks call this together.

    Returns:
        Name in the checkpoint → a function that puts the file there, for `save_checkpoint` on the first rank.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    if sharding is None:
        return {}
    written = folder / f".{FOLDER}"
    if ranks.rank == 0:
        with explain_errors(written):
            shutil.rmtree(written, ignore_errors=True)
            written.mkdir(parents=True)
    ranks.barrier()
    file = written / f"shard-{ranks.rank + 1:05d}-model-00001-of-00001.safetensors"
    with explain_errors(folder), explain_failed_writes(file):
        moments = _moments(sharding.optimisers)
        places = {
            name: {"saved_offsets": [sharding.first_row(len(m)), *[0] * (m.dim() - 1)]} for name, m in moments.items()
        }
        header = {"format": "pt", "DCP_VERSION": "1.0", _PLACES: json.dumps(places)}
        save_file({name: _local(moment).contiguous().cpu() for name, moment in moments.items()}, file, header)
    ranks.barrier()
    return {f"{FOLDER}/{file.name}": partial(_move, file) for file in sorted(written.iterdir())}


def read_shards(checkpoint: Path, sharding: Sharding | None, optimisers: Sequence[Optimiser] = ()) -> None:
    """Read the moments of a network from a checkpoint's shards, written by any number of ranks.

    All ranks that share a network call this together. A checkpoint without shards changes nothing: its other tensors
    hold the moments. `optimisers` are those of a whole network, in the order of their creation; a sharding has its own.

    Raises:
        CheckpointError: the shards belong to another network.
    """
    optimisers = optimisers if sharding is None else sharding.optimisers
    if not optimisers or not (checkpoint / FOLDER).is_dir():
        return
    with ExitStack() as stack:
        files = [_open(file, stack) for file in sorted((checkpoint / FOLDER).iterdir())]
        stored = {name for file in files for name in file.keys()}  # noqa: SIM118  not a mapping
        for number, optimiser in enumerate(optimisers):
            own = sorted(name.partition("/")[2] for name in stored if name.startswith(f"{number}/"))
            made = optimiser.make_moments(own)  # in one order on all ranks
            if unknown := [name for name in own if name not in made]:
                raise CheckpointError(
                    f"{checkpoint / FOLDER} is of another network: it has {unknown}.", code="checkpoint-other-network"
                )
        for name, value in _moments(optimisers, everything=True).items():
            if name in stored:
                _fill(value, name, files, sharding, checkpoint / FOLDER)


def _open(file: Path, stack: ExitStack) -> Any:
    """Open a shard until the stack ends; raise `CheckpointError` if it is not a shard."""
    try:
        opened = stack.enter_context(safe_open(file, "pt"))
        places = json.loads((opened.metadata() or {})[_PLACES])
        if not all(type(places[name]["saved_offsets"][0]) is int for name in opened.keys()):  # noqa: SIM118
            raise TypeError("a first row is not a whole number")
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        reason = f"{type(error).__name__}: {shorten(error)}"
        raise damaged_error(f"{file} is damaged, or not a shard of a checkpoint: {reason}.") from error
    return opened


@torch.no_grad()
def _fill(value: Tensor, name: str, files: Sequence[Any], sharding: Sharding | None, folder: Path) -> None:
    """Copy the rows that this rank holds from the files that contain some of them."""
    local = _local(value)
    first, filled = (0 if local is value or sharding is None else sharding.first_row(len(value))), 0
    for file in files:
        if name not in file.keys():  # noqa: SIM118
            continue
        stored = file.get_slice(name)
        shape, at = stored.get_shape(), json.loads(file.metadata()[_PLACES])[name]["saved_offsets"][0]
        begin, end = max(at, first), min(at + shape[0], first + len(local))
        if tuple(shape[1:]) != tuple(value.shape[1:]):
            raise CheckpointError(
                f"{folder} is of another network: {name} has rows of {shape[1:]}.", code="checkpoint-other-network"
            )
        if begin < end:
            local[begin - first : end - first].copy_(stored[begin - at : end - at])
            filled += end - begin
    if filled != len(local):
        raise CheckpointError(
            f"{folder} is of another network: {name} has {filled} of {len(local)} rows.",
            code="checkpoint-other-network",
        )


def _local(value: Tensor) -> Tensor:
    """Return the rows that this rank holds."""
    return value.to_local() if hasattr(value, "to_local") else value  # type: ignore[attr-defined]


def _moments(optimisers: Sequence[Optimiser], everything: bool = False) -> dict[str, Tensor]:
    return {
        f"{number}/{name}": value
        for number, optimiser in enumerate(optimisers)
        for name, value in optimiser.shards(everything).items()
    }


def _move(file: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    file.rename(target)
    if not any(file.parent.iterdir()):
        file.parent.rmdir()
