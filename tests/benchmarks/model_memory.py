"""Compute the memory of flow policies at full size from shapes; nothing of that size is allocated or computed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from rich.console import Console
from rich.table import Table

from embodied_rl.actors.flow_inference import Keep
from embodied_rl.actors.learning.update_memory import UpdateMemory, count_row_bytes, count_update, without_memory
from embodied_rl.commands.bench import make_table
from tests.benchmarks import networks, roofline
from tests.benchmarks.networks import NetworkSize
from tests.benchmarks.settings import BenchmarkConfig

MEMORIES = (24, 80, 141)
"""GB (10⁹ bytes) of an RTX 4090, an A100 or H100, and an H200."""
TRAIN = ("full", "expert", "lora")
PRECISIONS = ("float32", "mixed")
KINDS = {"images": "images", "features": "image features", "prefix": "keys and values"}


@dataclass(frozen=True)
class Account:
    """The memory that an update of one policy needs.

    Attributes:
        policy, train: the policy, and its part that learns. keep: the recorded data from which the update starts.
        precision: "float32", or "mixed": frozen weights are stored in bfloat16, and products are computed in bfloat16.
        plain: memory without `gradient_checkpointing`. saving: memory with it.
    """

    policy: str
    train: str
    precision: str
    keep: Keep
    plain: UpdateMemory
    saving: UpdateMemory

    def summary(self) -> dict[str, Any]:
        """Return the account as a dictionary for the report."""
        fits = {f"{size}GB": [each.most_rows(size * 1e9) for each in (self.plain, self.saving)] for size in MEMORIES}
        return asdict(self) | {"rows_within": fits}


def count_memory(policy: str, size: NetworkSize, train: str, precision: str) -> Account:
    """Count the memory of an update; adapters have the default rank."""
    found: dict[bool, UpdateMemory] = {}
    for saving in (False, True):
        actor = networks.lay_out(policy, size, train=train, precision=precision, gradient_checkpointing=saving)
        found[saving] = count_update(actor, autocast=precision == "mixed")
    return Account(policy, train, precision, actor.keep, found[False], found[True])


def count_all(size: NetworkSize) -> list[Account]:
    """Count the memory of every policy, precision, and trained part."""
    return [count_memory(*chosen) for chosen in product(networks.POLICIES, (size,), TRAIN, PRECISIONS)]


def count_recorded(size: NetworkSize) -> list[dict[str, Any]]:
    """Count the bytes of one recorded decision of each policy, by prefix precision and by what the trace keeps."""
    found = list[dict[str, Any]]()
    for policy, precision in product(networks.POLICIES, PRECISIONS):
        actor, kept = networks.lay_out(policy, size, train="expert", precision=precision), dict[str, int]()
        with without_memory():
            actor = actor.to_empty(device="cpu")
            for actor.keep in networks.KEEPS:
                kept[actor.keep] = count_row_bytes(actor.trace_spec())
        found.append({"policy": policy, "precision": precision, **kept})
    return found


def make_held_table(found: Sequence[Account]) -> Table:
    """Build the table of permanently held memory in gigabytes."""
    rows = list[tuple[str, ...]]()
    for each in found:
        held = each.plain.weights, each.plain.gradients, each.plain.moments, each.plain.held
        rows.append((f"{each.policy} {each.train}, {each.precision}", *(f"{value / 1e9:.2f}" for value in held)))
    caption = "GB (10⁹ bytes) that are held all the time where a policy learns."
    return make_table("held", caption, ("policy", "weights", "gradients", "Adam", "all"), rows)


def make_rows_table(found: Sequence[Account]) -> Table:
    """Build the table of megabytes per row, and of the most rows that fit."""
    caption = (
        "MB of each row of a micro-batch, and the most rows that fit into so many GB, "
        "as it is/with gradient checkpointing; what an allocator wastes is not counted."
    )
    cells = list[tuple[str, ...]]()
    for each in found:
        ways = each.plain, each.saving
        rows = "/".join(f"{way.row_bytes / 1e6:.0f}" for way in ways)
        fits = ("/".join(str(way.most_rows(size * 1e9)) for way in ways) for size in MEMORIES)
        cells.append((f"{each.policy} {each.train}, {each.precision}", rows, *fits))
    headings = ("policy", "MB a row", *(f"{size} GB" for size in MEMORIES))
    return make_table("micro-batches", caption, headings, cells)


def make_recorded_table(found: Sequence[dict[str, Any]]) -> Table:
    """Build the table of megabytes of a recorded decision."""
    caption = "Megabytes that a trace holds of a decision, with what a frozen part of the network made of it."
    rows = list[tuple[str, ...]]()
    for each in found:
        stored = "bfloat16" if each["precision"] == "mixed" else "float32"
        rows.append((f"{each['policy']}, {stored} prefix", *(f"{each[keep] / 1e6:.2f}" for keep in KINDS)))
    return make_table("traces", caption, ("policy", *KINDS.values()), rows)


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Compute all figures at full size; the configuration has no effect."""
    size = networks.FULL
    updates, traces, least = count_all(size), count_recorded(size), roofline.count_decisions(size)
    console = Console()
    for table in (make_held_table(updates), make_rows_table(updates), make_recorded_table(traces)):
        console.print(table)
    console.print(roofline.make_limit_table(least))
    return {
        "updates": [each.summary() for each in updates],
        "traces": traces,
        "sizes": {policy: size.text(policy) for policy in networks.POLICIES},
        "sources": {each.name: each.source for each in roofline.ACCELERATORS},
        "limits": [each.summary() for each in least],
    }
