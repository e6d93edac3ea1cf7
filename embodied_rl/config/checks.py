"""Check configuration keys against each other, and against disk and simulator, before any worker starts."""

import math
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from embodied_rl.config import assets
from embodied_rl.config.freeze import suggest_name
from embodied_rl.config.schema import (
    AlgoNode,
    BenchConfig,
    CollectConfig,
    ContractConfig,
    EvalConfig,
    ImportConfig,
    Plan,
    PolicyNode,
    RunConfig,
    SamplerNode,
    ServedNode,
    SftConfig,
    SimNode,
    TrainConfig,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.names import check_folder_name
from embodied_rl.interfaces.sim import SimulatorSpec

LONGEST_DEADLINE = 86_400


def validate_config(config: Any) -> None:
    """Check a frozen configuration of any command.

    Raises:
        UserError: keys contradict each other, a folder cannot be written, or a checkpoint is missing.
    """
    sim, plan = getattr(config, "sim", None), getattr(config, "plan", None)
    if isinstance(plan, Plan) and plan.allocation == "auto" and not isinstance(config, TrainConfig):
        raise UserError("plan=auto is for training; here choose plan=colocated or plan=split.")
    if isinstance(config, TrainConfig) and not isinstance(config, BenchConfig):  # a benchmark has plans of its own
        check_training(config)
    if (
        isinstance(sim, SimNode)
        and isinstance(plan, Plan)
        and plan.allocation != "auto"
        and not isinstance(config, CollectConfig | SftConfig)  # one process simulates
    ):
        check_division(sim, plan)
    if isinstance(plan, Plan):
        check_deadlines(plan)
    if isinstance(run := getattr(config, "run", None), RunConfig):
        check_given(run.root, "run.root")
        check_writable(run.root, "run.root")
        check_folder_name(run.experiment, "run.experiment")
    for key in ("out", "export"):
        if isinstance(target := getattr(config, key, None), str):
            check_given(target, key)
            names_folder = key == "out" and not isinstance(config, ImportConfig | ContractConfig)
            check_writable(target if names_folder else str(Path(target).absolute().parent), key)
    if isinstance(policy := getattr(config, "policy", None), PolicyNode):
        check_checkpoint(policy)
        check_learner(plan, policy)
    if isinstance(algo := getattr(config, "algo", None), AlgoNode):
        check_sampler(algo.sampler)
    check_one_command(config)


def check_one_command(config: Any) -> None:
    """Check keys that one command has alone."""
    if isinstance(config, EvalConfig) and config.resume is None:
        check_actor(config)
    if isinstance(config, CollectConfig) and config.format != "lerobot" and config.images != "video":
        raise UserError(f"images={config.images} is for format=lerobot; npz files hold pictures as they are.")


def check_actor(config: EvalConfig) -> None:
    """Check that exactly one policy to evaluate is given, or one for each task of a benchmark."""
    if config.policies and config.benchmark is None:
        raise UserError("policies: tasks have policies of their own only in a benchmark. Add benchmark=…, or task=….")
    if (config.policy is not None) + (config.checkpoint is not None) + bool(config.policies) != 1:
        raise UserError("Who acts? Give policy=<a run folder, a file, asset:<name>, ws://…, expert or random>, once.")
    asked = [who for who in (config.policy, config.checkpoint, *config.policies.values()) if who is not None]
    if config.server != ServedNode() and not any(who.startswith(("ws://", "wss://")) for who in asked):
        raise UserError("server: its keys are read where a policy is behind a server: policy=ws://…. Leave them out.")


def check_division(sim: SimNode, plan: Plan) -> None:
    """Check that environments can be divided evenly over simulators and over ranks."""
    if sim.num_envs % plan.parts or sim.num_envs % plan.ranks:
        who = "plan.rollout_workers" if plan.rollout_workers else "plan.ranks"
        who = f"{who} × plan.slices" if plan.allocation == "colocated" else f"{who} × plan.workers × plan.slices"
        also = f", and over plan.ranks={plan.ranks}" if plan.rollout_workers else ""
        whole = math.lcm(plan.parts, plan.ranks)
        more = f"Try sim.num_envs={max(whole, round(sim.num_envs / whole) * whole)}"
        less = ", or for a single robot plan.ranks=1 plan.slices=1" if sim.num_envs == 1 else ""
        raise UserError(
            f"sim.num_envs={sim.num_envs} cannot be divided evenly over {who} = {plan.parts}{also}. {more}{less}."
        )


def check_training(config: TrainConfig) -> None:
    """Check that the plan fits the training mode: stream and async need rollout workers besides the learner ranks."""
    plan = config.plan
    check_unread(config)
    if plan.allocation == "auto":
        check_open(config.run.overrides)
    if config.mode != "sync" and plan.rollout_workers == 0 and plan.allocation != "auto":
        raise UserError(
            f"mode={config.mode} collects beside the ranks: plan.rollout_workers must be at least 1; "
            "null takes plan.ranks."
        )
    if plan.rollout_workers and plan.policy == "process":
        raise UserError(
            "plan.policy=process has no meaning beside plan.rollout_workers, which infer themselves: drop one of them."
        )


def check_unread(config: TrainConfig) -> None:
    """Check that no key was typed that the other keys leave without a meaning."""
    lora = config.policy.train == "lora"
    unread = {} if config.mode == "stream" else {"segments": "mode=stream"}
    unread |= {} if config.mode == "async" else {"staleness": "mode=async"}
    unread |= {} if lora else {"policy.lora.rank": "policy.train=lora", "policy.lora.alpha": "policy.train=lora"}
    done = ("reward.done_threshold", "reward.done_in_a_row")
    unread |= {} if config.reward.mode == "terminal" else dict.fromkeys(done, "reward.mode=terminal")
    if config.reward.mode != "distill":
        distill = (f"reward.distill.{each.name}" for each in fields(config.reward.distill))
        unread |= dict.fromkeys(("reward.head", *distill), "reward.mode=distill")
    for override in config.run.overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key in unread:
            raise UserError(f"{override} has a meaning with {unread[key]} alone: add that, or leave it out.")


def check_open(overrides: Sequence[str]) -> None:
    """Check that no override sets a key that `plan=auto` chooses."""
    chosen = ("plan.ranks", "plan.slices", "plan.workers", "plan.rollout_workers")
    for override in overrides:
        if override.lstrip("+~").partition("=")[0] in chosen:
            raise UserError(
                f"{override}: plan=auto, the default, chooses this itself. To choose by hand name the allocation, too, "
                f"such as plan=colocated {override}, or plan=split."
            )


def check_deadlines(plan: Plan) -> None:
    """Check that no timeout of the plan exceeds `LONGEST_DEADLINE`."""
    for key, seconds in (("start_timeout", plan.start_timeout), ("call_timeout", plan.call_timeout)):
        if not seconds <= LONGEST_DEADLINE:
            raise UserError(f"plan.{key} must be at most {LONGEST_DEADLINE} seconds, a day, not {seconds:g}.")


def check_sampler(sampler: SamplerNode) -> None:
    """Check the sampler's bounds and step weights."""
    weights = sampler.step_weights
    if weights is not None and len(weights) != sampler.denoise_steps:
        raise UserError(
            f"algo.sampler.step_weights has {len(weights)} entries, but algo.sampler.denoise_steps is "
            f"{sampler.denoise_steps}. Give one weight per step, or algo.sampler.step_weights=null."
        )
    if weights is not None and (min(weights) < 0 or max(weights) <= 0):
        raise UserError("algo.sampler.step_weights may not be negative, and one of them must be positive.")
    if sampler.std_min > sampler.std_max:
        raise UserError("algo.sampler.std_min may not exceed algo.sampler.std_max.")


def check_checkpoint(policy: PolicyNode) -> None:
    """Check that the checkpoint to start from exists."""
    if policy.checkpoint is None:
        return
    try:
        found = assets.resolve_path(policy.checkpoint)
    except ValueError as error:
        raise UserError(f"policy.checkpoint: {error}") from None
    if not found.exists():
        raise UserError(f"policy.checkpoint: {found} is not there. policy.checkpoint=null starts from new weights.")


def check_learner(plan: Plan | None, policy: PolicyNode) -> None:
    """Check that a sharded learner does not compile: it moves weights, and compiled graphs need fixed addresses."""
    if plan is not None and plan.learner == "sharded" and policy.compile:
        raise UserError("plan.learner=sharded gathers weights anew for each use; leave policy.compile=true out.")


def check_given(path: str, where: str) -> None:
    """Check that a path for results is not empty, such as from a variable of the shell that is not set.

    Raises:
        UserError: it is empty; the message names the key `where`.
    """
    if not path.strip():
        raise UserError(f"{where}= is empty: give a path, or leave {where} out.")


def check_writable(folder: str, where: str) -> None:
    """Check that a folder can be created and written, without creating it.

    Raises:
        UserError: the folder cannot be written; the message names the key `where` and the obstacle.
    """
    path = Path(folder).expanduser().absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir():
        raise UserError(f"{where}={folder}: {existing} is a file, not a folder. Choose another, such as {where}=runs.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"{where}={folder}: {existing} cannot be written. Choose another, such as {where}=/tmp/runs.")


def check_episodes(spec: SimulatorSpec, split: str | None, task: str | None) -> None:
    """Check that the simulator has this split, and this task or family.

    Raises:
        UserError: unknown split or task; the message suggests the closest names.
    """
    splits = ["train", "eval", *(name for name in spec.splits if name != "eval")]
    if split is not None and split not in splits:
        raise UserError(f"split: unknown split '{split}'.{suggest_name(split, splits)}")
    known = [*spec.families, *(item.name for item in spec.tasks)]
    if task is not None and task not in known:
        raise UserError(f"task: unknown task '{task}'.{suggest_name(task, known)}")
