"""Checks of a new run before its folder is made: keys that depend on each other, and memory."""

from embodied_rl.actors.learning.memory_budget import find_machine_bytes, format_bytes
from embodied_rl.assembly import build
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.reward.run_scoring import check_reward
from embodied_rl.rollout.action_queue import check_rollout_delay
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime import selection as runtimes
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import PolicyNode, TrainConfig
from embodied_rl.training.device_memory import check_device
from embodied_rl.training.run_size import RunSize, measure_run

LARGEST_NEW = 400e6
"""Most bytes of a network that trains from random weights: 100 million parameters in float32."""


def check_run(config: TrainConfig) -> RunSize:
    """Check a new run's configuration, before its folder is created and its ranks start; return its memory needs.

    Networks are built without their weights; see `embodied_rl.assembly.outline`.

    Raises:
        UserError: the algorithm does not learn from rollouts, ranks would have to share groups, segments would split a
            decision, the simulator lacks a task, the checkpoint is damaged or of another network, a large network has
            none, or the run is too large for this machine; or nothing can be trained with this `policy.delay`.
    """
    needs = build.find_method(config.algo).needs
    if needs.learns_from != "rollouts":
        name = config.algo.name
        message = f"algo.name={name} does not learn from rollouts; `embodied-rl {name}` is the command for it."
        raise UserError(message, code="algorithm-wrong-command")
    check_groups(config, needs.group_size)
    if not needs.fresh_episodes:
        check_segments(config)
    runtimes.check_runtime(config)
    spec = SimulatorKind.find(config.sim).spec
    EpisodeSampler(spec, config.seed, curriculum=build.build_curriculum(config.curriculum, spec))
    check_reward(config, spec, needs)
    size = measure_run(config, needs, spec)
    check_rollout_delay(config.policy.delay, config.policy.executed, spec, config.sim.options.get("inference_delay"))
    check_minibatch(config, needs, size.rows)
    check_memory(config, needs, size)
    if size.device is not None:
        check_device(size.device, config, advise(config))
    return size


def check_groups(config: TrainConfig, size: int) -> None:
    """Check that environments divide into whole groups, as one process collects and one rank learns from a group.

    Raises:
        UserError: they do not.
    """
    plan = config.plan
    counts = {"ranks": plan.ranks, "rollout workers": plan.rollout_workers or plan.ranks}
    for name, count in counts.items() if plan.allocation != "auto" else [("ranks", 1)]:
        if (each := config.sim.num_envs // count) % size:
            raise UserError(
                f"sim.num_envs={config.sim.num_envs} gives each of {count} {name} {each} environments, not a "
                f"multiple of algo.group_size={size}. Try sim.num_envs={count * size}, or a multiple.",
                code="envs-not-divisible",
            )


def check_segments(config: TrainConfig) -> None:
    """Check that a rollout divides into segments of whole decisions.

    Raises:
        UserError: it does not.
    """
    decisions, segments = config.train.decisions, config.segments
    if config.mode == "stream" and decisions % segments:
        raise UserError(
            f"train.decisions={decisions} cannot be divided into segments={segments} equal parts. "
            f"Try train.decisions={max(1, round(decisions / segments)) * segments}.",
            code="decisions-not-divisible",
        )


def check_minibatch(config: TrainConfig, needs: Needs, rows: int) -> None:
    """Check that a typed minibatch is at most a rollout; a larger default means the whole rollout.

    Raises:
        UserError: it is larger.
    """
    typed = any(text.lstrip("+").partition("=")[0] == "algo.minibatch" for text in config.run.overrides)
    if typed and needs.minibatch is not None and needs.minibatch > rows:
        raise UserError(
            f"algo.minibatch={needs.minibatch} is more than a rollout has: {rows} decisions, of sim.num_envs="
            f"{config.sim.num_envs} environments. Give algo.minibatch={rows} at most, or more environments or "
            "train.decisions.",
            code="minibatch-too-large",
        )


def find_random_weights(policy: PolicyNode, weights: int) -> str | None:
    """Return why a large network of so many bytes needs a checkpoint, where it has none: it learns nothing in time."""
    if policy.checkpoint is not None or weights <= LARGEST_NEW:
        return None
    return (
        f"policy.checkpoint=null: {policy.name} would start from {format_bytes(weights)} of random weights. "
        "Give policy.checkpoint=<folder or file>."
    )


def check_memory(config: TrainConfig, needs: Needs, size: RunSize) -> None:
    """Check that a local run's least memory fits into this machine.

    Raises:
        UserError: it does not fit; the message names the largest part, and settings that fit.
    """
    if config.runtime != "local":
        return
    memory = find_machine_bytes()
    here = f"this machine has {format_bytes(memory)}"
    if size.processes > memory:
        raise UserError(
            f"{size.count_processes()} processes, of {describe_processes(config)}, take {format_bytes(size.processes)} "
            f"at least, and {here}. One or two for each core are enough.",
            code="memory-processes",
        )
    if size.networks > memory:
        message = f"{size.describe_networks()}: {format_bytes(size.networks)}, and {here}. {advise(config)}"
        raise UserError(message, code="memory-networks")
    if size.networks + size.rollout > memory:
        raise UserError(explain_rollout(config, needs, size, memory), code="memory-rollout")


def count_observation(spec: SimulatorSpec) -> int:
    """Return the bytes of one environment's observation of one step."""
    pictures = sum(3 * camera.height * camera.width for camera in spec.cameras)
    return pictures + 4 * (len(spec.state_names) + len(spec.privileged_names))


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


def describe_processes(config: TrainConfig) -> str:
    """Return the keys that set the number of processes of a run."""
    plan = config.plan
    keys = {"ranks": plan.ranks, "rollout_workers": plan.rollout_workers}
    keys |= {"slices": plan.slices, "workers": plan.workers} if plan.allocation == "split" else {}
    return ", ".join(f"plan.{key}={value}" for key, value in keys.items() if value)


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
