"""Interface to Ray, which starts processes on other machines ("actors") and returns the results of their calls.

No other module imports Ray, and no Ray error leaves this module: a lost actor raises `ActorDied`.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, cast

from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime.processes.handle import NodeShare

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
    (OwnerDiedError, "was ended with the process that started it"),
    (ActorPlacementGroupRemoved, "was ended with its reservation"),
    (ActorDiedError, "has died"),
    (RayActorError, "is unreachable"),
)
"""Descriptions of Ray's errors; subclasses come before their base classes."""


class ActorDied(Exception):  # noqa: N818
    """An actor is gone. The message is a predicate to put after the actor's name: "has died (Ray says: …)"."""


class CallTimeout(Exception):  # noqa: N818
    """A result did not arrive in time, or a reservation found no free resources in time."""


@dataclass(frozen=True)
class ClusterNode:
    """A machine of the cluster, with its total and its free cores and GPUs."""

    name: str
    address: str
    cpus: float
    gpus: float
    free: NodeShare

    def can_host(self, share: NodeShare) -> bool:
        """Return whether a process with this share could start on the node now."""
        return self.free.cpus >= share.cpus and self.free.gpus >= share.gpus


@dataclass(frozen=True)
class BundlePlace:
    """The bundle of a reservation in which a process starts or runs.

    Attributes:
        group: Ray's placement group.
        bundle: index of the bundle.
        bundles: the shares of all bundles.
        ranks: number of leading bundles, which belong to ranks and to the processes that they start.
        used: the part of the bundle that the process itself uses.
    """

    group: Any
    bundle: int
    bundles: tuple[NodeShare, ...]
    ranks: int = 0
    used: NodeShare = field(default_factory=lambda: NodeShare(0.0))


class RayAnswer:
    """The future result of a call of an actor.

    Attributes:
        readable: connection that becomes readable (closed at the other end) when the result has arrived.
        arrived: time of arrival, on the clock `time.monotonic`.
    """

    def __init__(self, reference: Any):
        readable, self._signal = Pipe(duplex=False)
        self.readable, self.arrived = cast("Connection", readable), 0.0
        self._ended = threading.Event()

        def arrive(_: object) -> None:
            self.arrived = time.monotonic()
            self._ended.set()
            self._signal.close()

        self._future = reference.future()
        self._future.add_done_callback(arrive)

    def done(self) -> bool:
        """Return whether the result has arrived, so that `take` does not wait."""
        return self._ended.is_set()

    def take(self, timeout: float) -> Any:
        """Wait for the result and return it.

        Raises:
            CallTimeout: the result did not arrive within `timeout` seconds.
            ActorDied: the actor is gone.
        """
        if not self._ended.wait(timeout):
            raise CallTimeout
        try:
            return self._future.result()
        except RayError as error:
            raise ActorDied(describe_end(error)) from None


class RayActor:
    """A process in the cluster that hosts an object. It ends with the process that started it.

    Args:
        kind: the object's class, importable on every node.
        args: for its constructor: plain values, which any version of our package can read.
        share: the cores and GPUs that it reserves.
        where: its place in a reservation. Without one an actor prefers its own node if that has free resources.
        name: name for `find`, within this job.
        variables: environment variables of the process.
        groups: threads per group, for methods that run while another one runs; see `run_in_thread`.
        stays: whether it must run on the node of this process.
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
        strategy: Any = "DEFAULT"
        if stays:
            strategy = NodeAffinitySchedulingStrategy(find_own_node(), soft=False)
        elif where is not None:
            strategy = PlacementGroupSchedulingStrategy(where.group, placement_group_bundle_index=where.bundle)
        elif is_actor():
            strategy = NodeAffinitySchedulingStrategy(find_own_node(), soft=True, _spill_on_unavailable=True)
        # Ray's stubs lack concurrency_groups
        remote = cast("Any", ray.remote)(concurrency_groups=dict(groups or {}))(kind)
        self._handle = remote.options(scheduling_strategy=strategy, **options).remote(*args)

    @staticmethod
    def find(name: str) -> "RayActor":
        """Return an actor that any process of this job started, by its name. Raise `ActorDied` if there is none."""
        try:
            handle = ray.get_actor(name)
        except ValueError:
            raise ActorDied("is gone, with the process that started it") from None
        actor = object.__new__(RayActor)
        actor._handle = handle
        return actor

    def call(self, method: str, *args: Any) -> RayAnswer:
        """Start a call of a method and return its future result. The actor runs calls in order."""
        return RayAnswer(getattr(self._handle, method).remote(*args))

    def kill(self) -> None:
        """End the actor's process at once."""
        ray.kill(cast("Any", self._handle), no_restart=True)


def run_in_thread(group: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for a method that runs in a thread of `group`, while another method runs."""
    return cast("Any", ray.method(concurrency_group=group))


def find_own_node() -> str:
    """Return the name of the node on which this process runs."""
    return ray.get_runtime_context().get_node_id()


def find_own_address() -> str:
    """Return the address at which the other nodes reach this node."""
    return get_node_ip_address()


def list_nodes() -> list[ClusterNode]:
    """Return the nodes of the cluster that are alive."""
    from ray._private.state import available_resources_per_node  # no public API gives it per node

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
    """Reserve all bundles or none, and return the placement group.

    Raises:
        CallTimeout: there were too few free resources within `timeout` seconds; no bundle is reserved.
    """
    resources = [
        {name: amount for name, amount in (("CPU", share.cpus), ("GPU", share.gpus)) if amount > 0} or {"CPU": 0.001}
        for share in bundles
    ]
    group = placement_group(resources, strategy)
    if not group.wait(timeout):
        remove_placement_group(group)
        raise CallTimeout
    return group


def release_bundles(group: Any) -> None:
    """Release a reservation and end the processes in it."""
    remove_placement_group(group)


def put_value(value: Any) -> Any:
    """Store a value on this node, and return a reference with which any process can `get_value`."""
    return ray.put(value)


def get_value(reference: Any, timeout: float) -> Any:
    """Return a value of `put_value`. Raise `CallTimeout`, or `ActorDied` if the process that stored it is gone."""
    try:
        return ray.get(reference, timeout=timeout)
    except GetTimeoutError:
        raise CallTimeout from None
    except RayError as error:
        raise ActorDied(describe_end(error)) from None


def describe_end(error: Exception) -> str:
    """Return how an actor ended, as a predicate to put after its name, with Ray's own message."""
    if isinstance(error, RayTaskError):
        return f"failed within Ray: {error}"
    how = next((text for kind, text in _ENDINGS if isinstance(error, kind)), f"is gone ({type(error).__name__})")
    return f"{how} (Ray says: {' '.join(str(error).split())})"


class ClusterRefused(Exception):  # noqa: N818
    """A cluster refused this process; the message gives the reason."""


def is_joined() -> bool:
    """Return whether this process is part of a cluster; an actor always is."""
    return ray.is_initialized()


def find_cluster() -> str:
    """Return the "host:port" of the cluster that this process is part of."""
    return ray.get_runtime_context().gcs_address


def find_local_cluster() -> str:
    """Return the address of the cluster that `ray start` added this machine to, or an empty text if there is none."""
    from ray._private.utils import read_ray_address

    return read_ray_address() or ""


def is_actor() -> bool:
    """Return whether this process is an actor, whose child processes inherit its environment."""
    return ray.get_runtime_context().get_actor_id() is not None


def start_cluster(cpus: float, variables: Mapping[str, str]) -> None:
    """Start a cluster of this machine only. It ends with this process, even by a crash.

    Args:
        cpus: number of cores that it reports to have.
        variables: environment variables of all actors.
    """
    # By default Ray starts a process for every core in advance, and runs all of them at the lowest priority.
    plain = {"prestart_worker_first_driver": False, "worker_niceness": 0}
    cores = max(1, math.ceil(cpus))
    # Ray's processes start outside our process group, so that a scheduler's SIGTERM to the group reaches only us.
    services: Any = ray._private.services
    before = services.ConsolePopen
    services.ConsolePopen = partial(before, process_group=0)
    try:
        _join(variables, address="local", num_cpus=cores, include_dashboard=False, _system_config=plain)
    finally:
        services.ConsolePopen = before


def join_cluster(address: str, variables: Mapping[str, str]) -> None:
    """Join a cluster. Raise `ClusterRefused` if it refuses this process."""
    _join(variables, address=address)


def probe_cluster(address: str) -> None:
    """Check that a cluster answers at an address. Raise `ClusterRefused` if not. It may take minutes: see `connect`."""
    from ray import _raylet

    try:
        cast("Any", _raylet).GcsClient(address=address)
    except RayError as error:
        raise ClusterRefused(_describe_refusal(error)) from None


def leave_cluster() -> None:
    """Leave the cluster, and end the processes that this process started in it."""
    ray.shutdown()


def _join(variables: Mapping[str, str], **options: Any) -> None:
    # Variables of the whole job, not of each actor: Ray keeps processes ready only for the job's environment.
    environment = {"env_vars": dict(variables)}
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        ray.init(runtime_env=environment, **quiet, **options)
    except (RayError, RuntimeError, ConnectionError, TimeoutError) as error:
        raise ClusterRefused(_describe_refusal(error)) from None
    except Exception as error:
        if type(error) is not Exception:  # Ray raises a bare one if its own processes do not start
            raise
        raise ClusterRefused(_describe_refusal(error)) from None
    # Ray would print the deaths of workers, but our handles already raise them with a message.
    ray._private.worker.print_to_stdstream = lambda output, **_: log.debug("%s", "\n".join(output["lines"]))


def _describe_refusal(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, AuthenticationError):
        return f"the token is missing here or differs: docs/cluster.md describes where it is. Ray says: {text}"
    if "Version mismatch" in text:
        return f"another version runs there. Install the same on every machine. Ray says: {text}"
    return text
