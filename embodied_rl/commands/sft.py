"""`embodied-rl sft`: make a base checkpoint: train perception, then clone a scripted operator; or clone a dataset."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.kinds import deploy_actor
from embodied_rl.actors.placement import check_placement, place_network
from embodied_rl.assembly import build
from embodied_rl.checkpoints.policy_file import save_backbone
from embodied_rl.config import freeze as configuration
from embodied_rl.config import plugins
from embodied_rl.config.schema import SftConfig
from embodied_rl.evaluate.benchmark import describe_simulator
from embodied_rl.evaluate.page import format_percent
from embodied_rl.evaluate.protocol import choose_tasks, enumerate_episodes, evaluate_policy
from embodied_rl.evaluate.report import Report
from embodied_rl.imitation import dataset as lessons
from embodied_rl.imitation.cloning import SFT, SFTConfig
from embodied_rl.imitation.demonstrations import Demonstrations, Disturbance, record_demonstrations
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import FlowBackbone
from embodied_rl.interfaces.sim import Episode, Operated, SimulatorSpec
from embodied_rl.learning import trainable
from embodied_rl.processes.allocator import keep_freed_memory
from embodied_rl.rollout.episode_sampler import EpisodeSampler
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder
from embodied_rl.simulators.kind import SimulatorKind

WANDERING = Disturbance(noise=0.4, drift=0.7, slip=0.03)
"""How frames for perception are disturbed, so that they show more than an operator's path."""


def run(config: SftConfig) -> None:
    """Train a policy on demonstrations, evaluate it, and save it.

    Raises:
        UserError: the simulator has no scripted operator.
    """
    check_cloning(config)
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    folder = RunFolder.create(config.run.root, config.run.experiment, config.seed)
    folder.write_config(configuration.to_yaml(config), config.run.overrides)
    provenance.write_provenance(folder.path)
    kind = SimulatorKind.find(config.sim)
    backbone, embodiment = follow_dataset(config, kind.spec) if config.dataset is not None else _operated(config, kind)
    found = report_success(config, kind, backbone, embodiment, folder)
    _save(folder.path / build.POLICY, backbone, embodiment, config, found, torch.float32)
    if config.export is not None:
        _save(Path(config.export), backbone, embodiment, config, found, torch.float16)


def _operated(config: SftConfig, kind: SimulatorKind) -> tuple[FlowBackbone, Embodiment]:
    with closing(kind.build(config.sim.num_envs)) as simulator:
        if not isinstance(simulator, Operated):
            raise UserError(
                f"sim.name={config.sim.name} has no scripted operator to learn from; `expert` is missing. "
                "Give dataset=<LeRobotDataset folder>, or another simulator."
            )
        return fit_network(config, simulator)


def check_cloning(config: SftConfig) -> None:
    """Check the configuration, before the run's folder is made.

    Raises:
        UserError: the algorithm learns from rollouts, the device is missing, the precision is too low to learn, or the
            dataset cannot be cloned.
    """
    method = build.find_method(config.algo)
    if method.needs.learns_from != "demonstrations":
        name = config.algo.name
        raise UserError(f"algo.name={name} learns from rollouts; `embodied-rl train` is the command for it.")
    build.find_sizes(config.policy)
    check_placement(config.policy)
    if config.dataset is not None:
        lessons.check_dataset(config, method.options)


def fit_network(config: SftConfig, simulator: Operated) -> tuple[FlowBackbone, Embodiment]:
    """Train perception, then clone the operator; return the network and its embodiment."""
    _, options = plugins.configure_plugin("algorithms", config.algo, "algo")
    episodes = draw_episodes(simulator.spec, config.seed, config.task, max(options.frames + options.demonstrations, 1))
    seen, shown = episodes[: options.frames] or episodes[:1], episodes[options.frames :]
    chunk = build.find_sizes(config.policy).horizon
    demonstrate = partial(record_demonstrations, simulator, chunk=chunk, seed=config.seed, longest=options.longest)
    frames = demonstrate(seen, disturbance=WANDERING)
    upset = Disturbance(options.noise, options.drift, options.drift_share, options.slip, keep=False)
    demonstrations = demonstrate(shown, disturbance=upset, faulty=options.operator == "faulty")
    share = demonstrations.success.mean()
    print(f"{len(frames)} frames, {len(demonstrations)} demonstrated steps ({share:.1%} in successful episodes)")
    backbone, embodiment = make_network(
        config, simulator.spec, demonstrations.observation.state, options.auxiliary_names
    )
    method = SFT(options, backbone, config.seed, _say, autocast=config.policy.autocast)
    if options.frames:
        method.localise(embodiment.inputs(frames.observation, backbone), _targets(frames, options, simulator.spec))
    del frames
    state = demonstrations.observation.state
    actions = embodiment.model_actions(demonstrations.actions, state, backbone.spec.action_dim)
    method.clone(embodiment.inputs(demonstrations.observation, backbone), actions)
    return backbone, embodiment


def draw_episodes(spec: SimulatorSpec, seed: int, task: str | None, number: int) -> list[Episode]:
    """Return the first `number` training episodes of the seed with this task or family; None takes any task."""
    wanted = set(choose_tasks(spec, task))
    sampler = EpisodeSampler(spec, seed)
    return list(islice((e for e in map(sampler.episode, count()) if e.task in wanted), number))


def follow_dataset(config: SftConfig, spec: SimulatorSpec) -> tuple[FlowBackbone, Embodiment]:
    """Clone a dataset, streamed from disk; return the network and its embodiment."""
    _, options = plugins.configure_plugin("algorithms", config.algo, "algo")
    with lessons.open_dataset(str(config.dataset)) as dataset:
        backbone, embodiment = make_network(config, spec, lessons.read_states(dataset), ())
        told = lessons.stream_batches(dataset, embodiment, backbone, options.batch, config.seed)
        print(f"{len(dataset)} demonstrated steps in {len(dataset.episodes)} episodes of {config.dataset}")
        SFT(options, backbone, config.seed, _say, autocast=config.policy.autocast).follow(told)
    return backbone, embodiment


def report_success(
    config: SftConfig, kind: SimulatorKind, backbone: FlowBackbone, embodiment: Embodiment, folder: RunFolder
) -> Report:
    """Evaluate the cloned policy; print its success, write the report to the run folder, and return it."""
    spec = kind.spec
    actor = deploy_actor(backbone, embodiment, {"denoise_steps": config.algo.sampler.denoise_steps})
    actor.autocast = config.policy.autocast
    episodes = enumerate_episodes(spec, "eval", config.eval_episodes, config.task)
    envs = min(config.sim.num_envs, 64)
    with closing(kind.inline(envs, "evaluation")) as handle:
        results = evaluate_policy(actor, [handle], spec, episodes, 0, envs, embodiment.executed)
    where = {"run": str(folder.path), "split": "eval", "episodes_for": "report"}
    told = {**where, "simulators": [describe_simulator(kind, spec)]}
    found = Report.from_results(results, spec, told)
    found.write(folder.path)
    for name, summary in {"all families": found.overall, **found.families}.items():
        print(f"  {name:14s} {format_percent(summary.success)}")
    return found


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
        backbone = build.choose_backbone_maker(policy, sizes)(embodiment, tuple(auxiliary_names))
    trainable.choose_trainable(backbone, config.policy.train, config.policy.lora)
    place_network(backbone, config.policy)
    return backbone, embodiment


def _targets(frames: Demonstrations, options: SFTConfig, spec: SimulatorSpec) -> Tensor:
    missing = [name for name in options.auxiliary_names if name not in spec.privileged_names]
    if missing or frames.observation.privileged is None:
        raise UserError(f"algo.auxiliary_names: the simulator's privileged state has no {', '.join(missing)}.")
    columns = [spec.privileged_names.index(name) for name in options.auxiliary_names]
    return torch.from_numpy(frames.observation.privileged[:, columns]).float()


def _save(
    path: Path,
    backbone: FlowBackbone,
    embodiment: Embodiment,
    config: SftConfig,
    found: Report,
    dtype: torch.dtype,
) -> None:
    """Write the policy, with its origin and its success in the header."""
    options = asdict(backbone.config)
    extra = build.describe_origin(config.sim, config.algo.sampler) | {
        "algo": config.algo.options,
        "seed": config.seed,
        "success": asdict(found.success),
    }
    save_backbone(path, backbone, embodiment, config.policy.name, options, extra=extra, dtype=dtype)


def _say(stage: str, step: int, figures: Mapping[str, float]) -> None:
    named = "  ".join(f"{name} {value:.4f}" for name, value in figures.items() if math.isfinite(value))
    print(f"{stage} step {step}  {named}", flush=True)
