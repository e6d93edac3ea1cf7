"""Checks before demonstrations are recorded or cloned, and the least memory that this takes."""

from contextlib import nullcontext

from embodied_rl.actors.learning.memory_budget import find_machine_bytes, format_bytes
from embodied_rl.actors.learning.update_memory import count_held
from embodied_rl.actors.placement import check_placement, describe_placement, resolve_placement
from embodied_rl.assembly import build
from embodied_rl.assembly.build import check_start_noise, outline_backbone
from embodied_rl.assembly.networks import check_guidance
from embodied_rl.interfaces.backbone import Backbone, FlowBackbone, ImitationBackbone
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SftConfig
from embodied_rl.training.algorithms.imitation import cloning_data
from embodied_rl.training.algorithms.imitation.cloning import SFTConfig
from embodied_rl.training.algorithms.imitation.cloning_data import choose_steps
from embodied_rl.training.run_size import check_environments, count_observation, find_random_weights

Row = tuple[str, str]


def check_cloning(config: SftConfig) -> list[Row]:
    """Check the configuration, before the run's folder is made; return device and memory as rows of text.

    The row "missing" says what a dry run may lack and a run may not.

    Raises:
        UserError: the algorithm learns from rollouts, a stage has nothing to learn or no demonstrations, the device
            is missing, the precision is too low to learn, the checkpoint or dataset does not fit, or all of it does not
            fit into this machine's memory.
    """
    method = build.find_method(config.algo)
    if method.needs.learns_from != "demonstrations":
        name = config.algo.name
        message = f"algo.name={name} learns from rollouts; `embodied-rl train` is the command for it."
        raise UserError(message, code="algorithm-wrong-command")
    options, kind = method.options, SimulatorKind.find(config.sim)
    if delay := config.policy.delay:
        raise UserError(
            f"policy.delay={delay} is of `train`. Cloning learns for a delay with algo.prefix={delay}; `eval "
            f"delay={delay}` shows it.",
            code="delay-in-cloning",
        )
    check_stages(config, options)
    check_placement(config.policy)
    check_start_noise(config.policy, None)
    with nullcontext() if config.dataset is None else cloning_data.open_dataset(config.dataset) as dataset:
        if dataset is None:
            if not hasattr(kind.simulator, "expert"):
                raise UserError(
                    f"sim.name={config.sim.name} has no scripted operator to learn from; `expert` is missing. "
                    "Give dataset=<LeRobotDataset folder>, or another simulator.",
                    code="operator-missing",
                )
        else:
            cloning_data.check_stages(config, options)
        names, left_out = () if dataset is not None else options.auxiliary_names, None
        network, embodiment = outline_backbone(config.policy, kind.spec, names)
        check_guidance(embodiment)
        if dataset is None:
            check_perception(config, options, network, kind.spec)
        else:
            cloning_data.match_dataset(dataset, embodiment)
            left_out = choose_steps(dataset, config.sources).note
    check_prefix(config, options, network)
    memory = count_held(network)
    held, missing = memory.held, find_random_weights(config.policy, memory.weights)
    seen = 0 if config.dataset is not None else count_recorded(options, kind.spec, network.spec.horizon)
    check_environments(config.sim.num_envs, kind.spec)
    check_memory(config, options, kind.spec, held, seen)
    what = "" if config.dataset is not None else f", demonstrations {format_bytes(seen)} at most"
    rows = [("device", describe_placement(config.policy))]
    rows += [("memory", f"parameters and optimiser {format_bytes(held)}{what}. Simulators and activations come on top")]
    rows += [] if left_out is None else [("steps", left_out)]
    return rows if missing is None else [*rows, ("missing", missing)]


def check_stages(config: SftConfig, options: SFTConfig) -> None:
    """Check that the stages learn, and have demonstrations to learn from; raise `UserError` otherwise."""
    if not (options.steps or options.finetune_steps or (options.frames and options.localise_steps)):
        raise UserError(
            "algo.steps=0 algo.finetune_steps=0 and algo.frames=0 or algo.localise_steps=0: nothing would learn. "
            "Give algo.finetune_steps=<steps>.",
            code="cloning-nothing-to-learn",
        )
    if config.dataset is None and config.sources is not None:
        message = "sources chooses among the steps of a dataset, and there is none: give dataset=<folder>."
        raise UserError(message, code="sources-without-dataset")
    if config.dataset is None and not options.demonstrations:
        message = "algo.demonstrations=0: there is nothing to clone. Give at least 1, or dataset=<folder>."
        raise UserError(message, code="cloning-no-demonstrations")


def check_perception(config: SftConfig, options: SFTConfig, network: FlowBackbone, spec: SimulatorSpec) -> None:
    """Check that stages that train perception, or freeze it, find a separate perception in the policy.

    Raises:
        UserError: the policy has none, or the simulator lacks the quantities to predict.
    """
    if not network.perception_parameters() and (options.frames or options.steps):
        key = f"algo.frames={options.frames}" if options.frames else f"algo.steps={options.steps}"
        count = max(options.steps, options.finetune_steps)
        raise UserError(
            f"{key} needs a policy with a perception of its own, and policy.name={config.policy.name} has none apart. "
            f"Clone all of it: algo.frames=0 algo.steps=0 algo.finetune_steps={count}, as algo=sft_vla does.",
            code="perception-missing",
        )
    if not options.frames:
        return
    if missing := [name for name in options.auxiliary_names if name not in spec.privileged_names]:
        raise UserError(
            f"algo.auxiliary_names: the simulator's privileged state has no {', '.join(missing)}; it has "
            f"{', '.join(spec.privileged_names) or 'nothing'}. algo.frames=0 leaves perception as it is.",
            code="perception-unknown-names",
        )
    if tuple(network.spec.auxiliary_names) != tuple(options.auxiliary_names) or not options.auxiliary_names:
        asked, there = ",".join(options.auxiliary_names), ",".join(network.spec.auxiliary_names)
        raise UserError(
            f"algo.frames={options.frames} teaches perception to predict algo.auxiliary_names=[{asked}], but the "
            f"policy predicts [{there}]. Make them equal, or give algo.frames=0.",
            code="perception-other-names",
        )


def count_recorded(options: SFTConfig, spec: SimulatorSpec, horizon: int) -> int:
    """Return the bytes of all recorded steps, each with its chunk as it was chosen and as it was executed, at most."""
    steps = (max(options.frames, 1) + options.demonstrations) * min(options.longest, spec.horizon)
    return steps * (count_observation(spec) + 8 * horizon * len(spec.action_names))


def check_memory(config: SftConfig, options: SFTConfig, spec: SimulatorSpec, held: int, seen: int) -> None:
    """Check that network, optimiser and demonstrations fit into this machine's memory; raise `UserError` otherwise."""
    memory = find_machine_bytes()
    on_host = held if resolve_placement(config.policy).device == "cpu" else 0
    here = f"this machine has {format_bytes(memory)}."
    if on_host > memory:
        message = f"policy: parameters and optimiser take {format_bytes(held)}, and {here}"
        raise UserError(message, code="memory-networks")
    if on_host + seen > memory:
        raise UserError(
            f"algo.frames={options.frames} and algo.demonstrations={options.demonstrations} episodes of up to "
            f"{min(options.longest, spec.horizon)} steps take {format_bytes(seen)}, and {here} Record fewer, or clone "
            "from disk: embodied-rl collect format=lerobot, then dataset=<folder>.",
            code="memory-demonstrations",
        )


def check_prefix(config: SftConfig, options: SFTConfig, network: Backbone) -> None:
    """Check that the network is a flow where prefixes or several draws are asked for, and that a prefix fits a chunk.

    Also check that a policy that reads several observations is cloned from a dataset, which holds them.

    Raises:
        UserError: it is not, or it does not.
    """
    if not isinstance(network, FlowBackbone) and (options.prefix or options.draws > 1):
        key = f"algo.prefix={options.prefix}" if options.prefix else f"algo.draws={options.draws}"
        message = f"{key} is for flows, and policy={config.policy.name} is none. Leave it out."
        raise UserError(message, code="prefix-not-supported" if options.prefix else "key-unused")
    if config.dataset is None and isinstance(network, ImitationBackbone) and network.observations > 1:
        raise UserError(
            f"policy={config.policy.name} reads the observations of {network.observations} control steps, which only a "
            "dataset holds: embodied-rl collect policy=expert format=lerobot, then dataset=<folder>.",
            code="policy-needs-history",
        )
    if options.prefix >= (horizon := network.spec.horizon):
        raise UserError(
            f"algo.prefix={options.prefix}: a chunk of this policy has {horizon} actions, and some must be left to "
            f"learn. Give algo.prefix={horizon - 1} at most, or a longer policy.horizon, where the policy has one.",
            code="prefix-too-long",
        )
