"""Build actors, algorithms and curricula from a frozen configuration. Only this file resolves names to classes."""

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from embodied_rl.actors import tokenizer
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.kinds import ActorSettings, make_actor
from embodied_rl.actors.learning import checkpoint, trainable
from embodied_rl.actors.learning.checkpoint import CheckpointError
from embodied_rl.actors.placement import check_placement, resolve_placement
from embodied_rl.actors.start_noise import StartNoiseSettings
from embodied_rl.assembly import networks
from embodied_rl.checkpoints import detection, unsupported
from embodied_rl.checkpoints.policy_file import find_start_settings, load_network, load_start_noise, outline_network
from embodied_rl.checkpoints.policy_format import PolicyMetadata, read_metadata
from embodied_rl.config import assets, plugins
from embodied_rl.interfaces.algorithm import Algorithm, AlgorithmKind, Needs
from embodied_rl.interfaces.backbone import FlowBackbone
from embodied_rl.interfaces.curriculum import Curriculum
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.foreign_checkpoint import ForeignCheckpoint
from embodied_rl.interfaces.policy import Actor
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.rollout.policy_worker import PolicyWorker, RemotePolicy
from embodied_rl.runs import other_files
from embodied_rl.runtime.processes.handle import Deadlines, NodeShare, Runtime
from embodied_rl.runtime.selection import count_gpus
from embodied_rl.schema import AlgoNode, CurriculumNode, Plan, PolicyNode, SamplerNode, SimNode
from embodied_rl.schema.untrusted_settings import freeze_file
from embodied_rl.system.untrusted_files import name_file

POLICY = "policy.safetensors"
"""The deployable policy inside a checkpoint or a run folder."""

PLAIN = Needs()
"""What an actor needs that only acts, or is cloned."""

TOKEN_LENGTH = 8
"""Tokens of an instruction for a policy with new weights, unless the simulator has longer instructions."""


def build_curriculum(node: CurriculumNode, spec: SimulatorSpec) -> Curriculum:
    """Build the curriculum, which decides how often each task is drawn in training.

    Raises:
        UserError: the plug-in or a key is unknown, or the settings do not fit the simulator.
    """
    found, options = plugins.configure_plugin("curricula", node, "curriculum")
    return found(options, spec)


@dataclass(frozen=True)
class Blueprint:
    """A description that builds an actor of the same shape as another one, in any process and without files.

    Attributes:
        node, sampling, spec: of the configuration, and of its simulator.
        options, auxiliary_names: of the network. embodiment: of the actor.
        critic: whether the actor has a critic.
        keep: what the actor's traces store.
        prefix_trained_to: of the network.
        start_noise: settings of its start-noise policy; None without one.
    """

    node: PolicyNode
    sampling: SamplerNode
    spec: SimulatorSpec
    options: Any
    auxiliary_names: tuple[str, ...]
    embodiment: Embodiment
    critic: bool
    keep: str
    prefix_trained_to: int = 0
    start_noise: StartNoiseSettings | None = None

    @staticmethod
    def of_actor(like: Actor, node: PolicyNode, sampling: SamplerNode, spec: SimulatorSpec) -> "Blueprint":
        """Describe an actor that was built from these settings."""
        network = like.network
        names, critic = tuple(network.spec.auxiliary_names), bool(like.parameter_groups()["critic"])
        made = (node, sampling, spec, network.config, names, like.embodiment, critic, like.keep)
        return Blueprint(*made, like.prefix_trained_to, find_start_settings(like))

    def build(self) -> Actor:
        """Build an actor with new weights."""
        cls = plugins.find_plugin("policies", self.node.name)
        network = networks.make_backbone(cls, self.options, self.embodiment, self.auxiliary_names)
        network.prefix_trained_to = self.prefix_trained_to
        parts = (network, self.embodiment, self.node, self.sampling, self.spec, self.critic)
        built = build_actor_around(*parts, self.start_noise)
        built.keep = self.keep
        return built


def build_policy(learning: Actor, blueprint: Blueprint, plan: Plan, runtime: Runtime) -> Actor | RemotePolicy:
    """Return the policy that collects experience: the learning actor, or a process that receives its weights."""
    if plan.policy == "shared":
        return learning
    remote = replace(blueprint, node=replace(blueprint.node, device=str(learning.device)))
    handle = runtime.worker(
        f"{__name__}:{build_policy_worker.__name__}",
        {"blueprint": remote},
        name="policy worker",
        deadlines=Deadlines(plan.start_timeout, plan.call_timeout),
        share=NodeShare(gpus=count_gpus(remote.node.device)),
    )
    return RemotePolicy(handle, learning)


def build_policy_worker(blueprint: Blueprint) -> PolicyWorker:
    """Build a policy worker that has not received its weights yet."""
    return PolicyWorker(blueprint.build())


@dataclass(frozen=True)
class Method:
    """A learning algorithm as configured, not built yet.

    Attributes:
        kind: its class. options: an instance of its `Config`. needs: what it needs of a run.
    """

    kind: AlgorithmKind
    options: Any
    needs: Needs

    def build(self, actor: Actor, ranks: Any, seed: int, iterations: int) -> Algorithm:
        """Build the algorithm for an actor that learns; see `AlgorithmKind`."""
        return self.kind(self.options, actor, ranks, seed, iterations)


def find_method(node: AlgoNode) -> Method:
    """Return the algorithm that a configuration names.

    Raises:
        UserError: unknown algorithm, or it does not take these settings.
    """
    kind, options = plugins.configure_plugin("algorithms", node, "algo")
    found: Any = kind
    return Method(found, options, found.needs(options))


def build_backbone(
    node: PolicyNode, spec: SimulatorSpec, auxiliary_names: Sequence[str] = (), *, outline: bool = False
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network and its embodiment, from the checkpoint or with new weights.

    Args:
        node: the policy.
        spec: of the simulator.
        auxiliary_names: targets that a network with new weights predicts.
        outline: build it on the meta device, and read no more than the headers of a checkpoint.

    Raises:
        UserError: the checkpoint is damaged, or of another network.
    """
    if node.checkpoint is None:
        cls, options = plugins.configure_plugin("policies", node, "policy")
        embodiment = build_embodiment(spec, options, node, cls)
        with torch.device("meta") if outline else nullcontext():
            return networks.make_backbone(cls, options, embodiment, auxiliary_names), embodiment
    if outline:  # a dry run checks all of its options
        cls, _ = plugins.configure_plugin("policies", node, "policy")
    else:
        cls = plugins.find_plugin_with_keys("policies", node, "policy")  # its other sizes are the checkpoint's
    path = assets.resolve_path(node.checkpoint)
    if detection.detect_format(path) is not None:
        network, embodiment = networks.attach_network(path, node, cls, spec, outline=outline)
        return network, configure_embodiment(embodiment, node)
    network, embodiment = load_backbone(resolve_policy_file(node.checkpoint), node, outline=outline)
    check_fit(embodiment, spec)
    return network, configure_embodiment(embodiment, node)


def find_sizes(node: PolicyNode) -> Any:
    """Return the configuration of the network that `build_backbone` would build: the checkpoint's, or the given one.

    Raises:
        UserError: unknown policy, or the checkpoint is damaged or of another policy.
    """
    if node.checkpoint is None:
        return plugins.configure_plugin("policies", node, "policy")[1]
    cls = plugins.find_plugin_with_keys("policies", node, "policy")
    path = assets.resolve_path(node.checkpoint)
    if detection.detect_format(path) is not None:
        return networks.find_network_sizes(
            detection.read_checkpoint(path, networks.find_asset(node)), cls, node.options
        )
    metadata = read_metadata(resolve_policy_file(node.checkpoint))
    growth = networks.find_growth(path, metadata, cls, node)
    with name_file(path):
        return freeze_file(cls.Config, {**metadata.config, **growth}, path, "policy")


def load_backbone(
    path: Path, node: PolicyNode | None = None, *, merged: bool = True, outline: bool = False
) -> tuple[FlowBackbone, Embodiment]:
    """Load the network and embodiment of a policy file, in the file's sizes; an `outline` is on the meta device.

    Adapters stay where `node` trains them, or where `merged` is False; else they become weights. Where `node` gives a
    size that may grow, the network is larger than the file's; see `FlowBackbone.GROWS`.

    Raises:
        CheckpointError: the file is damaged, of another policy, or of other sizes than `node` gives.
        UserError: the policy is not installed, or the file is of a version that knew other sizes.
    """
    growth: dict[str, int] = {}
    if node is not None:
        metadata, cls = read_metadata(path), plugins.find_plugin_with_keys("policies", node, "policy")
        growth = networks.find_growth(path, metadata, cls, node)

    def find(metadata: PolicyMetadata) -> type[Any]:
        with name_file(path):
            return plugins.find_plugin("policies", metadata.policy)

    def make(metadata: PolicyMetadata) -> FlowBackbone:
        cls = find(metadata)
        with name_file(path):
            options = freeze_file(cls.Config, metadata.config, path, "policy")
        return networks.make_backbone(cls, options, metadata.embodiment, metadata.auxiliary_names)

    merged = merged and (node is None or node.train != "lora" or bool(growth))
    if outline:
        network, embodiment = outline_network(path, make, merged=merged)
    else:
        can_be_empty = lambda metadata: find(metadata).CAN_BE_EMPTY  # noqa: E731
        network, embodiment = load_network(path, make, merged=merged, can_be_empty=can_be_empty)
    if growth:
        network = networks.grow_network(path, network, embodiment, growth)
    return network, embodiment


def check_fit(embodiment: Embodiment, spec: SimulatorSpec) -> None:
    """Check that the embodiment of a checkpoint fits the simulator's cameras, state, actions and words.

    Raises:
        UserError: it does not fit; the message names alternatives.
    """
    try:
        embodiment.check_body(spec.body, spec.words)
    except UserError as error:
        others = "`embodied-rl sft` clones one for this simulator, policy.checkpoint=null starts from new weights"
        raise UserError(f"policy.checkpoint: {error} Give one that fits: {others}.", code=error.code) from None


def build_embodiment(spec: SimulatorSpec, options: Any, node: PolicyNode, cls: type[Any]) -> Embodiment:
    """Build the embodiment of a policy of this class with new weights."""
    if cls.PROMPT_WORDS is None:
        return configure_embodiment(
            Embodiment.of_simulator(spec, options.horizon, max(TOKEN_LENGTH, spec.instruction_length)), node
        )
    made = tokenizer.make_word_tokenizer([*spec.words, *cls.PROMPT_WORDS])
    if issubclass(cls, ForeignCheckpoint):
        try:
            cls.check_tokenizer(options, tokenizer.load_tokenizer(made))
        except UserError as error:
            message = f"policy.checkpoint=null starts from new weights: give policy.checkpoint=<folder>. {error}"
            raise UserError(message, code="checkpoint-missing") from None
    return configure_embodiment(
        replace(Embodiment.of_simulator(spec, options.horizon, options.token_length), tokenizer=made), node
    )


def configure_embodiment(embodiment: Embodiment, node: PolicyNode) -> Embodiment:
    """Return the embodiment with the settings of `policy.executed`, `policy.delay` and `policy.blind`."""
    return replace(
        embodiment, executed=node.executed or node.delay or embodiment.executed, blind=node.blind or embodiment.blind
    )


def resolve_policy_file(text: str) -> Path:
    """Return the policy file of a run folder, a checkpoint folder, a file or `asset:<name>`.

    Raises:
        CheckpointError: the checkpoint is missing, or not attached to a simulator yet.
    """
    path = assets.resolve_path(text)
    if (form := detection.detect_format(path)) is not None:
        openvla, others = "openvla|openvla_oft|openvla_oft_l1", "act|diffusion|gr00t|pi0|pi05|pi0_fast|smolvla"
        names = f"<{openvla if form == 'openvla' else others}>"
        with suppress(UserError, OSError):  # `import` reports what is wrong with the folder
            names = detection.read_checkpoint(path).policy or names
        raise CheckpointError(
            f"{path} is a checkpoint of {form}, attached to no simulator yet. Type: embodied-rl import "
            f"policy={names} policy.checkpoint={path} sim=<simulator> out=<file>",
            code="checkpoint-not-imported",
        )
    if path.suffix == ".safetensors" and not path.is_dir():
        return path
    try:
        return checkpoint.resolve_checkpoint(path) / POLICY
    except CheckpointError as error:
        known = unsupported.explain_folder(path) or other_files.explain_path(path)
        raise CheckpointError(known or str(error), code=error.code or "checkpoint-missing") from None


def describe_origin(sim: SimNode, sampling: SamplerNode, control_hz: float) -> dict[str, Any]:
    """Return what a policy file stores beyond its network: the training simulator, its rate, and the denoise steps."""
    origin = {"name": sim.name, **sim.options}
    return {"sim": origin, "control_hz": control_hz, "denoise_steps": sampling.denoise_steps}


def build_actor(node: PolicyNode, sampling: SamplerNode, spec: SimulatorSpec, needs: Needs = PLAIN) -> Actor:
    """Build an actor of network, exploration, and what an algorithm needs: critic, conditions, start-noise policy.

    A start-noise policy continues that of `policy.checkpoint`.

    Raises:
        UserError: see `build_backbone`, `check_start_noise` and `networks.fit_conditions`.
    """
    continued = check_start_noise(node, needs.start_noise)
    network, embodiment = build_backbone(node, spec)
    longest, frozen = spec.instruction_length, node.freeze_perception
    embodiment = networks.fit_conditions(network, embodiment, needs.conditions, longest, frozen)
    actor: Any = build_actor_around(network, embodiment, node, sampling, spec, needs.critic, needs.start_noise)
    if continued is not None and (stored := load_start_noise(continued, actor.network.spec)) is not None:
        actor.start_noise.load_state_dict(stored.state_dict())
    return actor


def check_start_noise(node: PolicyNode, wanted: StartNoiseSettings | None) -> Path | None:
    """Return the file of `policy.checkpoint` if it has a start-noise policy, which training continues; else None.

    Raises:
        UserError: it has one, and the algorithm trains none (`wanted` is None), or one of other settings.
    """
    if node.checkpoint is None or detection.detect_format(assets.resolve_path(node.checkpoint)) is not None:
        return None
    file = resolve_policy_file(node.checkpoint)
    if (stored := read_metadata(file).start_noise) is None:
        return None
    if wanted is None:
        raise UserError(
            f"policy.checkpoint={node.checkpoint} has a policy over start noise, which only algo=dsrl continues. Its "
            "network is that of the checkpoint it was trained from: give that one.",
            code="start-noise-not-continued",
        )
    for name, value in asdict(stored).items():
        if getattr(wanted, name) != value:
            raise UserError(
                f"policy.checkpoint={node.checkpoint} has start noise of algo.{name}={value}, not "
                f"{getattr(wanted, name)}: give algo.{name}={value}.",
                code="key-contradicts-checkpoint",
            )
    return file


def build_actor_around(
    network: FlowBackbone,
    embodiment: Embodiment,
    node: PolicyNode,
    sampling: SamplerNode,
    spec: SimulatorSpec,
    needs_critic: bool,
    start_noise: StartNoiseSettings | None = None,
) -> Actor:
    """Build an actor around a network, and make only the parameters trainable that `policy.train` names."""
    trainable.choose_trainable(network, node.train, node.lora)
    settings = ActorSettings(node, sampling, needs_critic, spec.privileged_names, start_noise)
    return make_actor(network, embodiment, settings)


def outline_actor(node: PolicyNode, sampling: SamplerNode, spec: SimulatorSpec, needs: Needs = PLAIN) -> Actor:
    """Build the actor that `build_actor` would build, with shapes and without weights, for dry runs.

    Faults in the weights of a checkpoint, such as numbers that are not finite, are found only when they are loaded.

    Raises:
        UserError: the checkpoint is missing, or of another network or robot; the device is missing; or settings do not
            fit each other.
    """
    check_placement(node)
    check_start_noise(node, needs.start_noise)
    network, embodiment = outline_backbone(node, spec)
    longest, frozen = spec.instruction_length, node.freeze_perception
    embodiment = networks.fit_conditions(network, embodiment, needs.conditions, longest, frozen)
    bare = replace(resolve_placement(node), device="meta", compile=False)
    settings = ActorSettings(bare, sampling, needs.critic, spec.privileged_names, needs.start_noise)
    return make_actor(network, embodiment, settings)


def outline_backbone(
    node: PolicyNode, spec: SimulatorSpec, auxiliary_names: tuple[str, ...] = ()
) -> tuple[FlowBackbone, Embodiment]:
    """Build the network that `build_backbone` would build, on the meta device, with what learns chosen."""
    network, embodiment = build_backbone(node, spec, auxiliary_names, outline=True)
    with torch.device("meta"):
        trainable.choose_trainable(network, node.train, node.lora)
    return network, embodiment
