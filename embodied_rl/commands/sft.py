"""`embodied-rl sft`: make a base checkpoint: train perception, then clone a scripted operator; or clone a dataset."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.learning import trainable
from embodied_rl.actors.placement import describe_placement, place_network, resolve_placement
from embodied_rl.assembly import build, networks
from embodied_rl.checkpoints import detection
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.checkpoints.policy_format import verify_weights
from embodied_rl.config import assets, plugins
from embodied_rl.config import freeze as configuration
from embodied_rl.critic.evaluation.demonstration_filter import DemonstrationFilter, choose_filter
from embodied_rl.critic.evaluation.filtered_demonstrations import filter_dataset, filter_recording
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode, Operated, SimulatorSpec
from embodied_rl.reports.report import Rate
from embodied_rl.rollout.episode_sampler import EpisodeSampler, choose_tasks
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.metrics_file import MetricsWriter
from embodied_rl.runtime.processes.process import keep_freed_memory
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SftConfig
from embodied_rl.schema.next_command import make_next_command
from embodied_rl.training.algorithms.imitation import cloning_data
from embodied_rl.training.algorithms.imitation.cloning import SFT, ExecutedPrefix, Report
from embodied_rl.training.algorithms.imitation.cloning_data import choose_steps
from embodied_rl.training.algorithms.imitation.demonstrations import Disturbance, record_demonstrations
from embodied_rl.training.cloning_checks import Row, check_cloning
from embodied_rl.training.cloning_report import CloningLog, report_clone

Filtered = tuple[DemonstrationFilter, Path] | None
"""The filter of demonstrations, and the folder of its report; None keeps all."""
PERCEPTION_DISTURBANCE = Disturbance(noise=0.4, drift=0.7, slip=0.03)
"""Disturbance of the frames for perception, so that they show more than an operator's path."""


def run(config: SftConfig) -> None:
    """Train a policy on demonstrations and save it; then evaluate and film it, unless eval_episodes is 0.

    Raises:
        UserError: see `check_cloning`; a large network has no checkpoint; or the simulator has no scripted operator for
            this task.
    """
    config = replace(config, policy=resolve_placement(config.policy))
    if (missing := dict(check_cloning(config)).get("missing")) is not None:
        raise UserError(missing, code="weights-random")
    if (start := config.policy.checkpoint) and detection.detect_format(assets.resolve_path(start)) is None:
        verify_weights(build.resolve_policy_file(start))  # now, not after the demonstrations are recorded
    chosen = choose_filter(config.reward, config.filter, SimulatorKind.find(config.sim).spec, print)
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    folder = RunFolder.create(config.run.root, config.run.experiment, config.seed)
    folder.write_config(configuration.to_yaml(config), config.run.overrides)
    provenance.write_provenance(folder.path)
    print(f"Run folder: {folder.path}\nDevice: {describe_placement(config.policy)}", flush=True)
    with folder.removed_if_bare(), MetricsWriter(folder.metrics) as metrics:
        kind = SimulatorKind.find(config.sim)
        make = clone_dataset if config.dataset is not None else clone_operator
        kept = None if chosen is None else (chosen, folder.path)
        backbone, embodiment = make(config, kind, CloningLog(metrics).report, kept)
        rate = kind.spec.control_hz
        _save(folder.path / build.POLICY, backbone, embodiment, config, rate, torch.float32)
        if config.export is not None:
            _save(Path(config.export), backbone, embodiment, config, rate, torch.float16)
        print(f"Policy: {folder.path / build.POLICY}", flush=True)
    if config.eval_episodes:
        success, lines = report_clone(config, kind, backbone, embodiment, folder)
        if config.export is not None:
            _save(Path(config.export), backbone, embodiment, config, rate, torch.float16, success)
        print("\n".join(lines))
    else:
        print(f"\nRun folder: {folder.path}\nNext:   {make_next_command(config, kind.spec, folder.path)}")


def check_start(config: SftConfig) -> list[Row]:
    """Check what `run` checks before it records, for a dry run; return the size of the work, as rows of text."""
    choose_filter(config.reward, config.filter, SimulatorKind.find(config.sim).spec)
    return check_cloning(config)


def clone_operator(
    config: SftConfig, kind: SimulatorKind, report: Report, kept: Filtered = None
) -> tuple[FlowBackbone, Embodiment]:
    """Record and clone the simulator's operator; return the network and its embodiment."""
    with closing(kind.build(config.sim.num_envs)) as simulator:
        assert isinstance(simulator, Operated), "checked before"
        return fit_network(config, simulator, report, kept)


def fit_network(
    config: SftConfig, simulator: Operated, report: Report, kept: Filtered = None
) -> tuple[FlowBackbone, Embodiment]:
    """Train perception, then clone the operator; return the network and its embodiment."""
    _, options = plugins.configure_plugin("algorithms", config.algo, "algo")
    episodes = draw_episodes(simulator.spec, config.seed, config.task, max(options.frames + options.demonstrations, 1))
    seen, shown = episodes[: options.frames] or episodes[:1], episodes[options.frames :]
    chunk = build.find_sizes(config.policy).horizon
    demonstrate = partial(record_demonstrations, simulator, chunk=chunk, seed=config.seed, longest=options.longest)
    print(f"Recording {len(seen)} episodes for perception and {len(shown)} demonstrations", flush=True)
    frames = demonstrate(seen, disturbance=PERCEPTION_DISTURBANCE)
    upset = Disturbance(options.noise, options.drift, options.drift_share, options.slip, keep=False)
    demonstrations = demonstrate(shown, disturbance=upset, faulty=options.operator == "faulty", prefix=options.prefix)
    if kept is not None:
        demonstrations = filter_recording(kept[0], demonstrations, shown, simulator.spec, kept[1])
    share = demonstrations.success.mean()
    print(f"{len(frames)} frames, {len(demonstrations)} demonstrated steps ({share:.1%} in successful episodes)")
    backbone, embodiment = make_network(
        config, simulator.spec, demonstrations.observation.state, options.auxiliary_names
    )
    method = SFT(options, backbone, config.seed, report, autocast=bool(config.policy.autocast))
    if options.frames:
        assert frames.observation.privileged is not None, "a simulator that names privileged entries gives them"
        columns = [simulator.spec.privileged_names.index(name) for name in options.auxiliary_names]
        targets = torch.from_numpy(frames.observation.privileged[:, columns]).float()
        method.localise(embodiment.inputs(frames.observation, backbone), targets)
    del frames
    state = demonstrations.observation.state
    actions = embodiment.model_actions(demonstrations.actions, state, backbone.spec.action_dim)
    prefix = None
    if options.prefix:
        executed = embodiment.model_actions(demonstrations.executed, state, backbone.spec.action_dim)
        prefix = ExecutedPrefix(executed, torch.from_numpy(demonstrations.least), options.prefix)
    method.clone(embodiment.inputs(demonstrations.observation, backbone), actions, prefix)
    return backbone, embodiment


def draw_episodes(spec: SimulatorSpec, seed: int, task: str | None, number: int) -> list[Episode]:
    """Return the first `number` training episodes of the seed with this task or family; None takes any task."""
    wanted = set(choose_tasks(spec, task))
    sampler = EpisodeSampler(spec, seed)
    return list(islice((e for e in map(sampler.episode, count()) if e.task in wanted), number))


def clone_dataset(
    config: SftConfig, kind: SimulatorKind, report: Report, kept: Filtered = None
) -> tuple[FlowBackbone, Embodiment]:
    """Clone a dataset, streamed from disk; return the network and its embodiment."""
    _, options = plugins.configure_plugin("algorithms", config.algo, "algo")
    with cloning_data.open_dataset(str(config.dataset)) as dataset:
        backbone, embodiment = make_network(config, kind.spec, cloning_data.read_states(dataset), ())
        print(f"{len(dataset)} demonstrated steps in {len(dataset.episodes)} episodes of {config.dataset}")
        names, chunk = cloning_data.match_dataset(dataset, embodiment), backbone.spec.horizon
        steps = choose_steps(dataset, config.sources)
        if steps.note is not None:
            print(steps.note, flush=True)
        rows = None if kept is None else filter_dataset(kept[0], dataset, names, chunk, kept[1])
        data = (dataset, embodiment, backbone, options.batch, config.seed)
        batches = cloning_data.stream_batches(*data, rows, options.prefix, steps.mask)
        SFT(options, backbone, config.seed, report, autocast=bool(config.policy.autocast)).finetune(batches)
    return backbone, embodiment


def make_network(
    config: SftConfig, spec: SimulatorSpec, state: NDArray[Any], auxiliary_names: Sequence[str]
) -> tuple[FlowBackbone, Embodiment]:
    """Make the initial network and its embodiment; new weights use the statistics of the demonstrated states [m, S]."""
    if config.policy.checkpoint is not None:
        backbone, embodiment = build.build_backbone(config.policy, spec)
    else:
        policy, sizes = plugins.configure_plugin("policies", config.policy, "policy")
        embodiment = build.build_embodiment(spec, sizes, config.policy, policy)
        embodiment = embodiment.with_statistics(state, kind=policy.STATISTICS)
        backbone = networks.make_backbone(policy, sizes, embodiment, auxiliary_names)
    trainable.choose_trainable(backbone, config.policy.train, config.policy.lora)
    place_network(backbone, config.policy)
    return backbone, embodiment


def _save(
    path: Path,
    backbone: FlowBackbone,
    embodiment: Embodiment,
    config: SftConfig,
    control_hz: float,
    dtype: torch.dtype,
    success: Rate | None = None,
) -> None:
    """Write the policy, with its origin in the header, and its success once it is known."""
    options = asdict(backbone.config)
    origin = build.describe_origin(config.sim, config.algo.sampler, control_hz)
    extra = origin | {"algo": config.algo.options, "seed": config.seed}
    extra |= {} if success is None else {"success": asdict(success)}
    save_backbone(path, backbone, embodiment, config.policy.name, options, extra=extra, dtype=dtype)
