"""What we use of Ray: processes on other machines ("actors") and the answers to their calls, and nothing else of it.

No other module imports Ray, and no error of Ray's leaves this one: an actor that is gone is `ActorLost`, in words.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.processes.base import NodeShare

try:
    import ray
    import ray._private.services
    import ray._private.worker
    from ray.exceptions import (
        ActorDiedError,
        ActorPlacementGroupRemoved,
        AuthenticationError,
        GetTimeoutError,
        NodeDiedError,
        OutOfMemoryError,
        OwnerDiedError,
        RayActorError,
        RayError,
        RayTaskError,
    )
    from ray.util import get_node_ip_address, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
except ModuleNotFoundError as error:
    raise Unavailable(f"A cluster needs Ray, which cannot be imported here ({error}): pip install 'embodied-rl[ray]'")  # noqa: B904

log = logging.getLogger(__name__)

_ENDINGS: tuple[tuple[type[RayError], str], ...] = (
    (OutOfMemoryError, "was ended by Ray, because its node ran out of memory"),
    (NodeDiedError, "was lost with its node"),
    (OwnerDiedError, "was ended with whoever started it"),
    (ActorPlacementGroupRemoved, "was ended with its reservation"),
    (ActorDiedError, "has died"),
    (RayActorError, "is out of reach"),
)
"""What kinds of Ray's errors say of an actor; a kind of error stands before the kinds that it is one of."""


class ActorLost(Exception):  # noqa: N818  it says what happened
    """An actor is gone; the message is how, to follow its name: "has died (Ray says: …)"."""


class TooLate(Exception):  # noqa: N818
    """An answer did not come in time."""


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster, and what is free on it."""

    name: str
    address: str
    cpus: float
    gpus: float
    free: NodeShare

    def has_room(self, share: NodeShare) -> bool:
        """Whether a process with this share could start there now."""
        return self.free.cpus >= share.cpus and self.free.gpus >= share.gpus


@dataclass(frozen=True)
class BundlePlace:
    """The bundle of a reservation that a process goes into, or that it is in.

    Attributes:
        group: Ray's placement group.
        bundle: its index.
        bundles: the shares of all of them.
        ranks: so many of the first belong to ranks, and to what these start.
        used: what the process itself has of it.
    """

    group: Any
    bundle: int
    bundles: tuple[NodeShare, ...]
    ranks: int = 0
    used: NodeShare = field(default_factory=lambda: NodeShare(0.0))


class RayAnswer:
    """What a call of an actor gives, some day.

    Attributes:
        readable: becomes readable (closed at the other end) when it is there.
        arrived: when it came, on the clock `time.monotonic`.
    """

    def __init__(self, reference: Any):
        readable, self._signal = Pipe(duplex=False)
        self.readable, self.arrived = cast("Connection", readable), 0.0
        self._ended = threading.Event()
        self._future = reference.future()
        self._future.add_done_callback(self._arrive)

    def done(self) -> bool:
        """Whether `take` would not wait."""
        return self._ended.is_set()

    def take(self, timeout: float) -> Any:
        """The answer.

        Raises:
            NoTime: it is not there after so many seconds.
            Lost: the actor is gone.
        """
        if not self._ended.wait(timeout):
            raise TooLate
        try:
            return self._future.result()
        except RayError as error:
            raise ActorLost(describe_end(error)) from None

    def _arrive(self, _: object) -> None:
        self.arrived = time.monotonic()
        self._ended.set()
        self._signal.close()


class RayActor:
    """A process somewhere in the cluster, that hosts an object. It ends with whoever started it.

    Args:
        kind: the object's class, importable there.
        args: for its constructor: plain values, which any version of ours can read.
        share: what it takes of its node.
        where: its place in a reservation; without one, the node of this process where there is room.
        name: to be found by, within this job.
        variables: of its environment.
        groups: threads for methods that are answered beside a running one, by group; see `run_in_thread`.
        stays: on the node of this process, and nowhere else.
    """

    def __init__(
        self,
        kind: type[Any],
        args: Sequence[Any] = (),
        *,
        share: NodeShare,
        where: BundlePlace | None = None,
        name: str | None = None,
        variables: Mapping[str, str] | None = None,
        groups: Mapping[str, int] | None = None,
        stays: bool = False,
    ):
        options: dict[str, Any] = {"num_cpus": share.cpus, "num_gpus": share.gpus, "max_restarts": 0, "name": name}
        if variables:
            options["runtime_env"] = {"env_vars": dict(variables)}
        # Ray's stubs know no concurrency_groups here
        remote = cast("Any", ray.remote)(concurrency_groups=dict(groups or {}))(kind)
        self._handle = remote.options(scheduling_strategy=_strategy(where, stays), **options).remote(*args)

    @staticmethod
    def find(name: str) -> "RayActor":
        """An actor that somebody else of this job started. Raises `ActorLost`: there is none."""
        try:
            return RayActor._of(ray.get_actor(name))
        except ValueError:
            raise ActorLost("is gone, with whoever started it") from None

    @staticmethod
    def _of(handle: Any) -> "RayActor":
        actor = object.__new__(RayActor)
        actor._handle = handle
        return actor

    def call(self, method: str, *args: Any) -> RayAnswer:
        """Call a method. Calls are answered in turn."""
        return RayAnswer(getattr(self._handle, method).remote(*args))

    def kill(self) -> None:
        """End its process at once."""
        ray.kill(cast("Any", self._handle), no_restart=True)


def run_in_thread(group: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates a method that is answered by a thread of its own, while another method runs."""
    return cast("Any", ray.method(concurrency_group=group))


def _strategy(where: BundlePlace | None, stays: bool = False) -> Any:
    if stays:
        return NodeAffinitySchedulingStrategy(find_own_node(), soft=False)
    if where is not None:
        return PlacementGroupSchedulingStrategy(where.group, placement_group_bundle_index=where.bundle)
    if not is_actor():
        return "DEFAULT"
    return NodeAffinitySchedulingStrategy(find_own_node(), soft=True, _spill_on_unavailable=True)


def find_own_node() -> str:
    """The name of the node that this process is on."""
    return ray.get_runtime_context().get_node_id()


def find_own_address() -> str:
    """The address at which the other nodes reach this one."""
    return get_node_ip_address()


def list_nodes() -> list[ClusterNode]:
    """The living machines of the cluster."""
    from ray._private.state import available_resources_per_node  # Ray tells nobody else what is free where

    free = available_resources_per_node()
    return [
        ClusterNode(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
            NodeShare(free.get(node["NodeID"], {}).get("CPU", 0.0), free.get(node["NodeID"], {}).get("GPU", 0.0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def reserve_bundles(bundles: Sequence[NodeShare], strategy: str, timeout: float) -> Any:
    """Set bundles aside, all or none. Returns a placement group.

    Raises:
        NoTime: there was no room for all of them after so many seconds; none is held.
    """
    group = placement_group([_resources(share) for share in bundles], strategy)
    if not group.wait(timeout):
        remove_placement_group(group)
        raise TooLate
    return group


def release_bundles(group: Any) -> None:
    """Give up what was reserved, and end what runs there."""
    remove_placement_group(group)


def _resources(share: NodeShare) -> dict[str, float]:
    asked = {"CPU": share.cpus, "GPU": share.gpus}
    return {name: amount for name, amount in asked.items() if amount > 0} or {"CPU": 0.001}


def put_value(value: Any) -> Any:
    """Lay a value down on this node, for any process to `get_value` by what is returned."""
    return ray.put(value)


def get_value(reference: Any, timeout: float) -> Any:
    """The counterpart of `put_value`. Raises `TooLate`, or `ActorLost`: whoever had put it is gone."""
    try:
        return ray.get(reference, timeout=timeout)
    except GetTimeoutError:
        raise TooLate from None
    except RayError as error:
        raise ActorLost(describe_end(error)) from None


def describe_end(error: Exception) -> str:
    """How an actor ended, to follow its name, with what Ray says of it."""
    if isinstance(error, RayTaskError):
        return f"failed within Ray: {error}"
    how = next((words for kind, words in _ENDINGS if isinstance(error, kind)), f"is gone ({type(error).__name__})")
    return f"{how} (Ray says: {' '.join(str(error).split())})"


class ClusterRefused(Exception):  # noqa: N818
    """A cluster does not let this process in; the message says why."""


def is_joined() -> bool:
    """Whether this process is part of a cluster, as an actor is from birth."""
    return ray.is_initialized()


def find_cluster() -> str:
    """host:port of the cluster that this process is part of."""
    return ray.get_runtime_context().gcs_address


def find_local_cluster() -> str:
    """The address of the cluster that `ray start` made this machine part of; empty where there is none."""
    from ray._private.utils import read_ray_address

    return read_ray_address() or ""


def is_actor() -> bool:
    """Whether this process is an actor; what it starts inherits its environment."""
    return ray.get_runtime_context().get_actor_id() is not None


@contextmanager
def pretend_nodes(nodes: int, cpus: int) -> Iterator[Any]:
    """Several nodes, all of them on this machine, to try things out with; yields Ray's `Cluster`, not joined yet."""
    from ray.cluster_utils import Cluster

    plain = {"prestart_worker_first_driver": False, "worker_niceness": 0}
    memory = 256 << 20
    head = {"num_cpus": cpus, "object_store_memory": memory, "include_dashboard": False, "_system_config": plain}
    made = Cluster(True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            made.add_node(num_cpus=cpus, object_store_memory=memory)
        yield made
    finally:
        made.shutdown()


def start_cluster(cpus: float, variables: Mapping[str, str]) -> None:
    """Begin a cluster of this machine alone. It ends with this process, however that ends.

    Args:
        cpus: cores that it pretends to have.
        variables: of the environment of all actors.
    """
    # By default Ray starts a process for every core before anybody asks, and runs all of them at the lowest priority.
    plain = {"prestart_worker_first_driver": False, "worker_niceness": 0}
    cores = max(1, math.ceil(cpus))
    with _own_groups():
        _join(variables, address="local", num_cpus=cores, include_dashboard=False, _system_config=plain)


@contextmanager
def _own_groups() -> Iterator[None]:
    """Ray's processes start outside our process group: a scheduler's SIGTERM to that is for the run to hear, first."""
    services: Any = ray._private.services
    before = services.ConsolePopen
    services.ConsolePopen = partial(before, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = before


def join_cluster(address: str, variables: Mapping[str, str]) -> None:
    """Become part of a cluster. Raises `ClusterRefused`."""
    _join(variables, address=address)


def probe_cluster(address: str) -> None:
    """Ask whether there is a cluster, and return where. Raises `ClusterRefused`. It may take minutes: see `connect`."""
    from ray import _raylet

    try:
        cast("Any", _raylet).GcsClient(address=address)
    except RayError as error:
        raise ClusterRefused(_why(error)) from None


def leave_cluster() -> None:
    """Leave the cluster; what this process started there ends."""
    ray.shutdown()


def _join(variables: Mapping[str, str], **options: Any) -> None:
    # Of the whole job, not of each actor: Ray keeps processes ready for the former alone.
    environment = {"env_vars": dict(variables)}
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        ray.init(runtime_env=environment, **quiet, **options)
    except (RayError, RuntimeError, ConnectionError) as error:
        raise ClusterRefused(_why(error)) from None
    # What Ray would print of workers that died is raised by whoever waits for them, in words.
    ray._private.worker.print_to_stdstream = lambda said, **_: log.debug("%s", "\n".join(said["lines"]))


def _why(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, AuthenticationError):
        return f"the token is missing here or another: docs/cluster.md says where it lies. Ray says: {text}"
    if "Version mismatch" in text:
        return f"another version runs there. Install the same on every machine. Ray says: {text}"
    return text
