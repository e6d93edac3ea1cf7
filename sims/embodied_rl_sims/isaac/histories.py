"""Keep the observation histories of environments that run on while Isaac Lab resets others.

Isaac Lab's `reset` of some environments observes all of them, and adds what it sees to every history: those that run on
would see their present twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def keep_histories(manager: Any, running: Any) -> Iterator[None]:
    """Take back what is added to the histories of running environments.

    Args:
        manager: Isaac Lab's observation manager; None if the environment is direct.
        running: bool tensor [N], the environments that run on.
    """
    before = [(each, each._buffer.clone(), each._num_pushes.clone()) for each in list_histories(manager)]
    yield
    for history, entries, pushes in before:
        # one place further in the ring, because all environments share one pointer, which has moved
        history._buffer[:, running] = entries.roll(1, dims=0)[:, running]
        history._num_pushes[running] = pushes[running]


def list_histories(manager: Any) -> list[Any]:
    """List the ring buffers [length, N, …] of a manager's terms."""
    groups = getattr(manager, "_group_obs_term_history_buffer", {}).values()
    return [history for terms in groups for history in terms.values() if history._buffer is not None]
