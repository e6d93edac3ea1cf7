"""Runtime of a Ray cluster; see `embodied_rl.runtime.processes.handle.Runtime` and docs/cluster.md."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.runtime.processes.handle import Deadlines, NodeShare
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.runtime.ray import cluster, hosting
from embodied_rl.runtime.ray.board import RayBoard
from embodied_rl.runtime.ray.cluster import BundlePlace, CallTimeout
from embodied_rl.runtime.ray.connection import DEADLINE, connect, explain_refusal
from embodied_rl.runtime.ray.handle import RayHandle
from embodied_rl.runtime.ray.launch import launch_ranks

Config = TypeVar("Config")
Result = TypeVar("Result")


class InsufficientResources(RunFailed):
    """The cluster has too few free resources for a plan. The message lists the requested and the free resources."""


class RayRuntime:
    """A `Runtime` that starts processes anywhere in a Ray cluster.

    An actor uses the cluster to which it belongs. Its processes go into its own bundle of the reservation while that
    has free resources, so that a rank's simulators run on its node.

    Args:
        address: "auto", or "host:port"; see `connection.connect`.
        cpus: number of cores that a cluster started here reports to have: the sum of all shares of the plan.
        deadline: seconds until an address must have answered.

    Raises:
        NoCluster: no cluster answers at the address, or it refuses this process.
    """

    def __init__(self, address: str = "auto", *, cpus: float = 1.0, deadline: float = DEADLINE):
        self.connection = connect(address, cpus, deadline)
        self._where = hosting.PLACE[0] if hosting.PLACE else None
        self._held: list[tuple[int, NodeShare, RayHandle]] = []

    def reserve(self, bundles: Sequence[NodeShare], strategy: str = "PACK", timeout: float = 60.0) -> None:
        """Reserve all bundles of a plan, or none, before any process starts.

        The first bundles belong to the ranks of the next `launch`, one each, which include the processes that a rank
        starts itself. Further processes of this process, or of rank 0, that do not fit into its own bundle go into the
        other bundles, empty ones first.

        Args:
            bundles: the bundles; each lies on one node.
            strategy: of Ray: "PACK" on as few nodes as possible, "SPREAD" over many, or their STRICT_ forms.
            timeout: seconds to wait for free resources.

        Raises:
            InsufficientResources: too few resources are free.
        """
        try:
            group = cluster.reserve_bundles(bundles, strategy, timeout)
        except CallTimeout:
            raise InsufficientResources(explain_refusal(bundles, timeout)) from None
        self._where = BundlePlace(group, -1, tuple(bundles))

    def release(self) -> None:
        """Release the reservation and end the processes in it."""
        if self._where is not None:
            cluster.release_bundles(self._where.group)
            self._where = None

    def worker(
        self,
        factory: str,
        kwargs: Mapping[str, Any],
        *,
        name: str,
        deadlines: Deadlines,
        share: NodeShare,
        interpreter: Interpreter | None = None,
        packages: tuple[str, ...] = (),
    ) -> RayHandle:
        """Start a role in an actor and return its handle; see `Runtime.worker`."""
        where = self._bundle_for(share)
        handle = RayHandle(
            factory,
            kwargs,
            name=name,
            deadlines=deadlines,
            share=share,
            where=where,
            interpreter=interpreter,
            packages=packages,
            variables=self.connection.variables,
        )
        if where is not None:
            self._held = [entry for entry in self._held if not entry[2].closed] + [(where.bundle, share, handle)]
        return handle

    def launch(
        self,
        function: Callable[[Config, Ranks], Result],
        config: Config,
        size: int,
        *,
        timeout: float,
        share: NodeShare,
    ) -> Result:
        """Run `function(config, ranks)` on `size` ranks, each in an actor; see `launch.launch_ranks`."""
        places: list[BundlePlace | None] = [None] * size
        if self._where is not None:
            assert size <= len(self._where.bundles), "a reservation holds a bundle for each rank"
            places = [replace(self._where, bundle=rank, ranks=size, used=share) for rank in range(size)]
        return launch_ranks(function, config, places, timeout, share, self.connection.variables)

    def board(self) -> RayBoard:
        """Return a new board; see `Runtime.board`."""
        return RayBoard(self.connection.variables)

    def close(self) -> None:
        """Leave the cluster and end all processes that were started from here."""
        self.connection.close()

    def __enter__(self) -> "RayRuntime":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bundle_for(self, share: NodeShare) -> BundlePlace | None:
        """Return a reserved bundle with free resources: this process's own, or one that no rank owns. Else None."""
        if self._where is None:
            return None
        own, ranks = self._where.bundle, self._where.ranks
        # Empty bundles come first: a process that goes into one will start processes of its own there.
        taken = {bundle for bundle, _, handle in self._held if not handle.closed}
        spare = sorted(range(ranks, len(self._where.bundles)), key=taken.__contains__) if own <= 0 else ()
        for bundle in (*([own] if own >= 0 else []), *spare):
            whole = self._where.bundles[bundle]
            used = [held for where, held, handle in self._held if where == bundle and not handle.closed]
            used += [self._where.used] if bundle == own else []
            cpus, gpus = sum(each.cpus for each in used), sum(each.gpus for each in used)
            if whole.cpus - cpus >= share.cpus - 1e-9 and whole.gpus - gpus >= share.gpus - 1e-9:
                return replace(self._where, bundle=bundle, used=share)
        return None
