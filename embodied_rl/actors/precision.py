"""Mixed precision: matrix products in bfloat16, weights and everything else in float32 (`torch.autocast`)."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def autocast_method(method: Callable[..., Result]) -> Callable[..., Result]:
    """Make a method of an actor compute in bfloat16 where `actor.autocast` is set.

    Acting, values and evaluation are all wrapped: otherwise an update would start from other log-probabilities than
    its rollout.
    """

    @wraps(method)
    def cast(actor: Any, *args: Any, **kwargs: Any) -> Result:
        if not actor.autocast:
            return method(actor, *args, **kwargs)
        with torch.autocast(actor.device.type, torch.bfloat16):
            return method(actor, *args, **kwargs)

    return cast
