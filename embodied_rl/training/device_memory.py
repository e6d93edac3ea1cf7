"""Memory of a run on its GPU, counted from shapes, and the largest micro-batch that fits."""

from dataclasses import dataclass, replace

import torch

from embodied_rl.actors.learning.memory_budget import SHARE, find_free_bytes, format_bytes
from embodied_rl.actors.learning.shape_tensors import ShapeMode
from embodied_rl.actors.learning.update_memory import UpdateMemory, count_acting, count_update
from embodied_rl.assembly import build
from embodied_rl.assembly.build import outline_actor
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace
from embodied_rl.schema import TrainConfig
from embodied_rl.training.predicted_hours import describe_hours

GPUS = (24, 48, 80, 141)
"""Memory of the GPUs that `compare_gpus` names, in GB of 10⁹ bytes."""


@dataclass(frozen=True)
class DeviceMemory:
    """The memory that one rank takes on its GPU; all sizes are in bytes.

    Attributes:
        update: of the rank's update.
        acting: peak of temporary tensors while the policy acts, or is evaluated.
        free: memory that the rank may take.
        micro_batch: rows of one gradient computation.
        minibatch: rows of a minibatch on this rank.
    """

    update: UpdateMemory
    acting: int
    free: float
    micro_batch: int
    minibatch: int

    @property
    def peak(self) -> float:
        """Return the largest amount of memory that is taken at once."""
        return max(self.update.needed(self.micro_batch), self.update.held + self.acting)

    def describe(self) -> str:
        """Return a line about micro-batch and memory for the user."""
        rows = f"micro-batches of {self.micro_batch} of {self.minibatch} rows"
        return f"{rows}, about {format_bytes(self.peak)} of the {format_bytes(self.free)} that a rank may take"


def measure_device(
    config: TrainConfig, needs: Needs, spec: SimulatorSpec, keep: str, learning: int, acting: int
) -> DeviceMemory | None:
    """Count the memory of a run's ranks on their GPUs; return None without a GPU here.

    Args:
        config: of the run, with `policy.device` and `policy.autocast` resolved.
        needs, spec: of its algorithm and simulator.
        keep: what its traces keep of an observation.
        learning, acting: number of processes on this machine that learn, and that only act.
    """
    device, plan = torch.device(config.policy.device), config.plan
    if device.type != "cuda" or config.runtime != "local":
        return None
    shards = plan.ranks if plan.learner == "sharded" else 1
    together = config.sim.num_envs // (1 if plan.allocation == "auto" else plan.collectors * plan.slices)
    actor = outline_actor(config.policy, config.algo.sampler, spec, needs)
    update, peak = count_memory(config, actor, keep, together)
    update = replace(update, **{name: getattr(update, name) // shards for name in ("gradients", "moments", "step")})
    others = acting / learning * (update.weights + peak)
    free = find_free_bytes(device, learning) - others
    minibatch = max(1, (needs.minibatch or config.sim.num_envs * config.train.decisions) // plan.ranks)
    given = read_micro_batch(config, minibatch)
    rows = given if isinstance(given, int) else min(minibatch, update.most_rows(free))
    return DeviceMemory(update, peak, free, min(rows, minibatch), minibatch)


def count_memory(config: TrainConfig, actor: Actor, keep: str, rows: int) -> tuple[UpdateMemory, int]:
    """Count the memory of an update, and of deciding for `rows` observations, with the policy's device and precision.

    Args:
        config: of the run.
        actor: its outline, which serves further counts of this kind only afterwards.
        keep: what its traces keep of an observation.
        rows: environments that the policy decides for together.
    """
    actor.keep = keep
    return count_update(actor, bool(config.policy.autocast)), count_acting(actor, rows)


def compare_gpus(config: TrainConfig, needs: Needs, spec: SimulatorSpec) -> list[tuple[str, str]]:
    """Describe which micro-batches fit GPUs of usual sizes, and the hours there, if one GPU does everything.

    They are rows of text for a machine without a GPU.

    Args:
        config: of the run, with `policy.precision` and `policy.autocast` as given: null becomes what it is on a GPU.
        needs, spec: of its algorithm and simulator.
    """
    config = place_on_gpu(config)
    actor = outline_actor(config.policy, config.algo.sampler, spec, needs)
    keep, rows = choose_keep(config, needs, spec, actor)
    update, acting = count_memory(config, actor, keep, config.sim.num_envs)
    fits, fitting = list[str](), list[float]()
    for size in GPUS:
        free = SHARE * size * 1e9
        most = min(update.most_rows(free), needs.minibatch or rows) if update.held + acting <= free else 0
        fits.append(f"{size} GB: {f'micro-batches of {most}' if most else 'too small'}")
        fitting += [size] if most else []
    need = f"parameters and optimiser take {format_bytes(update.held)}, acting for {config.sim.num_envs} environments"
    gpus = f"one GPU of {', '.join(fits)}. There {need} {format_bytes(acting)} more"
    return [("GPUs", gpus), ("hours", describe_hours(config, needs, actor, rows, update.operations, fitting))]


def place_on_gpu(config: TrainConfig) -> TrainConfig:
    """Return the configuration with its precision on a GPU, for counting where there may be none."""
    policy = config.policy
    autocast = policy.autocast is None or policy.autocast
    precision = policy.precision or ("bfloat16" if autocast and policy.train != "full" else "float32")
    return replace(config, policy=replace(policy, device="cpu", autocast=autocast, precision=precision))


def choose_keep(config: TrainConfig, needs: Needs, spec: SimulatorSpec, actor: Actor) -> tuple[str, int]:
    """Return what traces keep of an observation within `policy.cache_gigabytes`, and the decisions of a rollout.

    `actor` is an outline, and serves counts of memory and operations only afterwards.
    """
    decisions = needs.count_decisions(config.train.decisions, spec.horizon, actor.embodiment.executed)
    rows = config.sim.num_envs * decisions
    with ShapeMode():
        return actor.keep_within(rows, config.policy.cache_gigabytes * 1e9), rows


def check_device(found: DeviceMemory, config: TrainConfig, advice: str) -> None:
    """Check that a run fits into the memory of its GPU; raise `UserError` otherwise."""
    update, where = found.update, f"policy.device={config.policy.device}"
    free = f"{where} has {format_bytes(found.free)} for each rank"
    if (acting := update.held + found.acting) > found.free:
        raise UserError(
            f"sim.num_envs={config.sim.num_envs}: parameters, optimiser and the policy's decisions take "
            f"{format_bytes(acting)}, and {free}. Give fewer environments, or more plan.slices. {advice}",
            code="gpu-memory-acting",
        )
    if (least := update.needed(1)) > found.free:
        raise UserError(
            f"One row of the update takes {format_bytes(least)} with parameters and optimiser "
            f"({format_bytes(update.held)}), and {free}. {advice}",
            code="gpu-memory-update",
        )
    if found.peak > found.free:
        own = hasattr(build.find_method(config.algo).options, "micro_batch")
        key, most = ("micro_batch", "at most, or auto") if own else ("minibatch", "on each rank at most")
        raise UserError(
            f"algo.{key}={found.micro_batch} takes {format_bytes(found.peak)}, and {free}. "
            f"Give algo.{key}={update.most_rows(found.free)} {most}.",
            code="gpu-memory-micro-batch",
        )


def choose_micro_batch(config: TrainConfig, found: DeviceMemory | None) -> TrainConfig:
    """Return the configuration with the micro-batch of a run on GPUs; "auto" is measured in the first update.

    It stays "auto" under torchrun, because its processes may use other GPUs than this one.
    """
    if torch.device(config.policy.device).type != "cuda" or isinstance(read_micro_batch(config, 0), int):
        return config
    known = None if TorchrunPlace.find() is not None else found
    chosen = {"micro_batch": "auto" if known is None else known.micro_batch}
    return replace(config, algo=replace(config.algo, options=config.algo.options | chosen))


def read_micro_batch(config: TrainConfig, whole: int) -> int | str | None:
    """Return `algo.micro_batch`, or `whole` if the algorithm has no such setting."""
    return getattr(build.find_method(config.algo).options, "micro_batch", whole)
