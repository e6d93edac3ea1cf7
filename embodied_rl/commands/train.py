"""`embodied-rl train`: start or resume a training run."""

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path

from embodied_rl.actors.learning import checkpoint
from embodied_rl.actors.placement import describe_placement, resolve_placement
from embodied_rl.assembly import build
from embodied_rl.commands.preparation import describe_size
from embodied_rl.config import freeze as configuration
from embodied_rl.config import plugins
from embodied_rl.config.freeze import read_text, suggest_name
from embodied_rl.config.option_files import find_option_file, list_options
from embodied_rl.critic.evaluation.validation import check_run_scorer
from embodied_rl.interfaces.errors import RunFailed, UserError
from embodied_rl.judge.reward.run_scoring import check_model, name_model
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import PLAN, RunFolder
from embodied_rl.runs.lock import hold_run
from embodied_rl.runtime import selection as runtimes
from embodied_rl.runtime.ranks.launch import Stopped
from embodied_rl.runtime.ranks.torchrun import decide_on_rank_0
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import TrainConfig, config_file, untrusted_settings
from embodied_rl.system.atomic_write import write_text
from embodied_rl.system.untrusted_files import check_links, make_printable, name_file
from embodied_rl.training import extension
from embodied_rl.training.device_memory import choose_micro_batch, compare_gpus
from embodied_rl.training.final_report import PAGE
from embodied_rl.training.loop import train
from embodied_rl.training.planner import plan_selection, stored
from embodied_rl.training.replay_checks import check_preload, check_storages
from embodied_rl.training.rollout_worker import make_sampler
from embodied_rl.training.run_checks import check_run, check_settings
from embodied_rl.training.run_size import LARGEST_NEW, check_size, find_random_weights
from embodied_rl.training.worker_pool import rank_timeout


def run(config: TrainConfig) -> None:
    """Start a training run, or continue one.

    Raises:
        UserError: the configuration is invalid, the run is already finished, another process trains in its folder, or
            a value became NaN or infinite.
        RunFailed: a required process was lost, and could not be replaced.
    """
    with ExitStack() as held:
        train_run(*start_or_resume(config, held))


def train_run(config: TrainConfig, folder: RunFolder) -> None:
    """Train a run whose folder this process, or rank 0, has locked; see `run`."""
    if config.resume is not None:
        print(f"Device: {describe_placement(config.policy)}")
        if note := stored.describe_move(folder.path / provenance.FILE):
            print(make_printable(note))
        before = config_file.load_config(TrainConfig, folder.config).policy.device
        if before != config.policy.device:
            print(
                f"The run had policy.device={before} and continues on {config.policy.device}: "
                "results differ in the last digits."
            )
    try:
        with nullcontext() if config.resume is not None else folder.removed_if_bare():
            runtimes.launch_ranks(config, train, (config, folder), rank_timeout(config))
    except Stopped:
        print(f"Stopped; every iteration so far is saved. Continue with: {extension.describe_resume(config, folder)}")
    except FloatingPointError as error:
        raise UserError(
            f"{str(error).rstrip('.')}. The run in {folder.path} cannot go on.", code="value-not-finite"
        ) from None
    except RunFailed as error:
        remedy = f"Once the cause is gone, continue with: {extension.describe_resume(config, folder)}"
        raise RunFailed(f"{str(error).rstrip()}\n{remedy}") from error


def check_start(config: TrainConfig) -> list[tuple[str, str]]:
    """Check that a run can start or continue, without creating any file; return what it would need, as rows of text.

    A large network without a checkpoint may also be too large for this machine: a recipe is looked at before it is run
    elsewhere.
    """
    if config.resume is not None:
        stored, folder = read_run_to_resume(config)
        check_resumed(stored, folder)
        return [("train", describe_size(stored, stored.train)), ("run", str(folder.path))]
    given, config = config.policy, resolve_device(name_judge(config))
    known = config if config.plan.allocation == "auto" else count_workers(config)
    size = check_settings(known)
    warn_unvalidated_scorer(config)
    missing = find_random_weights(known.policy, size.held.weights)
    rows = [*size.describe(), *([] if missing is None else [("missing", missing)])]
    try:
        check_size(known, size)
    except UserError as error:
        if missing is None:
            raise
        rows.append(("too small", str(error)))
    if size.on_host and size.held.weights > LARGEST_NEW:
        needs, spec = build.find_method(known.algo).needs, SimulatorKind.find(known.sim).spec
        rows.extend(compare_gpus(replace(known, policy=given), needs, spec))
    return rows + list_sources(config.run.overrides)


def list_sources(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Return the lines of a chosen recipe that say where its numbers come from, as rows of text; none without one."""
    chosen = [word.removeprefix("recipe=") for word in overrides if word.startswith("recipe=")]
    named = [option.name for option in list_options("recipe") if option.name in chosen]
    lines = [line for name in named for line in read_text(find_option_file("recipe", name)).splitlines()[2:]]
    return [("source", line.strip()) for line in lines if "#" in line]


def name_judge(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the name of the model that judges; see `name_model`."""
    if config.reward.name is None:
        return config
    return replace(config, reward=name_model(config.reward, SimulatorKind.find(config.sim).spec))


def warn_unvalidated_scorer(config: TrainConfig) -> None:
    """Print a warning if the scorer of a new run was not validated; see `check_run_scorer`."""
    spec = SimulatorKind.find(config.sim).spec
    if (note := check_run_scorer(config.reward, spec)) is not None:
        print(note)


def start_or_resume(config: TrainConfig, held: ExitStack) -> tuple[TrainConfig, RunFolder]:
    """Create a run folder; or, with `resume`, find the old one and the configuration that it was started with.

    If torchrun started several processes, each composes the configuration from the command line, and rank 0 decides
    on the folder.

    Args:
        config: as composed.
        held: holds the folder's lock from now on, on rank 0.

    Raises:
        UserError: the configuration is invalid, the run is finished, or another process trains in its folder.
    """
    if config.resume is not None:
        return read_run_to_resume(replace(config, resume=decide_on_rank_0(lambda: lock_run_to_resume(config, held))))
    begun: dict[str, TrainConfig] = {}

    def begin() -> dict[str, str]:
        begun["config"], folder = start_run(config, held)
        model = begun["config"].reward.options.get("model")
        return {"folder": str(folder.path), "configuration": hash_config(begun["config"]), "model": str(model or "")}

    decision = decide_on_rank_0(begin)
    if decision["model"]:
        options = config.reward.options | {"model": decision["model"]}
        config = replace(config, reward=replace(config.reward, options=options))
    own = begun.get("config") or choose_micro_batch(count_workers(resolve_device(config)), None)
    return own, join_run(own, decision)


def start_run(config: TrainConfig, held: ExitStack) -> tuple[TrainConfig, RunFolder]:
    """Create a run folder and lock it; return it, and the configuration with resolved device, plan and micro-batch."""
    asked = resolve_device(name_judge(config))
    undecided = asked.plan.allocation == "auto"
    size = check_run(asked if undecided else count_workers(asked))
    if (missing := find_random_weights(asked.policy, size.held.weights)) is not None:
        raise UserError(missing, code="weights-random")
    warn_unvalidated_scorer(asked)
    config, plan = plan_selection.resolve_plan(choose_micro_batch(asked, size.device))
    config = count_workers(config)
    if undecided and size.device is not None:
        size = check_run(replace(config, algo=asked.algo))
        config = choose_micro_batch(replace(config, algo=asked.algo), size.device)
    print(f"Device: {size.describe_device()}")
    folder = RunFolder.create(config.run.root, config.run.experiment, config.seed)
    held.enter_context(hold_run(folder.path))
    folder.write_config(configuration.to_yaml(config), config.run.overrides)
    provenance.write_provenance(folder.path)
    if plan is not None:
        write_text(folder.path / PLAN, plan)
    return config, folder


def join_run(config: TrainConfig, decision: dict[str, str]) -> RunFolder:
    """Return the run folder that rank 0 created, after checking that this process has the same configuration.

    Raises:
        UserError: the configurations differ, or this process does not see the folder.
    """
    if decision["configuration"] != hash_config(config):
        raise UserError(
            "This process composed another configuration than rank 0: its files in configs/ differ.",
            code="configurations-differ",
        )
    folder = RunFolder(Path(decision["folder"]))
    if not folder.config.is_file():
        raise UserError(
            f"run.root: {folder.path} is not there. All nodes have to see the run's folder.",
            code="run-folder-not-shared",
        )
    return folder


def resolve_device(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the device and precision of `policy.device=auto` and `policy.autocast=null`."""
    return replace(config, policy=resolve_placement(config.policy))


def count_workers(config: TrainConfig) -> TrainConfig:
    """Return the configuration with the number of rollout workers of its mode."""
    return replace(config, plan=replace(config.plan, rollout_workers=plan_selection.count_rollout_workers(config)))


def hash_config(config: TrainConfig) -> str:
    """Return the SHA-256 hash of a configuration."""
    return hashlib.sha256(configuration.to_yaml(config).encode()).hexdigest()


def find_run_to_resume(config: TrainConfig) -> RunFolder:
    """Return the folder of the run that `resume` selects. Raises `UserError`: the run does not exist."""
    if config.resume == "last":
        return RunFolder.latest(config.run.root)
    path = str(config.resume)
    if (hint := suggest_name(path, ["last"])) and not Path(path).exists():
        raise UserError(f"resume={path}: there is no such folder.{hint}", code="run-missing")
    return RunFolder.open(path)


def check_resumed(config: TrainConfig, folder: RunFolder) -> None:
    """Check what a run goes on with besides its checkpoint: its tasks, and stored episodes; raise `UserError`."""
    kind, needs = SimulatorKind.find(config.sim), build.find_method(config.algo).needs
    offline = check_preload(config, needs, kind.spec)
    if needs.learns_from == "replay":
        check_storages(config, folder, offline)
    make_sampler(config, kind, needs)


def lock_run_to_resume(config: TrainConfig, held: ExitStack) -> str:
    """Lock the folder of the run that `resume` selects, and extend the run if asked to; return its path.

    Raises:
        UserError: the run cannot be continued, or another process trains in it.
    """
    folder = read_run_to_resume(config)[1]
    held.enter_context(hold_run(folder.path))
    longer = read_run_to_resume(config)[0]  # once more: it may have been changed until the lock was held
    if longer.reward.name is not None:
        check_model(longer.reward, SimulatorKind.find(longer.sim).spec)
    check_resumed(longer, folder)
    if (note := extension.extend_run(folder, longer.train.iterations)) is not None:
        print(note)
    return str(folder.path)


def read_run_to_resume(config: TrainConfig) -> tuple[TrainConfig, RunFolder]:
    """Return the configuration and the folder of the run that `resume` selects, with the iterations that were typed.

    Raises:
        UserError: the run does not exist or is finished, its configuration is damaged or names code to run, or its
            folder holds a link that leads out of it.
    """
    folder = find_run_to_resume(config)
    check_links(folder.path)
    stored = config_file.load_config(TrainConfig, folder.config)
    with name_file(folder.config):
        old = untrusted_settings.merge_typed_settings(
            stored,
            config,
            config.run.overrides,
            folder.config,
            folder=folder.path,
            free=("resume", "run.root", extension.KEY, "policy.device"),
            unused=extension.list_unread(folder),
            remedy="resume continues a run exactly as it was configured. To start a new run from its weights: "
            "policy.checkpoint=<its folder>.",
        )
        plugins.configure_plugin("sims", old.sim, "sim")  # before ranks start
    old = extension.move_device(extension.extend_config(old, config), config)
    done = max(checkpoint.list_steps(folder.checkpoints), default=0)
    if done >= old.train.iterations and (folder.path / PAGE).is_file():
        raise UserError(
            f"{folder.path} is finished: {done} of {old.train.iterations} iterations are done. Extend it with "
            f"train.iterations=<more than {done}>, or start a new run from it with policy.checkpoint=<that folder>.",
            code="run-finished",
        )
    return replace(old, resume=str(folder.path)), folder
