"""Compute the memory of flow policies at full size from shapes; nothing of that size is allocated or computed."""

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from embodied_rl.actors.learning.shape_tensors import ShapeMode
from embodied_rl.actors.learning.update_memory import UpdateMemory, count_row_bytes, count_update
from embodied_rl.actors.network_actor import Keep
from tests.benchmarks import networks, roofline
from tests.benchmarks.networks import NetworkSize
from tests.benchmarks.settings import BenchmarkConfig

MEMORIES = (24, 80, 141)
"""GB (10⁹ bytes) of an RTX 4090, an A100 or H100, and an H200."""
TRAIN = ("full", "expert", "lora")
PRECISIONS = ("float32", "mixed")


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
        with ShapeMode():
            actor = actor.to_empty(device="cpu")
            for actor.keep in networks.KEEPS:
                kept[actor.keep] = count_row_bytes(actor.trace_spec())
        found.append({"policy": policy, "precision": precision, **kept})
    return found


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Compute all figures at full size; the configuration has no effect."""
    size = networks.FULL
    return {
        "updates": [each.summary() for each in count_all(size)],
        "traces": count_recorded(size),
        "sizes": {policy: size.text(policy) for policy in networks.POLICIES},
        "sources": {each.name: each.source for each in roofline.ACCELERATORS},
        "limits": [each.summary() for each in roofline.count_decisions(size)],
    }
