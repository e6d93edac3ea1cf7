"""Measure the time that a cached prefix saves a flow policy, in a decision and in an update."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from embodied_rl.actors.flow import FlowActor
from embodied_rl.benchmarks.stopwatch import TurnTimes, hold_one_thread, take_turns
from embodied_rl.interfaces.backbone import Context, FlowBackbone, PolicyInput
from embodied_rl.interfaces.policy import Trace
from embodied_rl.mathematics.flow.sampler import ode_sample
from embodied_rl.runtime.ranks.collective import Ranks
from embodied_rl.training.algorithms.batch import Batch
from embodied_rl.training.algorithms.clipped import ClippedConfig, ClippedUpdate
from tests.benchmarks import networks
from tests.benchmarks.networks import NetworkSize
from tests.benchmarks.settings import BenchmarkConfig

STEPS = (4, 10)
"""Denoise steps of a decision."""


@dataclass(frozen=True)
class PrefixCase:
    """A network size, the number of observations of a decision, and the number of decisions of an update."""

    size: NetworkSize
    asked: int
    learned: int


HOST = (PrefixCase(networks.SMALL, 4, 8), PrefixCase(networks.TINY, 3, 3))
ACCELERATOR = (PrefixCase(networks.FULL, 1, 4), PrefixCase(networks.FULL, 32, 16))


@dataclass(frozen=True)
class Denoising:
    """Timed decisions, with the prefix encoded once or at every step.

    Attributes:
        policy, size, rows, steps: the case: K = `steps` denoise steps for `rows` observations.
        turns: times of "cached" and "uncached", and of "compiled" if the K steps were compiled.
        difference: largest difference between cached and uncached actions; compiled: between compiled and cached ones.
    """

    policy: str
    size: NetworkSize
    rows: int
    steps: int
    turns: TurnTimes
    difference: float
    compiled: float | None = None

    def summary(self) -> dict[str, Any]:
        """Return the measurement as a dictionary for the report."""
        ratios = {"ratio": self.turns.ratio, "processor_ratio": self.turns.processor_ratio}
        return {
            "policy": self.policy, "sizes": self.size.text(self.policy), "rows": self.rows, "steps": self.steps,
            "difference": self.difference, "compiled_difference": self.compiled, **self.turns.summary(),
            **{name: ratio("uncached", "cached") for name, ratio in ratios.items()},
        }  # fmt: skip


@dataclass(frozen=True)
class Update:
    """Timed optimiser steps on the same decisions, one for each kind of trace.

    Attributes:
        policy, size, rows: the case: `rows` decisions in an optimiser step.
        turns: times of "images", "features" and "prefix"; the first two compute the rest of the prefix again.
        difference: largest difference between log-probabilities from "prefix" and from "images".
        row_bytes: bytes of a decision in each kind of trace.
        device_bytes: peak memory allocated on the accelerator; None on the host.
    """

    policy: str
    size: NetworkSize
    rows: int
    turns: TurnTimes
    difference: float
    row_bytes: dict[str, int]
    device_bytes: int | None = None

    def rate(self, keep: str) -> float:
        """Return the decisions per second of a kind of trace."""
        return self.rows / self.turns.seconds(keep)

    def summary(self) -> dict[str, Any]:
        """Return the measurement as a dictionary for the report."""
        again = ("images", "features")
        return {
            "policy": self.policy, "sizes": self.size.text(self.policy), "rows": self.rows,
            "difference": self.difference, "bytes_of_a_decision": self.row_bytes, "device_bytes": self.device_bytes,
            **self.turns.summary(),
            "decisions_per_second": {keep: self.rate(keep) for keep in networks.KEEPS},
            "ratio": {keep: self.turns.ratio(keep, "prefix") for keep in again},
            "processor_ratio": {keep: self.turns.processor_ratio(keep, "prefix") for keep in again},
        }  # fmt: skip


def measure_policies(config: BenchmarkConfig) -> tuple[list[Denoising], list[Update]]:
    """Measure every case, policy and number of steps; with one thread on the host."""
    device = torch.device(config.device)
    cases = HOST if device.type == "cpu" else ACCELERATOR
    decisions, updates = list[Denoising](), list[Update]()
    with hold_one_thread():
        for case, policy in product(cases, networks.POLICIES):
            settings = (config.seconds, str(device), config.compiled)
            decisions += [measure_denoising(policy, case.size, case.asked, steps, *settings) for steps in STEPS]
            updates.append(measure_update(policy, case.size, case.learned, config.seconds, str(device)))
    return decisions, updates


def decide_cached(network: FlowBackbone, given: PolicyInput, x: Tensor, steps: int) -> Tensor:
    """Compute actions [n, H, D] from x₁ by K Euler steps; encode the prefix once."""
    return denoise(network, x, network.encode(given), steps)


def decide_uncached(network: FlowBackbone, given: PolicyInput, x: Tensor, steps: int) -> Tensor:
    """Compute the same actions with the whole network at every step, as a sampler without a cache does."""
    return ode_sample(lambda x, t: network.velocity(x, t, network.encode(given)), x, steps)


def denoise(network: FlowBackbone, x: Tensor, context: Context, steps: int) -> Tensor:
    """Integrate K Euler steps from `x` with an encoded context."""
    return ode_sample(lambda x, t: network.velocity(x, t, context), x, steps)


def compile_decision(network: FlowBackbone, backend: str = "inductor") -> Callable[[PolicyInput, Tensor, int], Tensor]:
    """Return a function like `decide_cached` with its K steps compiled as one graph."""
    unrolled = torch.compile(partial(denoise, network), fullgraph=True, backend=backend)
    return lambda given, x, steps: unrolled(x, network.encode(given), steps)


@torch.no_grad()
def measure_denoising(
    policy: str, size: NetworkSize, rows: int, steps: int, seconds: float, device: str = "cpu", unrolled: bool = False
) -> Denoising:
    """Time cached and uncached decisions in turns, and compiled ones if `unrolled`."""
    actor = _actor(policy, size, device)
    network, given = actor.backbone, networks.make_inputs(actor, rows)
    x = torch.randn(rows, network.spec.horizon, network.spec.action_dim).to(device)
    works: dict[str, Callable[[], Tensor]] = {
        "cached": lambda: decide_cached(network, given, x, steps),
        "uncached": lambda: decide_uncached(network, given, x, steps),
    }
    if unrolled:
        works["compiled"] = partial(compile_decision(network), given, x, steps)
    actions = {name: work() for name, work in works.items()}
    difference = {name: float((value - actions["cached"]).abs().max()) for name, value in actions.items()}
    turns = take_turns(works, seconds, device)
    return Denoising(policy, size, rows, steps, turns, difference["uncached"], difference.get("compiled"))


def measure_update(policy: str, size: NetworkSize, rows: int, seconds: float, device: str = "cpu") -> Update:
    """Time an optimiser step of the clipped objective, in turns over the kinds of trace; only the expert learns."""
    actor = _actor(policy, size, device)
    traces = networks.make_traces(actor, networks.make_inputs(actor, rows))
    with torch.no_grad():
        scores = {keep: actor.evaluate(trace).log_prob for keep, trace in traces.items()}
    config = ClippedConfig(epochs=1, minibatch=rows, target_kl=None, lr=1e-6)
    update = ClippedUpdate(config, actor, Ranks(), seed=0, iterations=1)
    batches = {keep: _batch(trace, scores[keep]) for keep, trace in traces.items()}
    on_accelerator = torch.device(device).type == "cuda"
    if on_accelerator:
        torch.cuda.reset_peak_memory_stats(device)
    turns = take_turns({keep: partial(update.run, [batch], 0) for keep, batch in batches.items()}, seconds, device)
    most = torch.cuda.max_memory_allocated(device) if on_accelerator else None
    difference = float((scores["prefix"] - scores["images"]).abs().max())
    row_bytes = {keep: sum(value[0].nbytes for value in trace.values()) for keep, trace in traces.items()}
    return Update(policy, size, rows, turns, difference, row_bytes, most)


def _actor(policy: str, size: NetworkSize, device: str) -> FlowActor:
    precision = "mixed" if torch.device(device).type == "cuda" else "float32"
    return networks.fill_actor(networks.lay_out(policy, size, train="expert", precision=precision), device)


def _batch(trace: Trace, log_prob: Tensor) -> Batch:
    rows = len(log_prob)
    advantage = torch.randn(rows, generator=torch.Generator().manual_seed(0))
    return Batch(trace, log_prob, torch.ones(log_prob.shape[:2], dtype=torch.bool), advantage, torch.arange(rows))


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure decisions and updates of π0 and π0.5."""
    decisions, updates = measure_policies(config)
    return {"decisions": [each.summary() for each in decisions], "updates": [each.summary() for each in updates]}
