"""The memory of a new run, counted from shapes, and checks that this machine has it."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from embodied_rl.actors.learning.memory_budget import find_machine_bytes, format_bytes
from embodied_rl.actors.learning.shape_tensors import ShapeMode
from embodied_rl.actors.learning.update_memory import HeldMemory, count_held
from embodied_rl.actors.placement import describe_placement, resolve_placement
from embodied_rl.assembly import build
from embodied_rl.assembly.build import outline_actor
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.reward.run_scoring import list_extra_columns
from embodied_rl.rollout.buffer import Columns, Rollout
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace
from embodied_rl.schema import PolicyNode, TrainConfig
from embodied_rl.training.device_memory import DeviceMemory, check_device, measure_device
from embodied_rl.training.run_parts import count_decisions, make_replay_format

LARGEST_NEW = 400e6
"""Most bytes of a network that trains from random weights: 100 million parameters in float32."""
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
        replay: bytes of the replay storage on the disk; 0 for none.
        ratio: optimiser steps for each decision; None if their number does not follow from it.
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
    replay: int
    ratio: float | None
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

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return self.learning + self.acting + self.simulators

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
        rows = [("device", self.describe_device()), ("memory", f"{total} at least: {sums}. {top}")]
        rows += [("replay", f"{format_bytes(self.replay)} on the disk")] if self.replay else []
        if self.ratio is not None:
            steps = f"{self.ratio * self.rows:,.6g} optimiser steps an iteration"
            rows.append(("updates", f"{steps}, {self.ratio:g} for each of {self.rows:,} decisions"))
        return rows

    def describe_device(self) -> str:
        """Return device, precision, micro-batch and memory on the device."""
        return self.placement if self.device is None else f"{self.placement}; {self.device.describe()}"


def measure_run(config: TrainConfig, needs: Needs, spec: SimulatorSpec) -> RunSize:
    """Count the memory of a new run from shapes.

    `plan=auto`, and ranks of torchrun, which may be on other nodes, count as one rank.

    Raises:
        UserError: see `embodied_rl.assembly.build.outline_actor`.
    """
    config, plan = replace(config, policy=resolve_placement(config.policy)), config.plan
    actor = outline_actor(config.policy, config.algo.sampler, spec, needs)
    held = count_held(actor)
    segments = config.segments if config.mode == "stream" else 1
    decisions = count_decisions(config, needs, spec, actor) * segments
    known = plan.allocation != "auto" and TorchrunPlace.find() is None
    ranks, workers = (plan.ranks, plan.rollout_workers or 0) if known else (1, 0)
    apart = plan.policy == "process" and not workers
    rows, extras = decisions * config.sim.num_envs // plan.ranks, list_extra_columns(config.reward, spec)
    replay = measure_replay(config, needs, spec, actor, decisions)
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
        simulators=plan.parts if known and plan.allocation == "split" else 0,
        replay=replay,
        ratio=needs.updates_per_decision,
        placement=describe_placement(policy),
        device=measure_device(config, needs, spec, actor.keep, ranks, acting),
    )


def measure_replay(config: TrainConfig, needs: Needs, spec: SimulatorSpec, actor: Actor, decisions: int) -> int:
    """Count the bytes of a run's replay storages on the disk; 0 for a run that stores nothing."""
    if needs.learns_from != "replay" or not config.replay.collect:
        return 0
    return make_replay_format(config, spec, actor, decisions, config.sim.num_envs, needs.stores).nbytes


def count_decision_bytes(actor: Actor, rows: int, config: TrainConfig, extras: Columns | None = None) -> int:
    """Count the bytes of one recorded decision; the actor, on the meta device, is not usable afterwards.

    Args:
        actor: that of the run.
        rows: decisions of a rank; the trace's contents depend on them.
        config, extras: of the run, and the columns that its writers fill.
    """
    with ShapeMode():
        if config.policy.autocast:  # autocast does not support the meta device
            actor = actor.to_empty(device="cpu")
        actor.keep_within(rows, config.policy.cache_gigabytes * 1e9)
        one = Rollout.allocate(actor, 1, 1, device="meta", extras=extras)
    return sum(tensor.nbytes for tensor in one.tensors().values())


def count_observation(spec: SimulatorSpec) -> int:
    """Return the bytes of one environment's observation of one step."""
    pictures = sum(3 * camera.height * camera.width for camera in spec.cameras)
    return pictures + 4 * (len(spec.state_names) + len(spec.privileged_names))


def check_size(config: TrainConfig, size: RunSize) -> None:
    """Check that memory and disk of this machine suffice for a run; raise `UserError` otherwise."""
    check_memory(config, build.find_method(config.algo).needs, size)
    check_disk(config, size)
    if size.device is not None:
        check_device(size.device, config, advise(config))


def check_memory(config: TrainConfig, needs: Needs, size: RunSize) -> None:
    """Check that a local run's least memory fits into this machine; raise `UserError` otherwise."""
    if config.runtime != "local":
        return
    memory, plan = find_machine_bytes(), config.plan
    here = f"this machine has {format_bytes(memory)}"
    if (bare := size.processes * PROCESS_BYTES) > memory:
        counts = {"ranks": plan.ranks, "rollout_workers": plan.rollout_workers}
        counts |= {"slices": plan.slices, "workers": plan.workers} if plan.allocation == "split" else {}
        keys = ", ".join(f"plan.{key}={value}" for key, value in counts.items() if value)
        raise UserError(
            f"{size.processes} processes, of {keys}, take {format_bytes(bare)} "
            f"at least, and {here}. One or two for each core are enough.",
            code="memory-processes",
        )
    if size.networks > memory:
        message = f"{size.describe_networks()}: {format_bytes(size.networks)}, and {here}. {advise(config)}"
        raise UserError(message, code="memory-networks")
    if size.networks + size.rollout > memory:
        raise UserError(explain_rollout(config, needs, size, memory), code="memory-rollout")


def check_disk(config: TrainConfig, size: RunSize) -> None:
    """Check that the replay storages of a local run fit on the disk; raise `UserError` otherwise."""
    folder = Path(config.run.root if config.replay.root is None else config.replay.root).absolute()
    existing = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(existing).free
    if config.runtime == "local" and size.replay > free:
        raise UserError(
            f"The replay storage takes {format_bytes(size.replay)} of the {format_bytes(free)} that {existing} has: "
            f"replay.capacity={config.replay.capacity} decisions, and those between two checkpoints (train.decisions × "
            "checkpoint.every). Lower one of these, or give replay.root on another disk.",
            code="disk-too-small",
        )


def check_environments(num_envs: int, spec: SimulatorSpec) -> None:
    """Check that one step's observations of all environments fit into this machine's memory.

    Raises:
        UserError: it does not.
    """
    if (once := num_envs * count_observation(spec)) > (memory := find_machine_bytes()):
        raise UserError(
            f"sim.num_envs={num_envs} environments show {format_bytes(once)} in one step, and this machine has "
            f"{format_bytes(memory)}. A few dozen are enough.",
            code="memory-observations",
        )


def find_random_weights(policy: PolicyNode, weights: int) -> str | None:
    """Return why a large network of so many bytes needs a checkpoint, where it has none: else it learns too slowly."""
    if policy.checkpoint is not None or weights <= LARGEST_NEW:
        return None
    return (
        f"policy.checkpoint=null: {policy.name} would start from {format_bytes(weights)} of random weights. "
        "Give policy.checkpoint=<folder or file>."
    )


def advise(config: TrainConfig) -> str:
    """Return settings that reduce the memory of networks."""
    policy, ways = config.policy, list[str]()
    if config.plan.allocation != "auto" and config.plan.ranks > 1:
        ways.append("plan.ranks=1 holds one network")
    if policy.train == "full":
        ways.append("policy.train=expert or lora lets a part learn, where the policy knows them")
    if policy.train != "full" and policy.precision != "bfloat16":
        ways.append("policy.precision=bfloat16 halves what is frozen")
    if policy.train == "lora":
        ways.append(f"a smaller policy.lora.rank than {policy.lora.rank}")
    if not policy.options.get("gradient_checkpointing", True):
        ways.append("policy.gradient_checkpointing=true keeps fewer activations")
    if policy.checkpoint is None:
        ways.append(f"embodied-rl list policies {policy.name} shows the sizes to lower")
    return f"Less: {'; '.join(ways)}." if ways else "A machine with more memory is needed."


def explain_rollout(config: TrainConfig, needs: Needs, size: RunSize, memory: float) -> str:
    """Return the message for a rollout that does not fit, with the largest number of environments that does."""
    envs = config.sim.num_envs
    what = f"train.decisions={size.decisions}"
    if needs.fresh_episodes:
        what = f"{size.decisions} decisions of an episode"
    message = (
        f"sim.num_envs={envs} × {what} make a rollout of {format_bytes(size.rollout)}, at "
        f"{format_bytes(size.row_bytes)} a decision, and this machine has {format_bytes(memory)}, of which "
        f"the networks take {format_bytes(size.networks)}."
    )
    free = memory - size.networks
    most, together = int(free * envs // size.rollout), config.plan.parts * needs.group_size
    if config.plan.allocation == "auto":
        together = needs.group_size
    if most >= together:
        return f"{message} Give sim.num_envs={most // together * together} at most."
    decisions = int(free * size.decisions // size.rollout)
    if decisions and not needs.fresh_episodes:
        return f"{message} Give train.decisions={decisions} at most."
    return f"{message} Give fewer environments, smaller pictures, or a shorter horizon."
