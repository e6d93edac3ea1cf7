"""A Ray cluster of two nodes on this machine, as the tests have it, and what they ask of it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def two_nodes() -> Iterator[Any]:
    """Two cores on the first node, three on the second."""
    from ray.cluster_utils import Cluster

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    plain = {"prestart_worker_first_driver": False, "worker_niceness": 0}
    head = {"num_cpus": 2, "object_store_memory": 100 << 20, "include_dashboard": False, "_system_config": plain}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(num_cpus=3, object_store_memory=100 << 20)
        yield cluster
    finally:
        cluster.shutdown()
        for number, handler in before.items():
            signal.signal(number, handler)
