"""What is spread over ranks, as files of a checkpoint: PyTorch's distributed checkpoint, in safetensors.

Every rank writes `shards/shard-….safetensors` at the same time as the others; the first moves them into the checkpoint,
where they get their checksums (`embodied_rl.learning.checkpoint`) and are whole or absent as the rest. They can be read
by as many ranks as wrote them, by more or fewer, and by a single process, which needs no process group for it.
"""

import shutil
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor

from embodied_rl.learning.checkpoint import CheckpointError
from embodied_rl.learning.sharded import Moments, Sharding
from embodied_rl.runs.storage import explained
from embodied_rl.runtime.collective import Ranks

FOLDER = "shards"


def write(folder: Path, sharding: Sharding | None, ranks: Ranks) -> dict[str, Callable[[Path], None]]:
    """Write the moments of what is spread over ranks; all ranks do so together.

    Args:
        folder: the run's `checkpoints/`, which all ranks see.
        sharding: of the network, or None for nothing to write.
        ranks: that share it.

    Returns:
        Name in the checkpoint → a function that puts the file there, for `checkpoint.save` on the first rank.

    Raises:
        StorageError: the disk is full or the folder cannot be written.
    """
    if sharding is None:
        return {}
    dcp = _library()

    written = folder / f".{FOLDER}"
    if ranks.rank == 0:
        _cleared(written)
    ranks.barrier()
    writer = dcp.HuggingFaceStorageWriter(str(written), save_distributed=True)
    with explained(folder):
        try:
            dcp.save(_moments(sharding.optimisers), storage_writer=writer)
        except dcp.api.CheckpointException as error:
            raise _cause(error) from error
    return {f"{FOLDER}/{file.name}": partial(_move, file) for file in sorted(written.iterdir())}


def read(checkpoint: Path, sharding: Sharding | None, optimisers: Sequence[Moments] = ()) -> None:
    """Fill the moments of what is spread over ranks from a checkpoint's shards, however many ranks wrote them.

    Ranks that share a network call this together. A checkpoint without shards changes nothing: what they would hold is
    in its other tensors.

    Args:
        checkpoint: folder of one checkpoint.
        sharding: of the network, or None where it is whole.
        optimisers: those of the whole network, in the order in which they were made; a sharding knows its own.

    Raises:
        CheckpointError: the shards are those of other networks.
    """
    optimisers = optimisers if sharding is None else sharding.optimisers
    if not optimisers or not (checkpoint / FOLDER).is_dir():
        return
    from torch import distributed

    dcp = _library()

    reader = dcp.HuggingFaceStorageReader(str(checkpoint / FOLDER))
    stored = set(reader.read_metadata().state_dict_metadata)
    wanted = {name: value for name, value in _moments(optimisers, everything=True).items() if name in stored}
    if wanted.keys() != stored:
        raise CheckpointError(f"{checkpoint / FOLDER} is of another network: it has {sorted(stored - wanted.keys())}.")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is .*")  # a single process is what we intend
        dcp.load(wanted, storage_reader=reader, no_dist=not distributed.is_initialized())


def _library() -> Any:
    """PyTorch's distributed checkpoint, whose type stubs are incomplete."""
    return import_module("torch.distributed.checkpoint")


def _moments(optimisers: Sequence[Moments], everything: bool = False) -> dict[str, Tensor]:
    return {
        f"{number}/{name}": value
        for number, optimiser in enumerate(optimisers)
        for name, value in optimiser.shards(everything).items()
    }


def _cleared(folder: Path) -> None:
    with explained(folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)


def _move(file: Path, target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    file.rename(target)
    if not any(file.parent.iterdir()):
        file.parent.rmdir()


def _cause(error: Any) -> BaseException:
    """The first rank's own error, which the checkpoint wraps."""
    found = [failure[0] for _, failure in sorted(error.failures.items())]
    return next((cause for cause in found if isinstance(cause, OSError)), error)
