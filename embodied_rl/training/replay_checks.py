"""Checks of a run that learns from replay, before its folder is made."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from embodied_rl.actors.embodiment import add_conditions
from embodied_rl.actors.learning.checkpoint import TENSORS, list_steps
from embodied_rl.assembly import build, networks
from embodied_rl.config import assets
from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec, Source
from embodied_rl.rollout.episode_sampler import name_tasks
from embodied_rl.rollout.replay.experience import check_offline, choose_episodes, open_offline
from embodied_rl.rollout.replay.format import ReplayError, ReplayFormat
from embodied_rl.rollout.replay.replay_files import FORMAT, is_dataset
from embodied_rl.rollout.replay.storage import ReplayStorage, StoredEpisode
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace
from embodied_rl.schema import ReplayNode, TrainConfig
from embodied_rl.system.atomic_write import check_folder
from embodied_rl.system.untrusted_files import name_file


def check_replay(config: TrainConfig, needs: Needs) -> None:
    """Check that what is collected is stored on this machine, in a new folder; without delay, segments or scorer.

    Raises:
        UserError: they do not; the message names the key.
    """
    name, root = config.algo.name, config.replay.root
    if root is not None:
        check_folder(root, "replay.root")
        if Path(root).exists() and any(Path(root).iterdir()):
            raise UserError(f"replay.root={root} is not empty. Give a new folder.", code="replay-not-empty")
    if config.mode == "stream":
        raise UserError(
            f"mode=stream: algo.name={name} learns from all stored episodes at once, not from segments of a rollout. "
            "Give mode=sync or mode=async.",
            code="replay-with-segments",
        )
    if config.plan.rollout_workers or config.mode == "async":
        check_workers(config)
    phases = config.replay.offline_iterations + config.replay.warmup_iterations
    if phases >= config.train.iterations or (config.replay.warmup_iterations and not config.replay.collect):
        raise UserError(
            f"replay.offline_iterations={config.replay.offline_iterations} and "
            f"replay.warmup_iterations={config.replay.warmup_iterations} come before others that collect and learn: "
            f"give fewer than train.iterations={config.train.iterations}, and replay.collect=true.",
            code="replay-phases-too-long",
        )
    if config.replay.offline_iterations and (config.replay.preload is None or not config.replay.collect):
        raise UserError(
            f"replay.offline_iterations={config.replay.offline_iterations} learn from stored episodes alone, before "
            "others are collected: name them with replay.preload=<folder>, and give replay.collect=true.",
            code="replay-without-episodes",
        )
    if config.reward.name is not None and config.reward.mode != "audit":
        raise UserError(
            f"reward.name={config.reward.name}: algo.name={name} learns from replay, which holds only the simulator's "
            "rewards. Give reward.mode=audit, or reward=off.",
            code="replay-with-scorer",
        )
    if not config.replay.collect and config.replay.preload is None:
        raise UserError(
            "replay.collect=false learns from stored episodes alone: name them with replay.preload=<folder>, such as "
            "one that `embodied-rl collect format=replay out=<folder>` makes.",
            code="replay-without-episodes",
        )
    if not config.replay.collect and config.plan.allocation == "auto":
        message = "replay.collect=false: there are no rollouts to plan. Give plan=colocated."
        raise UserError(message, code="replay-without-rollouts")
    unused = {"replay.root": root, "replay.capacity": config.replay.capacity, "curriculum": config.curriculum.name}
    plain = {"replay.root": None, "replay.capacity": ReplayNode().capacity, "curriculum": "uniform"}
    if not config.replay.collect and (changed := [key for key in unused if unused[key] != plain[key]]):
        raise UserError(
            f"{changed[0]}={unused[changed[0]]} is not used with replay.collect=false, which neither runs nor stores "
            "episodes. Leave it out.",
            code="key-unused",
        )
    check_ratio(config, needs)
    if config.policy.delay:
        raise UserError(
            f"policy.delay={config.policy.delay}: algo.name={name} learns from replay, which holds no decisions under "
            "a delay. Give policy.delay=0.",
            code="replay-with-delay",
        )


def check_ratio(config: TrainConfig, needs: Needs) -> None:
    """Check that there are decisions that updates can be counted by, and no other number of updates without a use.

    Raises:
        UserError: there are none, or there is one.
    """
    if needs.updates_per_decision is None:
        return
    ratio = f"algo.updates_per_decision={needs.updates_per_decision:g}"
    if not config.replay.collect:
        message = f"{ratio}: replay.collect=false collects no decisions. Give algo.updates=<number> instead."
        raise UserError(message, code="key-unused")
    typed = any(text.lstrip("+").partition("=")[0] == "algo.updates" for text in config.run.overrides)
    if typed and not config.replay.offline_iterations:
        message = f"algo.updates is not used with {ratio}, as every iteration collects. Leave one of them out."
        raise UserError(message, code="keys-contradict")


def check_workers(config: TrainConfig) -> None:
    """Check that the storages of rollout workers can be read by the ranks, each those of equally many workers.

    Raises:
        UserError: they cannot; the message names the key.
    """
    workers, ranks = config.plan.rollout_workers or 0, config.plan.ranks
    place = TorchrunPlace.find()
    reasons = {
        "replay.collect=false: there is nothing for rollout workers to collect. Give mode=sync, and no "
        "plan.rollout_workers": not config.replay.collect,
        f"replay.offline_iterations={config.replay.offline_iterations}: rollout workers collect from the first "
        "iteration on. Give mode=sync, and no plan.rollout_workers": config.replay.offline_iterations > 0,
        f"runtime={config.runtime}: ranks read what rollout workers store from the memory of one machine. Give "
        "runtime=local, or plan.rollout_workers=0 with mode=sync": config.runtime != "local",
        "torchrun: ranks read what rollout workers store from the memory of one machine, and torchrun may use several. "
        "Start without it, or give plan.rollout_workers=0 with mode=sync": place is not None and place.size > 1,
        f"plan.rollout_workers={workers} and plan.ranks={ranks}: each rank learns from what its own rollout workers "
        f"store. Give plan.rollout_workers={ranks}, or a multiple": config.plan.allocation != "auto"
        and workers % ranks > 0,
    }
    for reason, applies in reasons.items():
        if applies:
            raise UserError(f"{reason} (algo.name={config.algo.name}).", code="replay-with-rollout-workers")


def check_preload(config: TrainConfig, needs: Needs, spec: SimulatorSpec) -> tuple[ReplayStorage, ...]:
    """Check that `replay.preload` holds experience of this simulator, with instructions that the policy knows.

    Returns:
        Its storages, without the pictures of a dataset.

    Raises:
        UserError: it does not, or is no replay storage; the message names the difference.
    """
    if config.replay.preload is None:
        return ()
    network, embodiment = build.outline_backbone(config.policy, spec)
    embodiment = networks.fit_conditions(network, embodiment, needs.conditions, spec.instruction_length)
    expected = ReplayFormat.of_simulator(spec, 1, 2, embodiment.executed)
    noise = None if needs.start_noise is None else needs.start_noise.count_entries(network.spec)
    storages = open_offline(assets.resolve_path(config.replay.preload), spec, pictures=False)
    tasks = name_tasks(spec, config.train.task)
    if tasks is not None and is_dataset(assets.resolve_path(config.replay.preload)):
        texts = {text for storage in storages for text in storage.list_instructions()}
        if unknown := sorted(texts - {task.name for task in spec.tasks}):
            raise UserError(
                f"replay.preload={config.replay.preload}: train.task={config.train.task} cannot choose among the "
                f"episodes of a LeRobotDataset with the instruction '{unknown[0]}', which is no task's name. Give a "
                "replay storage (`collect format=replay`), or leave out train.task.",
                code="dataset-without-tasks",
            )
    chosen = [(storage, choose_episodes(storage, tasks)) for storage in storages]
    check_episodes(config, needs, [each for _, episodes in chosen for each in episodes])
    if not config.replay.collect and not any(tells_better_actions(*each) for each in chosen if each[1]):
        raise UserError(
            f"replay.preload={config.replay.preload}: all episodes failed, with rewards of 0 and without a human: "
            "nothing says which actions are better. Give episodes of which some succeeded, or replay.collect=true.",
            code="replay-without-rewards",
        )
    for storage in storages:
        storage.format.check_robot(expected, f"replay.preload={config.replay.preload}")
        if needs.critic and config.policy.critic == "privileged" and not storage.format.privileged_names:
            raise UserError(
                f"replay.preload={config.replay.preload} has no privileged state, which policy.critic=privileged "
                "reads. Give policy.critic=prefix or expert.",
                code="privileged-state-missing",
            )
        if noise is not None:
            check_stored(config, needs, storage.format, expected.executed, noise)
        with name_file(assets.resolve_path(config.replay.preload)):
            for condition in needs.conditions or [embodiment.condition]:
                embodiment.tokens(add_conditions(storage.list_instructions(), condition))
    return storages


def tells_better_actions(storage: ReplayStorage, episodes: Sequence[StoredEpisode]) -> bool:
    """Return whether something in these episodes says which actions are better: success, a reward, or a human."""
    slots = [each.slots for each in episodes]
    where = np.concatenate([np.full_like(each.slots, each.track) for each in episodes]), np.concatenate(slots)
    human = storage.read_field("source", *where) == int(Source.HUMAN)
    return any(each.success for each in episodes) or bool(human.any() or storage.read_field("reward", *where).any())


def check_episodes(config: TrainConfig, needs: Needs, episodes: Sequence[StoredEpisode]) -> None:
    """Check that there are offline episodes that an algorithm learns from.

    Raises:
        UserError: there are none.
    """
    of = "" if config.train.task is None else f" of train.task={config.train.task}"
    where = f"replay.preload={config.replay.preload}"
    if not episodes:
        raise UserError(
            f"{where} holds no whole episode{of}: one that ended in success or failure, or by the time limit with a "
            "final observation.",
            code="replay-empty",
        )
    if needs.success and not config.replay.collect and not any(episode.success for episode in episodes):
        raise UserError(
            f"{where} holds no successful episode{of}, and algo.name={config.algo.name} learns only from those. Give "
            "episodes of which some succeeded, or replay.collect=true.",
            code="replay-without-success",
        )


def check_storages(config: TrainConfig, folder: RunFolder, offline: tuple[ReplayStorage, ...]) -> None:
    """Check that a run that continues from a checkpoint still has the storages that it wrote and learned from.

    Raises:
        ReplayError: one is missing, or the episodes of `replay.preload` are not those of the checkpoint.
    """
    steps, root = list_steps(folder.checkpoints), Path(config.replay.root or folder.path / "replay")
    if not steps:
        return
    for number in range(config.plan.collectors if config.replay.collect else 0):
        if not (place := root / f"collector_{number}" / FORMAT).is_file():
            raise ReplayError(
                f"{place.parent} is not there: the run continues with what it stored. Restore it from a copy, or give "
                "the folder that it is in by replay.root.",
                code="replay-missing",
            )
    key, file = "rank/0/replay/offline", folder.checkpoints / f"{steps[-1]:08d}" / TENSORS
    with suppress(OSError, SafetensorError):  # a damaged checkpoint is reported when it is read
        with safe_open(file, "numpy") as tensors:
            stored = {"offline": tensors.get_tensor(key)} if key in set(tensors.keys()) else {}
        check_offline(offline, stored)


def check_stored(config: TrainConfig, needs: Needs, stored: ReplayFormat, executed: int, noise: int) -> None:
    """Check that offline experience suits an algorithm that learns the start noise, of `noise` entries.

    Raises:
        UserError: it needs stored noise, and there is none of this size; or chunks do not make up those of this run.
    """
    where = f"replay.preload={config.replay.preload}"
    for name in needs.stores:
        if (found := stored.fields.get(f"trace/{name}")) is None or found.shape != (noise,):
            have = "no" if found is None else f"{list(found.shape)} numbers of"
            raise UserError(
                f"{where} holds {have} {name} for each decision, and algo.name={config.algo.name} reads "
                f"{noise} with its present settings.",
                code="replay-entry-missing",
            )
    fits = stored.executed == executed if needs.stores else executed % stored.executed == 0
    if not fits:
        raise UserError(
            f"{where} has decisions of {stored.executed} control steps, which do not make up the {executed} of a "
            f"decision here (policy.executed): give policy.executed={stored.executed}.",
            code="replay-chunk-mismatch",
        )


def check_steering(config: TrainConfig) -> None:
    """Check the settings of an algorithm that freezes the network, and learns its start noise.

    Raises:
        UserError: they train, adapt or shard the network, or name a critic that such an algorithm has not.
    """
    refused = {
        "policy.train=full": config.policy.train == "full",
        "policy.critic=privileged or prefix": config.policy.critic != "expert",
        "plan.learner=replicated": config.plan.learner != "sharded",
        "algo.sampler.name=flow_sde": config.algo.sampler.name == "flow_sde",
    }
    for remedy, fits in refused.items():
        if not fits:
            raise UserError(
                f"algo.name={config.algo.name} freezes the policy's network, and learns its start noise, with critics "
                f"on the prefix: give {remedy}.",
                code="start-noise-setting",
            )
