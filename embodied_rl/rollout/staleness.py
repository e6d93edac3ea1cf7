"""How far what is learned from lies behind: a gate that bounds it, figures, and the mask for what is older still.

The lag of a decision is the version of the weights that learn from it less the version that chose it.

Shapes: T decisions, N environments; any shape will do.
"""

from torch import Tensor

from embodied_rl.interfaces.errors import UserError


class Gate:
    """Decides whether more may be collected, so that nothing is older than the bound when its turn comes (AReaL,
    arXiv:2505.24298, `StalenessManager`):

        capacity = (staleness + version + 1) · B - (accepted + running),  in rows

    The learner takes B rows for each version, in the order in which they were started. What has been started before a
    row is thus learned from before it, and the row's own turn comes no later than version + staleness. All rows of a
    batch count, whether or not they turn out to be valid; only what will be collected anew is `lose`d. One thread asks.

    Attributes:
        version: the newest that has been published.
        accepted: rows finished since version 0. running: rows started and not finished yet.
    """

    def __init__(self, staleness: int, rows: int, version: int = 0) -> None:
        """Let the first rows in.

        Args:
            staleness: the bound, in versions; 0 collects a batch only for the version it is learned with.
            rows: B.
            version: of the weights at the start.

        Raises:
            UserError: a negative bound, or batches without rows.
        """
        if staleness < 0 or rows < 1:
            raise UserError(f"staleness={staleness} must be at least 0, and a batch of {rows} rows at least 1 row.")
        self.staleness, self.rows = staleness, rows
        self.recover(version)

    @property
    def capacity(self) -> int:
        """Rows that may be started now."""
        return (self.staleness + self.version + 1) * self.rows - (self.accepted + self.running)

    def may_start(self, rows: int) -> bool:
        """Whether so many rows may be started now."""
        return rows <= self.capacity

    def start(self, rows: int) -> None:
        """So many rows are being collected from now on, with weights no older than `version`."""
        assert self.may_start(rows), f"{rows} rows were started where {self.capacity} may be"
        self.running += rows

    def finish(self, rows: int) -> None:
        """They wait for the learner."""
        assert rows <= self.running, f"{rows} rows were finished of {self.running} that ran"
        self.running -= rows
        self.accepted += rows

    def lose(self, rows: int) -> None:
        """They will never reach the learner: as many may be started in their place."""
        assert rows <= self.running, f"{rows} rows were lost of {self.running} that ran"
        self.running -= rows

    def publish(self, version: int) -> None:
        """The learner has learned from another batch, and these weights are what came of it."""
        assert version >= self.version, f"version {version} was published after {self.version}"
        self.version = version

    def recover(self, version: int) -> None:
        """Go on from a version of which nothing is left but what it has learned.

        What was accepted for later versions is gone, and counting from 0 would let in version · B rows too many.
        """
        self.version, self.accepted, self.running = version, version * self.rows, 0


def summarise_staleness(version: Tensor, valid: Tensor, present: int, bound: int) -> dict[str, float]:
    """Figures of the lag of valid decisions.

    Args:
        version: int64, of the weights that decided.
        valid: bool, of the same shape.
        present: the version that learns.
        bound: the largest lag that is meant to occur.

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
    """Make decisions invalid that lie further behind than the bound; returns how many valid ones there were.

    Args:
        version: int64, of the weights that decided.
        valid: bool, of the same shape; changed in place.
        present: the version that learns.
        bound: the largest lag that may be learned from.
    """
    older = valid & (present - version > bound)
    valid &= ~older
    return int(older.sum())
