"""Check configuration keys against each other, the disk and the simulator, before any worker starts."""

import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from embodied_rl.config import assets
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.names import check_folder_name
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.schema import (
    AlgoNode,
    BenchConfig,
    CollectConfig,
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
    ViewConfig,
)
from embodied_rl.system.atomic_write import check_folder

LONGEST_TIMEOUT = 86_400


def validate_config(config: Any) -> None:
    """Check a frozen configuration of any command.

    Raises:
        UserError: keys contradict each other, a folder cannot be written, or a checkpoint is missing.
    """
    plan = getattr(config, "plan", None)
    if isinstance(config, TrainConfig) and not isinstance(config, BenchConfig):  # a benchmark has its own plans
        check_training(config)
    if isinstance(plan, Plan):
        _check_plan(config, plan)
    if isinstance(run := getattr(config, "run", None), RunConfig):
        check_folder(run.root, "run.root")
        check_folder_name(run.experiment, "run.experiment")
    for key in ("out", "export"):
        if isinstance(target := getattr(config, key, None), str):
            names_folder = key == "out" and not isinstance(config, ImportConfig | ViewConfig)
            check_folder(target, key, names_folder)
            if key == "export" and Path(target).is_dir():
                raise UserError(f"{key}={target} is a folder. Give the name of a file.", code="path-is-a-folder")
    if isinstance(policy := getattr(config, "policy", None), PolicyNode):
        check_checkpoint(policy)
        if plan is not None and plan.learner == "sharded" and policy.compile:  # compiled graphs need fixed addresses
            raise UserError(
                "plan.learner=sharded gathers weights again for each use; leave policy.compile=true out.",
                code="keys-contradict",
            )
    if isinstance(algo := getattr(config, "algo", None), AlgoNode):
        check_sampler(algo.sampler)
    if isinstance(config, EvalConfig) and config.resume is None:
        check_evaluated_policy(config)
    if isinstance(config, CollectConfig) and config.format != "lerobot" and config.images != "video":
        raise UserError(
            f"images={config.images} is for format=lerobot; npz files hold pictures as they are.", code="key-unused"
        )


def _check_plan(config: Any, plan: Plan) -> None:
    if plan.allocation == "auto" and not isinstance(config, TrainConfig):
        raise UserError("plan=auto is for training; here choose plan=colocated or plan=split.", code="plan-invalid")
    sim, one_process = getattr(config, "sim", None), isinstance(config, CollectConfig | SftConfig)
    if isinstance(sim, SimNode) and plan.allocation != "auto" and not one_process:
        check_division(sim, plan)
    for key, seconds in (("start_timeout", plan.start_timeout), ("call_timeout", plan.call_timeout)):
        if not seconds <= LONGEST_TIMEOUT:
            raise UserError(
                f"plan.{key} must be at most {LONGEST_TIMEOUT} seconds, a day, not {seconds:g}.",
                code="value-out-of-range",
            )


def check_evaluated_policy(config: EvalConfig) -> None:
    """Check that exactly one policy to evaluate is given, or one for each task of a benchmark."""
    if config.policies and config.benchmark is None:
        raise UserError(
            "policies: only tasks of a benchmark have policies of their own. Add benchmark=…, or task=….",
            code="key-unused",
        )
    if (config.policy is not None) + (config.checkpoint is not None) + bool(config.policies) != 1:
        raise UserError(
            "Who acts? Give policy=<a run folder, a file, asset:<name>, ws://…, expert or random>, once.",
            code="policy-not-given-once",
        )
    policies = [each for each in (config.policy, config.checkpoint, *config.policies.values()) if each is not None]
    if config.server != ServedNode() and not any(each.startswith(("ws://", "wss://")) for each in policies):
        raise UserError(
            "server: its keys are used only for a policy behind a server: policy=ws://…. Leave them out.",
            code="key-unused",
        )


def check_division(sim: SimNode, plan: Plan) -> None:
    """Check that environments can be divided evenly over simulators and over ranks."""
    if sim.num_envs % plan.parts == 0 and sim.num_envs % plan.ranks == 0:
        return
    processes = "plan.rollout_workers" if plan.rollout_workers else "plan.ranks"
    factors = (
        f"{processes} × plan.slices" if plan.allocation == "colocated" else f"{processes} × plan.workers × plan.slices"
    )
    also = f", and over plan.ranks={plan.ranks}" if plan.rollout_workers else ""
    whole = math.lcm(plan.parts, plan.ranks)
    more = f"Try sim.num_envs={max(whole, round(sim.num_envs / whole) * whole)}"
    less = ", or for a single robot plan.ranks=1 plan.slices=1" if sim.num_envs == 1 else ""
    raise UserError(
        f"sim.num_envs={sim.num_envs} cannot be divided evenly over {factors} = {plan.parts}{also}. {more}{less}.",
        code="environments-not-divisible",
    )


def check_training(config: TrainConfig) -> None:
    """Check that the plan fits the training mode: stream and async need rollout workers besides the learner ranks."""
    plan = config.plan
    check_unused_keys(config)
    if plan.allocation == "auto":
        chosen = ("plan.ranks", "plan.slices", "plan.workers", "plan.rollout_workers")
        for override in config.run.overrides:
            if override.lstrip("+~").partition("=")[0] in chosen:
                raise UserError(
                    f"{override}: plan=auto, the default, chooses this itself. To choose by hand name the allocation, "
                    f"too, such as plan=colocated {override}, or plan=split.",
                    code="plan-invalid",
                )
    if config.mode != "sync" and plan.rollout_workers == 0 and plan.allocation != "auto":
        raise UserError(
            f"mode={config.mode} needs processes besides the ranks: plan.rollout_workers must be at least 1; "
            "null takes plan.ranks.",
            code="plan-invalid",
        )
    if plan.rollout_workers and plan.policy == "process":
        raise UserError(
            "plan.policy=process has no meaning with plan.rollout_workers, which infer themselves: drop one of them.",
            code="plan-invalid",
        )


FLOW_KEYS = ("denoise_steps", "noise_level", "step_weights", "layers", "std_min", "std_max")
"""Keys of samplers of flows."""
HEAD_KEYS = {"tokens": "temperature", "gaussian": "std"}
"""Sampler of a policy that is no flow → its key."""


def check_unused_keys(config: TrainConfig) -> None:
    """Check that no key was typed that has no effect with the values of other keys."""
    lora = config.policy.train == "lora"
    unused = {} if config.mode == "stream" else {"segments": "mode=stream"}
    unused |= {} if config.mode == "async" else {"staleness": "mode=async"}
    unused |= {} if lora else {"policy.lora.rank": "policy.train=lora", "policy.lora.alpha": "policy.train=lora"}
    sampler = config.algo.sampler.name
    if sampler in HEAD_KEYS:
        flow = (*(f"algo.sampler.{each}" for each in FLOW_KEYS), "algo.noise_final", "algo.noise_decay_from")
        unused |= dict.fromkeys(flow, "the sampler of a flow, algo.sampler.name=flow_sde or flow_noise")
    unused |= {f"algo.sampler.{key}": f"algo.sampler.name={name}" for name, key in HEAD_KEYS.items() if name != sampler}
    done = ("reward.done_threshold", "reward.done_in_a_row")
    unused |= {} if config.reward.mode == "terminal" else dict.fromkeys(done, "reward.mode=terminal")
    if config.reward.mode != "distill":
        distill = (f"reward.distill.{each.name}" for each in fields(config.reward.distill))
        unused |= dict.fromkeys(("reward.head", *distill), "reward.mode=distill")
    for override in config.run.overrides:
        key = override.lstrip("+~").partition("=")[0]
        if key in unused:
            raise UserError(
                f"{override} has an effect only with {unused[key]}: add that, or leave it out.", code="key-unused"
            )


def check_sampler(sampler: SamplerNode) -> None:
    """Check the sampler's bounds and step weights."""
    weights = sampler.step_weights
    if weights is not None and len(weights) != sampler.denoise_steps:
        raise UserError(
            f"algo.sampler.step_weights has {len(weights)} entries, but algo.sampler.denoise_steps is "
            f"{sampler.denoise_steps}. Give one weight per step, or algo.sampler.step_weights=null.",
            code="sampler-invalid",
        )
    if weights is not None and (min(weights) < 0 or max(weights) <= 0):
        raise UserError(
            "algo.sampler.step_weights may not be negative, and one of them must be positive.", code="sampler-invalid"
        )
    if sampler.std_min > sampler.std_max:
        raise UserError("algo.sampler.std_min may not exceed algo.sampler.std_max.", code="sampler-invalid")


def check_checkpoint(policy: PolicyNode) -> None:
    """Check that the checkpoint to start from exists."""
    if policy.checkpoint is None:
        return
    try:
        found = assets.resolve_path(policy.checkpoint)
    except UserError as error:
        raise UserError(f"policy.checkpoint: {error}", code=error.code) from None
    if not found.exists():
        raise UserError(
            f"policy.checkpoint: {found} is not there. policy.checkpoint=null starts from new weights.",
            code="checkpoint-missing",
        )


def check_episodes(spec: SimulatorSpec, split: str | None, task: str | None) -> None:
    """Check that the simulator has this split, and this task or family.

    Raises:
        UserError: unknown split or task; the message suggests the closest names.
    """
    splits = ["train", "eval", *(name for name in spec.splits if name != "eval")]
    if split is not None and split not in splits:
        raise UserError(f"split: unknown split '{split}'.{suggest_name(split, splits)}", code="split-unknown")
    known = [*spec.families, *(item.name for item in spec.tasks)]
    if task is not None and task not in known:
        raise UserError(f"task: unknown task '{task}'.{suggest_name(task, known)}", code="task-unknown")
