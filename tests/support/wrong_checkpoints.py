"""Checkpoints with something wrong in them, and what attaching one says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.support.using_checkpoints import attach


def refused(folder: Path, *parts: str, family: str = "pi0", **options: Any) -> str:
    """The message that attaching ends with, which holds all of the parts."""
    with pytest.raises(ValueError) as caught:
        attach(folder, family, **options)
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    return message


def change_weights(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite the weights of a folder after a change."""
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")
