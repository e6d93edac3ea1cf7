"""Loading of the model for `embodied-rl critic serve`: a critic file, or a vision-language model folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.provenance import count_cores
from embodied_rl.serving.embedded_critic import CriticNetwork, EmbeddedCritic
from embodied_rl.serving.model import ChatModel
from embodied_rl.serving.model_folder import check_folder


def check_served(path: Path, device: str, read_header: Callable[[Path], object]) -> None:
    """Check a model without loading it.

    Args:
        path: of a critic file, or a folder.
        device: torch device of the model.
        read_header: reads the header of a critic file, or raises `UserError`.

    Raises:
        UserError: the path does not exist, the folder is refused, or the device does not fit.
    """
    try:
        if torch.device(device).type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"device={device}: there is no CUDA device here.", code="device-missing")
    except RuntimeError:
        raise UserError(f"device={device} is unknown: cpu, cuda, or cuda:<number>.", code="device-unknown") from None
    if path.is_dir():
        check_folder(path)
        return
    if not path.is_file():
        raise UserError(
            f"model={path}: there is no such file or folder. `embodied-rl critic train` makes a critic.",
            code="model-missing",
        )
    read_header(path)
    if device != "cpu":
        raise UserError(
            f"device={device}: an embedded critic judges on the processor; leave device out.", code="key-unused"
        )


def load_served(
    path: Path,
    load_critic: Callable[[Path], CriticNetwork],
    name: str | None,
    device: str,
    dtype: Literal["float32", "bfloat16", "float16"],
    threads: int | None,
) -> ChatModel:
    """Load a model, and set how many threads torch computes with in this process.

    Args:
        path: of a critic file, or a folder.
        load_critic: opens a critic file.
        name: model name in requests; None takes that of the file or folder.
        device, dtype: of a vision-language model.
        threads: None takes one for a critic, and all cores for a vision-language model.

    Raises:
        UserError: it cannot be loaded.
    """
    torch.set_num_threads(threads or (count_cores() if path.is_dir() else 1))
    if not path.is_dir():
        return EmbeddedCritic(load_critic(path), name or path.stem)
    os.environ["HF_HUB_OFFLINE"] = "1"  # nothing is downloaded
    from embodied_rl.serving.vision_language import load_model

    return load_model(path, name or path.resolve().name, device, dtype)
