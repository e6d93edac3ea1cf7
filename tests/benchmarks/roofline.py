"""Compute a lower bound of a decision's time on an accelerator, from its operations and from the bytes it reads."""

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from embodied_rl.actors.learning.shape_tensors import ShapeMode
from embodied_rl.interfaces.backbone import PolicyInput
from tests.benchmarks import networks
from tests.benchmarks.networks import NetworkSize

ROWS, STEPS = (1, 32), (4, 10)


@dataclass(frozen=True)
class Accelerator:
    """The figures of an accelerator as its maker states them.

    Attributes:
        name: name of the product.
        bandwidth: memory bandwidth in bytes per second.
        speed: bfloat16 operations per second with float32 accumulation, without sparsity.
        source: document that states the figures.
    """

    name: str
    bandwidth: float
    speed: float
    source: str


ACCELERATORS = (
    Accelerator("RTX 4090", 1.008e12, 165.2e12, "NVIDIA Ada GPU Architecture whitepaper, appendix A"),
    Accelerator("H100 SXM", 3.35e12, 989.5e12, "NVIDIA H100 data sheet; half of its figure with sparsity"),
    Accelerator("H200 SXM", 4.8e12, 989.5e12, "NVIDIA H200 data sheet; half of its figure with sparsity"),
)


@dataclass(frozen=True)
class Arithmetic:
    """Floating-point operations, and bytes read: weights, and cached keys and values."""

    operations: float
    read: float

    def seconds(self, on: Accelerator) -> float:
        """Return a lower bound in seconds; it assumes that reading and computing overlap completely."""
        return max(self.operations / on.speed, self.read / on.bandwidth)


@dataclass(frozen=True)
class DecisionLimit:
    """The work of a batch of decisions: the prefix once, then each denoise step; all in bfloat16."""

    policy: str
    rows: int
    prefix: Arithmetic
    step: Arithmetic

    def seconds(self, on: Accelerator, steps: int) -> float:
        """Return a lower bound in seconds for a decision of `steps` denoise steps."""
        return self.prefix.seconds(on) + steps * self.step.seconds(on)

    def summary(self) -> dict[str, Any]:
        """Return the work and its lower bounds as a dictionary for the report."""
        least = {each.name: {f"K={steps}": self.seconds(each, steps) for steps in STEPS} for each in ACCELERATORS}
        return asdict(self) | {"seconds_at_least": least}


def count_decision(policy: str, size: NetworkSize, rows: int) -> DecisionLimit:
    """Count the operations and bytes of a policy's decision from its shapes."""
    actor = networks.lay_out(policy, size)
    actor.bfloat16()
    with ShapeMode(), torch.no_grad():
        network = actor.to_empty(device="cpu").backbone
        spec = network.spec
        pixels = torch.zeros(rows, *spec.image_size, 3, dtype=torch.uint8)
        tokens = torch.zeros(rows, spec.token_length, dtype=torch.int64)
        given = PolicyInput(dict.fromkeys(spec.cameras, pixels), torch.zeros(rows, spec.state_dim), tokens)
        x, t = torch.zeros(rows, spec.horizon, spec.action_dim), torch.ones(rows)
        with _operations() as prefix:
            context = network.encode(given)
        with _operations() as step:
            network.velocity(x, t, context)
    seen = {id(parameter) for parameter in network.prefix_parameters()}
    looked_up = sum(each.weight.nbytes for each in network.modules() if isinstance(each, nn.Embedding))
    weights = sum(parameter.nbytes for parameter in network.prefix_parameters()) - looked_up
    expert = sum(parameter.nbytes for parameter in network.parameters() if id(parameter) not in seen)
    works = Arithmetic(prefix.get_total_flops(), weights), Arithmetic(step.get_total_flops(), expert + context.nbytes)
    return DecisionLimit(policy, rows, *works)


def count_decisions(size: NetworkSize) -> list[DecisionLimit]:
    """Count the work of every policy, for one decision and for many at once."""
    return [count_decision(policy, size, rows) for policy, rows in product(networks.POLICIES, ROWS)]


def _operations() -> FlopCounterMode:
    """Build torch's operation counter, with the CPU attention kernel added, which torch does not count."""

    def attention(query: Any, key: Any, value: Any, *rest: Any, **keywords: Any) -> int:
        return sdpa_flop_count(query, key, value)

    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    return FlopCounterMode(display=False, custom_mapping={kernel: attention})
