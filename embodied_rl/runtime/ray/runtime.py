"""The runtime of a cluster: see `embodied_rl.runtime.base.Runtime`, and docs/cluster.md."""

from collections.abc import Mapping, Sequence
from typing import Any

from embodied_rl.runtime.base import Deadlines, Share
from embodied_rl.runtime.handle import RunFailed
from embodied_rl.runtime.interpreter import Interpreter
from embodied_rl.runtime.ray import cluster, hosting
from embodied_rl.runtime.ray.cluster import NoTime, Where
from embodied_rl.runtime.ray.connection import DEADLINE, connect
from embodied_rl.runtime.ray.handle import RayHandle
from embodied_rl.runtime.ray.room import none_for


class NoRoom(RunFailed):
    """The cluster has less than a plan asks for; the message says what, and what is free where."""


class RayRuntime:
    """Starts processes anywhere in a Ray cluster.

    In an actor, the cluster is the one that the actor is in, and its processes go into its own bundle of the
    reservation as long as there is room, so that a rank's simulators run beside it.

    Args:
        address: "auto", or "host:port"; see `connection.connect`.
        cpus: cores that a cluster begun here pretends to have: the sum of all shares of the plan.
        deadline: seconds until an address must have answered.

    Raises:
        NoCluster: nobody answers there, or refuses.
    """

    def __init__(self, address: str = "auto", *, cpus: float = 1.0, deadline: float = DEADLINE):
        self.connection = connect(address, cpus, deadline)
        self._where = hosting.PLACE[0] if hosting.PLACE else None
        self._taken: dict[int, Share] = {}

    def reserve(self, bundles: Sequence[Share], strategy: str = "PACK", timeout: float = 60.0) -> None:
        """Set aside, before anything starts, what a plan needs; all of it or nothing.

        The first bundles belong to the ranks of the next `launch`, one each, with room for the processes that a rank
        starts itself. What this process, or rank 0, starts beyond its own bundle goes into the others, in order.

        Args:
            bundles: each on one node.
            strategy: Ray's: "PACK" on as few nodes as can be, "SPREAD" over many, or their STRICT_ forms.
            timeout: seconds to wait for room.

        Raises:
            NoRoom: there is less; the message says what was asked for and what is free where.
        """
        try:
            group = cluster.reserve(bundles, strategy, timeout)
        except NoTime:
            raise NoRoom(none_for(bundles, timeout)) from None
        self._where = Where(group, -1, tuple(bundles))

    def worker(
        self,
        factory: str,
        kwargs: Mapping[str, Any],
        *,
        name: str,
        deadlines: Deadlines,
        share: Share,
        interpreter: Interpreter | None = None,
        packages: tuple[str, ...] = (),
    ) -> RayHandle:
        """See `Runtime.worker`."""
        return RayHandle(
            factory,
            kwargs,
            name=name,
            deadlines=deadlines,
            share=share,
            where=self._bundle_for(share),
            interpreter=interpreter,
            packages=packages,
            variables=self.connection.variables,
        )

    def close(self) -> None:
        """Leave the cluster; everything that was started from here ends."""
        self.connection.close()

    def __enter__(self) -> "RayRuntime":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bundle_for(self, share: Share) -> Where | None:
        return None
