"""Size of a run, counted from shapes: rows of a rollout; bytes of networks, optimiser and rollout."""

from contextlib import nullcontext
from dataclasses import dataclass, replace

from embodied_rl.actors.learning.memory_budget import format_bytes
from embodied_rl.actors.learning.update_memory import HeldMemory, count_held, without_memory
from embodied_rl.actors.placement import describe_placement, resolve_placement
from embodied_rl.assembly.outline import outline_actor
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.reward.run_scoring import list_extra_columns
from embodied_rl.rollout.buffer import Columns, Rollout
from embodied_rl.runtime.ranks.torchrun_place import TorchrunPlace
from embodied_rl.schema import Plan, TrainConfig
from embodied_rl.training.device_memory import DeviceMemory, measure_device
from embodied_rl.training.run_parts import count_rollout_decisions

PROCESS_BYTES = 50_000_000
"""Bytes of a Python process with NumPy, at least; one with torch takes several times as much."""


@dataclass(frozen=True)
class RunSize:
    """Least permanent memory of a run on this machine; simulators and activations come on top.

    Attributes:
        held: memory of one network that learns.
        learning, acting: number of such networks, and of networks that only act.
        shards: number of ranks that one optimiser is spread over.
        on_host: whether networks live in this machine's memory, and not on an accelerator.
        decisions: T of a rollout. num_envs: N of it. row_bytes: bytes of one recorded decision.
        copies: number of copies of a rollout: rollout workers hold one of their own.
        simulators: processes that only simulate.
        placement: device and precision, for the user. device: memory of a rank on its GPU; None without one here.
    """

    held: HeldMemory
    learning: int
    acting: int
    shards: int
    on_host: bool
    decisions: int
    num_envs: int
    row_bytes: int
    copies: int
    simulators: int
    placement: str
    device: DeviceMemory | None

    @property
    def rows(self) -> int:
        """Return the decisions of a rollout, over all ranks."""
        return self.decisions * self.num_envs

    @property
    def rollout(self) -> int:
        """Return the bytes of a rollout, with all its copies."""
        return self.rows * self.row_bytes * self.copies

    @property
    def optimiser(self) -> float:
        """Return the bytes of gradients and of Adam's moments, on each rank."""
        return (self.held.gradients + self.held.moments) / self.shards

    @property
    def networks(self) -> float:
        """Return the bytes of all networks and optimisers in this machine's memory."""
        each = self.held.weights + self.optimiser
        return self.on_host * (self.learning * each + self.acting * self.held.weights)

    def count_processes(self) -> int:
        """Return the number of processes."""
        return self.learning + self.acting + self.simulators

    @property
    def processes(self) -> int:
        """Return the bytes of all processes without their data."""
        return self.count_processes() * PROCESS_BYTES

    def describe_networks(self) -> str:
        """Return a line about the memory of networks for the user."""
        ranks = f", on each of {self.learning} ranks" if self.learning > 1 else ""
        also = f", and {self.acting} more networks to act with" if self.acting else ""
        return f"parameters {format_bytes(self.held.weights)}, optimiser {format_bytes(self.optimiser)}{ranks}{also}"

    def describe(self) -> list[tuple[str, str]]:
        """Return the rows that a dry run prints."""
        where = "" if self.on_host else " on the accelerator"
        each = f"rollout {format_bytes(self.rollout)} ({self.rows:,} decisions of {format_bytes(self.row_bytes)})"
        total = format_bytes(self.networks + self.rollout)
        sums = f"{self.describe_networks()}{where}; {each}"
        top = "Simulators come on top" if self.device else "Simulators and activations come on top"
        return [("device", self.describe_device()), ("memory", f"{total} at least: {sums}. {top}")]

    def describe_device(self) -> str:
        """Return device, precision, micro-batch and memory on the device."""
        return self.placement if self.device is None else f"{self.placement}; {self.device.describe()}"


def measure_run(config: TrainConfig, needs: Needs, spec: SimulatorSpec) -> RunSize:
    """Count the memory of a new run from shapes.

    `plan=auto`, and ranks of torchrun, which may be on other nodes, count as one rank.

    Raises:
        UserError: see `embodied_rl.assembly.outline.outline_actor`.
    """
    config, plan = replace(config, policy=resolve_placement(config.policy)), config.plan
    actor = outline_actor(config.policy, config.algo.sampler, spec, needs.critic)
    held = count_held(actor)
    decisions = count_rollout_decisions(config, needs, spec, actor)
    known = plan.allocation != "auto" and TorchrunPlace.find() is None
    ranks, workers = (plan.ranks, plan.rollout_workers or 0) if known else (1, 0)
    apart = plan.policy == "process" and not workers
    rows, extras = decisions * config.sim.num_envs // plan.ranks, list_extra_columns(config.reward, spec)
    policy, row_bytes = config.policy, count_decision_bytes(actor, rows, config, extras)
    acting = workers or (ranks if apart else 0)
    return RunSize(
        held=held,
        learning=ranks,
        acting=acting,
        shards=plan.ranks if plan.learner == "sharded" else 1,
        on_host=policy.device == "cpu",
        decisions=decisions,
        num_envs=config.sim.num_envs,
        row_bytes=row_bytes,
        copies=2 if workers else 1,
        simulators=count_simulator_processes(plan) if known else 0,
        placement=describe_placement(policy),
        device=measure_device(config, needs, spec, actor.keep, ranks, acting),
    )


def count_decision_bytes(actor: Actor, rows: int, config: TrainConfig, extras: Columns | None = None) -> int:
    """Count the bytes of one recorded decision; the actor, on the meta device, is not usable afterwards.

    Args:
        actor: that of the run.
        rows: decisions of a rank; the trace's contents depend on them.
        config, extras: of the run, and the columns that its writers fill.
    """
    with without_memory() if config.policy.autocast else nullcontext():
        if config.policy.autocast:  # autocast does not support the meta device; `without_memory` is slower
            actor = actor.to_empty(device="cpu")
        actor.keep_within(rows, config.policy.cache_gigabytes * 1e9)
        one = Rollout.allocate(actor, 1, 1, device="meta", extras=extras)
    return sum(tensor.nbytes for tensor in one.tensors().values())


def count_simulator_processes(plan: Plan) -> int:
    """Return the number of processes that only simulate."""
    return plan.parts if plan.allocation == "split" else 0
