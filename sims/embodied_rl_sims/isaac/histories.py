"""Restore the observation histories of running environments while Isaac Lab resets others.

Isaac Lab's `reset` of some environments observes all of them and appends to every history: running environments would
get their present observation twice.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def restore_histories(manager: Any, running: Any) -> Iterator[None]:
    """Remove, after the `with` block, the entries added to the histories of running environments.

    Args:
        manager: Isaac Lab's observation manager; None if the environment is direct.
        running: bool tensor [N], the running environments.
    """
    before = [(each, each._buffer.clone(), each._num_pushes.clone()) for each in list_histories(manager)]
    yield
    for history, entries, pushes in before:
        # shifted by one in the ring buffer, because the pointer, which all environments share, has moved
        history._buffer[:, running] = entries.roll(1, dims=0)[:, running]
        history._num_pushes[running] = pushes[running]


def list_histories(manager: Any) -> list[Any]:
    """List the ring buffers [length, N, …] of a manager's terms."""
    groups = getattr(manager, "_group_obs_term_history_buffer", {}).values()
    return [history for terms in groups for history in terms.values() if history._buffer is not None]
