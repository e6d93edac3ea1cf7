"""Checks of a new run's configuration before its folder is made: keys that depend on each other."""

import math

from embodied_rl.assembly import build
from embodied_rl.config import plugins
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.reward.run_scoring import check_reward
from embodied_rl.rollout.action_queue import check_rollout_delay
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runtime import selection as runtimes
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import ReplayNode, TrainConfig
from embodied_rl.training.replay_checks import check_preload, check_replay, check_steering
from embodied_rl.training.rollout_worker import find_late_starts
from embodied_rl.training.run_size import RunSize, check_size, measure_run
from embodied_rl.training.worker_pool import worker_silence_timeout


def check_run(config: TrainConfig) -> RunSize:
    """Check a new run, before its folder is created and its ranks start; return its memory needs.

    Raises:
        UserError: see `check_settings`; or the run is too large for this machine.
    """
    size = check_settings(config)
    check_size(config, size)
    return size


def check_settings(config: TrainConfig) -> RunSize:
    """Check a new run's configuration, without asking whether this machine is large enough; return its memory needs.

    Networks are built without their weights; see `embodied_rl.assembly.build`.

    Raises:
        UserError: the algorithm does not learn from rollouts, ranks would have to share groups, segments would split a
            decision, the simulator lacks a task, the checkpoint is damaged or of another network; or nothing can be
            trained with this `policy.delay`.
    """
    needs = build.find_method(config.algo).needs
    if needs.learns_from == "replay":
        check_replay(config, needs)
    elif config.replay != ReplayNode():
        message = f"replay.*: algo.name={config.algo.name} does not learn from replay. Leave these keys out."
        raise UserError(message, code="key-unused")
    if needs.learns_from == "demonstrations":
        name = config.algo.name
        message = f"algo.name={name} does not learn from rollouts; `embodied-rl {name}` is the command for it."
        raise UserError(message, code="algorithm-wrong-command")
    if needs.fixed_noise and (sampler := config.algo.sampler.name) != "flow_sde":
        why = "learns its noise" if sampler == "flow_noise" else "is not of a flow"
        message = f"algo.sampler.name={sampler} {why}; algo.name={config.algo.name} needs flow_sde."
        raise UserError(message, code="sampler-not-supported")
    if needs.start_noise is not None:
        check_steering(config)
    check_groups(config, needs.group_size)
    check_level(config)
    decisions, segments = config.train.decisions, config.segments
    if not needs.fresh_episodes and config.mode == "stream" and decisions % segments:
        raise UserError(
            f"train.decisions={decisions} cannot be divided into segments={segments} equal parts. "
            f"Try train.decisions={max(1, round(decisions / segments)) * segments}.",
            code="decisions-not-divisible",
        )
    runtimes.check_runtime(config)
    check_limits(config)
    spec = SimulatorKind.find(config.sim).spec
    curriculum = build.build_curriculum(config.curriculum, spec)
    late_starts = find_late_starts(config.train)
    sampler = EpisodeSampler(spec, config.seed, task=config.train.task, curriculum=curriculum, late_starts=late_starts)
    check_late_starts(config, needs)
    if late_starts is not None:
        sampler.make_late_starts(0, build.outline_backbone(config.policy, spec)[1].executed)
    check_preload(config, needs, spec)
    check_reward(config, spec, needs)
    size = measure_run(config, needs, spec)
    check_rollout_delay(config.policy.delay, config.policy.executed, spec, config.sim.options.get("inference_delay"))
    if needs.learns_from == "rollouts":
        check_minibatch(config, needs, size.rows)
    return size


def check_level(config: TrainConfig) -> None:
    """Check that a policy of sequences is trained by ratios of whole chunks; raise `UserError` otherwise."""
    level = getattr(build.find_method(config.algo).options, "level", "chunk")
    if level != "chunk" and plugins.find_plugin("policies", config.policy.name).KIND == "sequence":
        raise UserError(
            f"algo.level={level}: policy.name={config.policy.name} gives a probability to a whole chunk, and none to "
            "its parts. Give algo.level=chunk.",
            code="level-not-supported",
        )


def check_groups(config: TrainConfig, size: int) -> None:
    """Check that environments divide into whole groups, as one process collects and one rank learns from a group.

    Raises:
        UserError: they do not, or the simulator has too few for a group.
    """
    plan, most = config.plan, SimulatorKind.find(config.sim).limit_environments(size)
    if most < size:
        raise UserError(
            f"algo.name={config.algo.name} compares algo.group_size={size} episodes that start alike and run side by "
            f"side, and sim={config.sim.name} has {most} environment. Give an algorithm without groups: algo=filtered.",
            code="groups-not-supported",
        )
    counts = {"ranks": plan.ranks, "rollout workers": plan.rollout_workers or plan.ranks}
    for name, count in counts.items() if plan.allocation != "auto" else [("ranks", 1)]:
        if (each := config.sim.num_envs // count) % size:
            raise UserError(
                f"sim.num_envs={config.sim.num_envs} gives each of {count} {name} {each} environments, not a "
                f"multiple of algo.group_size={size}. Try sim.num_envs={count * size}, or a multiple.",
                code="envs-not-divisible",
            )


def check_late_starts(config: TrainConfig, needs: Needs) -> None:
    """Check that late starts are requested only where they are understood; raise `UserError` otherwise."""
    problems = {
        f"algo.name={config.algo.name} learns from stored episodes": needs.learns_from != "rollouts",
        f"algo.name={config.algo.name} begins the episodes of a group at different times": needs.group_size > 1
        and not needs.fresh_episodes,
        f"policy.delay={config.policy.delay} executes earlier actions at the start": config.policy.delay > 0,
        f"reward.name={config.reward.name} judges episodes from their beginning": config.reward.name is not None,
    }
    for problem, found in problems.items():
        if config.train.late_starts and found:
            message = f"train.late_starts={config.train.late_starts}: {problem}. Give train.late_starts=0."
            raise UserError(message, code="late-starts-not-supported")


def check_limits(config: TrainConfig) -> None:
    """Check the number of a robot's environments, and that no worker counts as hung while a human sets up a scene."""
    kind, plan, silent = SimulatorKind.find(config.sim), config.plan, worker_silence_timeout(config.plan)
    parts = 1 if plan.allocation == "auto" else plan.parts
    if config.sim.num_envs > (most := kind.limit_environments(-(-config.sim.num_envs // parts)) * parts):
        message = f"sim.num_envs={config.sim.num_envs}: sim={config.sim.name} has no more than {most} with this plan."
        raise UserError(f"{message} Give sim.num_envs={most}.", code="num-envs-invalid")
    attend: float = getattr(kind.options, "attend", 0.0)
    if plan.rollout_workers and kind.limits.attended and attend > silent:
        raise UserError(
            f"sim.attend={attend:g}: a human may take so many seconds to set up a scene, but a rollout worker counts "
            f"as hung once it is silent for {silent:g} s. Give plan.call_timeout="
            f"{math.ceil((attend - plan.start_timeout) / 2)} or more.",
            code="attend-too-long",
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
