"""The staleness of decisions: a gate that bounds it, metrics, and a mask for decisions that are too old.

The lag of a decision is the version of the weights that learn from it minus the version that chose it.

Shapes: T decisions, N environments; any shape will do.
"""

from torch import Tensor

from embodied_rl.interfaces.errors import UserError


class Gate:
    """Decides whether more rows may be collected, so that no row is older than the bound when it is learned (AReaL,
    arXiv:2505.24298, `StalenessManager`):

        capacity = (staleness + version + 1) · B - (accepted + running),  in rows

    The learner takes B rows for each version, in the order in which they were started. So rows that were started
    earlier are learned earlier, and each row is learned no later than at version + staleness. All rows of a batch
    count, whether valid or not; call `lose` only for rows that will be collected again. Use it from one thread.

    Attributes:
        version: the newest published version.
        accepted: rows finished since version 0. running: rows started and not finished yet.
    """

    def __init__(self, staleness: int, rows: int, version: int = 0) -> None:
        """Create a gate that lets the first batches of `rows` in, at a `version` of the weights.

        A bound (`staleness`) of 0 collects a batch only for the version it is learned with.

        Raises:
            UserError: the bound is negative, or a batch has no rows.
        """
        if staleness < 0 or rows < 1:
            message = f"staleness={staleness} must be at least 0, and a batch of {rows} rows at least 1 row."
            raise UserError(message, code="staleness-out-of-range")
        self.staleness, self.rows = staleness, rows
        self.recover(version)

    @property
    def capacity(self) -> int:
        """Return the number of rows that may be started now."""
        return (self.staleness + self.version + 1) * self.rows - (self.accepted + self.running)

    def may_start(self, rows: int) -> bool:
        """Return whether this number of rows may be started now."""
        return rows <= self.capacity

    def start(self, rows: int) -> None:
        """Count rows as started: they are collected from now on, with weights no older than `version`."""
        assert self.may_start(rows), f"{rows} rows were started where {self.capacity} may be"
        self.running += rows

    def finish(self, rows: int) -> None:
        """Count running rows as accepted: they wait for the learner."""
        assert rows <= self.running, f"{rows} rows were finished of {self.running} that ran"
        self.running -= rows
        self.accepted += rows

    def lose(self, rows: int) -> None:
        """Remove running rows that will never reach the learner; as many may be started in their place."""
        assert rows <= self.running, f"{rows} rows were lost of {self.running} that ran"
        self.running -= rows

    def publish(self, version: int) -> None:
        """Set the newest version, which the learner made from another batch."""
        assert version >= self.version, f"version {version} was published after {self.version}"
        self.version = version

    def recover(self, version: int) -> None:
        """Reset the counts after a restart at `version`, where only the learned weights are left.

        Rows that were accepted for later versions are gone; counting from 0 would let in version · B rows too many.
        """
        self.version, self.accepted, self.running = version, version * self.rows, 0


def summarise_staleness(version: Tensor, valid: Tensor, present: int, bound: int) -> dict[str, float]:
    """Return metrics of the lag of valid decisions behind `present`, the version of the weights that learn.

    `version` is int64, `valid` bool, of one shape; `bound` is the largest lag that should occur.

    Returns:
        `staleness/mean` and `staleness/max` in versions, and `staleness/share_<lag>` of the decisions for each lag from
        0 to the bound; all 0 where nothing is valid.
    """
    lag = present - version[valid]
    count = max(lag.numel(), 1)
    figures = {"mean": float(lag.sum()) / count, "max": float(lag.max()) if lag.numel() else 0.0}
    figures |= {f"share_{behind}": int((lag == behind).sum()) / count for behind in range(bound + 1)}
    return {f"staleness/{name}": value for name, value in figures.items()}


def mask_older(version: Tensor, valid: Tensor, present: int, bound: int) -> int:
    """Invalidate decisions with a lag above the bound, in `valid`; return the number of these that were valid.

    `version` is int64, `valid` bool, of one shape; `present` is the version of the weights that learn.
    """
    older = valid & (present - version > bound)
    valid &= ~older
    return int(older.sum())
