"""Connection to a cluster, an existing one or one started on this machine, which ends with this process."""

import os
import socket
import sys
import sysconfig
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.runtime.processes.handle import NodeShare
from embodied_rl.runtime.ray import cluster
from embodied_rl.runtime.ray.cluster import BundlePlace

DEADLINE = 20.0
LOGS = "/tmp/ray"
"""Folder of Ray's logs, unless RAY_TMPDIR is set."""


class NoCluster(RunFailed):
    """No cluster answers at the address, or it refuses this process; the message gives a remedy."""


@dataclass(frozen=True)
class Connection:
    """A connection to a cluster.

    Attributes:
        address: host:port.
        started: whether `connect` started the cluster, for this process only.
        joined: whether `connect` joined the cluster; False if this process was already part of it.
        variables: environment variables of actors, where they do not inherit them.
    """

    address: str
    started: bool = False
    joined: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)

    def close(self) -> None:
        """Leave the cluster, which also ends a cluster that `connect` started. Do nothing if `joined` is False."""
        if self.joined:
            cluster.leave_cluster()


def connect(address: str, cpus: float, deadline: float = DEADLINE) -> Connection:
    """Join a cluster, unless this process is in one already.

    Args:
        address: "host:port" of its head node; "auto" takes RAY_ADDRESS, else the cluster that `ray start` added this
            machine to, else starts one on this machine alone.
        cpus: number of cores that a cluster started here reports to have: a plan may share the real ones.
        deadline: seconds until an address must have answered.

    Raises:
        NoCluster: no cluster answers, or it has another version of Ray or Python, or another token; or Ray's own
            processes do not start on this machine.
    """
    if cluster.is_joined():
        return Connection(
            cluster.find_cluster(), joined=False, variables={} if cluster.is_actor() else list_import_paths()
        )
    where = address if address != "auto" else os.environ.get("RAY_ADDRESS", "")
    if where in ("", "auto", "local"):
        where = "" if where == "local" else cluster.find_local_cluster()
        if not where or not _listens(where, 1.0):  # a crashed cluster leaves its address behind
            try:
                cluster.start_cluster(cpus, list_import_paths())
            except cluster.ClusterRefused as error:
                raise NoCluster(
                    f"Ray did not start on this machine: {error} Its logs are in the newest folder of {LOGS}; 'ray "
                    "stop --force' ends processes of an earlier start. Without runtime=ray a run needs only this "
                    "machine, too."
                ) from None
            return Connection(cluster.find_cluster(), started=True)
    _check_cluster(where, deadline)
    try:
        cluster.join_cluster(where, list_import_paths())
    except cluster.ClusterRefused as error:
        raise NoCluster(f"The cluster at {where} refused this process: {error}") from None
    return Connection(where)


def _check_cluster(address: str, deadline: float) -> None:
    """Check that a cluster answers in time. Ray itself would try for minutes, and then end this process."""
    if "://" in address or not address.rpartition(":")[2].isdigit():
        raise NoCluster(f"cluster={address} is not an address of a cluster: give host:port, as `ray start` prints it.")
    until = time.monotonic() + deadline
    while not _listens(address, 1.0):
        if time.monotonic() > until:
            raise NoCluster(f"Nothing answers at cluster={address} within {deadline:g} s. {_REMEDY}")
        time.sleep(0.2)
    outcome: list[Exception | None] = []
    ended = threading.Event()

    def probe() -> None:
        try:
            cluster.probe_cluster(address)
            outcome.append(None)
        except cluster.ClusterRefused as error:
            outcome.append(error)
        ended.set()

    threading.Thread(target=probe, name="probe-cluster", daemon=True).start()
    if not ended.wait(max(1.0, until - time.monotonic())):
        raise NoCluster(f"The program at cluster={address} is not a Ray cluster, or does not answer. {_REMEDY}")
    if outcome[0] is not None:
        raise NoCluster(f"The cluster at {address} refused this process: {outcome[0]}")


_REMEDY = (
    "Start one there with `ray start --head`, see `ray status` for its address, or leave cluster=auto to start "
    "one on this machine."
)


def _listens(address: str, seconds: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), seconds).close()
    except OSError:
        return False
    return True


def list_import_paths() -> dict[str, str]:
    """Return a PYTHONPATH for actors: this process's import folders outside its installation, then the node's own.

    Paths that do not exist on another node do no harm; no files are sent.
    """
    installed = [Path(path).resolve() for path in {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix}]
    own = [Path(entry or ".").resolve() for entry in sys.path]
    kept = [str(path) for path in own if path.is_dir() and not any(path.is_relative_to(root) for root in installed)]
    return {"PYTHONPATH": os.pathsep.join([*dict.fromkeys(kept), "${PYTHONPATH}"])} if kept else {}


def describe_share(share: NodeShare) -> str:
    """Return a description of a share, e.g. "2 cores and 1 GPU"."""
    cores = f"{share.cpus:g} core{'' if share.cpus == 1 else 's'}"
    return cores if share.gpus == 0 else f"{cores} and {share.gpus:g} GPU{'' if share.gpus == 1 else 's'}"


def describe_free() -> str:
    """Return a description of the free cores and GPUs of every node."""
    rows = [
        f"{node.address} {describe_share(node.free)} of {describe_share(NodeShare(node.cpus, node.gpus))}"
        for node in cluster.list_nodes()
    ]
    return f"Free: {'; '.join(rows)}."


def explain_wait(share: NodeShare, where: BundlePlace | None) -> str:
    """Return why a process may not have started: too few free resources, or a slow start."""
    if where is not None:
        whole = describe_share(where.bundles[where.bundle])
        waiting = f"it waits for {describe_share(share)} of bundle {where.bundle} ({whole}) of those reserved."
        return f"{waiting} {describe_free()}"
    if any(node.can_host(share) for node in cluster.list_nodes()):
        return "there are free resources for it, but it has not started."
    return f"it waits for {describe_share(share)}, which are free on no node. {describe_free()}"


def explain_refusal(bundles: Sequence[NodeShare], seconds: float) -> str:
    """Return why a reservation failed, with the requested bundles and the free resources."""
    requested = Counter(map(describe_share, bundles))
    each = ", ".join(f"{count} × {share}" for share, count in requested.items())
    return (
        f"The cluster had too few free resources within {seconds:g} s. Requested, each on one node: {each}. "
        f"{describe_free()} Start more nodes, end other processes there, or request less: plan.ranks, plan.workers, "
        "plan.rollout_workers."
    )
