"""Gradient checkpointing for all policies with the key `gradient_checkpointing`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint


def recompute_activations(function: Callable[..., Any], enabled: bool, *args: Any) -> Any:
    """Call a function; if `enabled` and gradients are computed, recompute its activations in the backward pass."""
    if enabled and torch.is_grad_enabled():
        return checkpoint(function, *args, use_reentrant=False, preserve_rng_state=False)
    return function(*args)
