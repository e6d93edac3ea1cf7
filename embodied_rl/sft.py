"""`embodied-rl sft`: behaviour cloning of a scripted operator, perception first. Makes the base checkpoint."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from embodied_rl import build, plugins
from embodied_rl import config as configuration
from embodied_rl.actors.checkpoint import save_backbone
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import FlowActor
from embodied_rl.algorithms.sft import SFT, SFTConfig
from embodied_rl.demonstrations import Demonstrations, Disturbance, record
from embodied_rl.evaluate.page import percent
from embodied_rl.evaluate.protocol import enumerate_episodes, evaluate
from embodied_rl.evaluate.report import Report
from embodied_rl.flow.sampler import FlowSDE
from embodied_rl.interfaces.policy import FlowBackbone
from embodied_rl.interfaces.sim import Operated, SimulatorSpec
from embodied_rl.rollout.episodes import EpisodeSampler
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runtime.memory import keep_freed_memory
from embodied_rl.schema import SftConfig
from embodied_rl.simulators.kind import SimulatorKind

WANDERING = Disturbance(noise=0.4, drift=0.7, slip=0.03)
"""How frames for perception are disturbed, so that they show more than an operator's path."""


def run(config: SftConfig) -> None:
    """Record, teach, clone, evaluate, save.

    Raises:
        ValueError: a simulator without a scripted operator.
    """
    check(config)
    keep_freed_memory()
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    folder = RunFolder.create(config.run.root, config.run.experiment, config.seed)
    folder.write_config(configuration.to_yaml(config), config.run.overrides)
    provenance.write(folder.path)
    kind = SimulatorKind.of(config.sim)
    simulator = kind.build(config.sim.num_envs)
    if not isinstance(simulator, Operated):
        raise ValueError(  # noqa: TRY004 - the user chose the simulator
            f"sim.name={config.sim.name} has no scripted operator to learn from; `expert` is missing."
        )
    try:
        backbone, embodiment = fit(config, simulator)
    finally:
        simulator.close()
    found = report(config, kind, backbone, embodiment, folder)
    _save(folder.path / build.POLICY, backbone, embodiment, config, found, torch.float32)
    if config.export is not None:
        _save(Path(config.export), backbone, embodiment, config, found, torch.float16)


def check(config: SftConfig) -> None:
    """Find what cannot be cloned, or with what, before the run's folder is made.

    Raises:
        ValueError: an algorithm that learns from rollouts, or rows and chunks of different lengths.
    """
    algorithm, options = plugins.configure("algorithms", config.algo, "algo")
    if hasattr(algorithm, "update"):
        name = config.algo.name
        raise ValueError(f"algo.name={name} learns from rollouts; `embodied-rl train` is the command for it.")
    _, policy = plugins.configure("policies", config.policy, "policy")
    if options.chunk != (horizon := getattr(policy, "horizon", options.chunk)):
        raise ValueError(f"algo.chunk={options.chunk} actions are recorded with a row, but policy.horizon={horizon}.")


def fit(config: SftConfig, simulator: Operated) -> tuple[FlowBackbone, Embodiment]:
    """The network after both stages, and what it is attached to."""
    _, options = plugins.configure("algorithms", config.algo, "algo")
    seen, shown = range(options.frames), range(options.frames, options.frames + options.demonstrations)
    frames = _record(simulator, config.seed, seen, options, WANDERING, faulty=False)
    faulty = options.operator == "faulty"
    upset = Disturbance(options.noise, options.drift, options.drift_share, options.slip, keep=False)
    demonstrations = _record(simulator, config.seed, shown, options, upset, faulty=faulty)
    share = demonstrations.success.mean()
    print(f"{len(frames)} frames, {len(demonstrations)} demonstrated steps ({share:.1%} in successful episodes)")
    backbone, embodiment = _network(config, options, simulator.spec, demonstrations)
    method = SFT(options, backbone, config.seed, _say)
    if options.frames:
        method.localise(embodiment.inputs(frames.observation, backbone), _targets(frames, options, simulator.spec))
    del frames
    state = demonstrations.observation.state
    actions = embodiment.model_actions(demonstrations.actions, state, backbone.spec.action_dim)
    method.clone(embodiment.inputs(demonstrations.observation, backbone), actions)
    return backbone, embodiment


def report(
    config: SftConfig, kind: SimulatorKind, backbone: FlowBackbone, embodiment: Embodiment, folder: RunFolder
) -> Report:
    """The success of the cloned policy, printed and written to the run folder."""
    spec = kind.spec
    actor = FlowActor(backbone, FlowSDE(config.algo.sampler.denoise_steps, 1.0, None, "hybrid"), None, embodiment)
    episodes = enumerate_episodes(spec, "eval", config.eval_episodes)
    envs = min(config.sim.num_envs, 64)
    handle = kind.inline(envs, "evaluation")
    try:
        results = evaluate(actor, [handle], spec, episodes, 0, envs, embodiment.executed)
    finally:
        handle.close()
    found = Report.of(results, spec, {"run": str(folder.path), "split": "eval"})
    found.write(folder.path)
    for name, summary in {"all families": found.overall, **found.families}.items():
        print(f"  {name:14s} {percent(summary.success)}")
    return found


def _record(
    simulator: Operated,
    seed: int,
    indices: range,
    options: SFTConfig,
    disturbance: Disturbance,
    *,
    faulty: bool,
) -> Demonstrations:
    """Demonstrations of the training episodes with these indices; one at least."""
    sampler = EpisodeSampler(simulator.spec, seed)
    episodes = [sampler.episode(index) for index in indices or range(1)]
    longest = min(options.longest, simulator.spec.horizon)
    return record(
        simulator, episodes, chunk=options.chunk, disturbance=disturbance, seed=seed, faulty=faulty, longest=longest
    )


def _network(
    config: SftConfig, options: SFTConfig, spec: SimulatorSpec, demonstrations: Demonstrations
) -> tuple[FlowBackbone, Embodiment]:
    """The network to start from; with new weights, states are normalised by the demonstrations'."""
    if config.policy.checkpoint is not None:
        return build.backbone(config.policy, spec)
    policy, policy_options = plugins.configure("policies", config.policy, "policy")
    embodiment = build.new_embodiment(spec, policy_options, config.policy, policy)
    embodiment = embodiment.with_statistics(demonstrations.observation.state, kind=policy.STATISTICS)
    return build.backbone_maker(policy, policy_options)(embodiment, options.auxiliary_names), embodiment


def _targets(frames: Demonstrations, options: SFTConfig, spec: SimulatorSpec) -> Tensor:
    missing = [name for name in options.auxiliary_names if name not in spec.privileged_names]
    if missing or frames.observation.privileged is None:
        raise ValueError(f"algo.auxiliary_names: the simulator's privileged state has no {', '.join(missing)}.")
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
    """Write the policy; its header says how it was made and how it scored."""
    options = asdict(backbone.config)
    extra = build.policy_extra(config.sim, config.algo.sampler) | {
        "algo": config.algo.options,
        "seed": config.seed,
        "success": asdict(found.success),
    }
    save_backbone(path, backbone, embodiment, config.policy.name, options, extra=extra, dtype=dtype)


def _say(stage: str, step: int, figures: Mapping[str, float]) -> None:
    named = "  ".join(f"{name} {value:.4f}" for name, value in figures.items() if math.isfinite(value))
    print(f"{stage} step {step}  {named}", flush=True)
