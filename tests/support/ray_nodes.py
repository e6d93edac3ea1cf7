"""A Ray cluster of two nodes on this machine, as the tests have it, and what they ask of it."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

START_S = 300
"""Time for a node to register; Ray's own 30 s are too short on a loaded machine."""


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Two cores on the first node, three on the second."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    plain = {"prestart_worker_first_driver": False, "worker_niceness": 0}
    head = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False, "_system_config": plain}
    with mock.patch.object(services, "get_node", partial(_wait_for_node, services.get_node)):
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            cluster.add_node(num_cpus=3, object_store_memory=100 << 20)
            yield cluster
        finally:
            cluster.shutdown()
            for number, handler in before.items():
                signal.signal(number, handler)


def _wait_for_node(look_up: Callable[..., Any], *arguments: Any) -> Any:
    deadline = time.monotonic() + START_S
    while True:
        try:
            return look_up(*arguments)
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
