"""`NetworkActor`: what actors of flow and token policies share: inputs, traces of inputs, critics and parameters.

Shapes: `n` rows, `P` privileged entries, `G` of them predicted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from embodied_rl.actors.critics import Critic, CriticNeed
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.interfaces.backbone import Backbone, Context, PolicyInput, TensorSpec
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Actor, Trace
from embodied_rl.interfaces.sim import Observation

PRIVILEGED = "input/privileged"
IMAGE, FEATURES, PREFIX = "input/image/", "input/features/", "input/prefix/"
TOKENS, STATE = "input/tokens", "input/state"
"""Names, or starts of names, of the entries of a trace."""

Keep = Literal["images", "features", "prefix"]
"""What a trace keeps of an observation: its images, or the output of a frozen part of the network."""

Result = TypeVar("Result")


def autocast_method(method: Callable[..., Result]) -> Callable[..., Result]:
    """Make a method of an actor compute matrix products in bfloat16 if `actor.autocast` is set (`torch.autocast`).

    Acting, values and evaluation are all wrapped: otherwise an update would start from other log-probabilities than
    its rollout. On the meta device, where only shapes are computed, torch knows no autocast.
    """

    @wraps(method)
    def cast(actor: Any, *args: Any, **kwargs: Any) -> Result:
        if not actor.autocast or actor.device.type == "meta":
            return method(actor, *args, **kwargs)
        with torch.autocast(actor.device.type, torch.bfloat16):
            return method(actor, *args, **kwargs)

    return cast


class NetworkActor(Actor):
    """A network and a robot as an actor; subclasses choose actions and score them.

    Attributes:
        backbone: the network.
        critic: the value head, or None for methods without one.
        privileged_names: the columns of `Observation.privileged` of the simulator at hand.
        freeze_perception: whether the parameters that `perceive` uses are frozen.
    """

    def __init__(self, backbone: Backbone, embodiment: Embodiment, keep: Keep) -> None:
        super().__init__()
        self.backbone, self.embodiment = backbone, embodiment
        self.keep: Keep = keep
        self.critic: Critic | None = None
        self.privileged_names: tuple[str, ...] = ()
        self.freeze_perception = False

    def learn_with(self, critic: Critic | None, privileged_names: Sequence[str], freeze_perception: bool) -> None:
        """Add a critic, and freeze the network's perception where asked for."""
        for parameter in self.backbone.perception_parameters() if freeze_perception else ():
            parameter.requires_grad_(False)
        self.critic, self.privileged_names = critic, tuple(privileged_names)
        self.freeze_perception = freeze_perception

    @property
    def network(self) -> Backbone:
        return self.backbone

    def keepable(self) -> list[Keep]:
        """Return what a trace may store, largest saving first: outputs of frozen parts need not be recomputed."""
        parts: dict[Keep, list[nn.Parameter]] = {
            "prefix": self.backbone.prefix_parameters(),
            "features": self.backbone.perception_parameters(),
        }
        learning = {keep for keep, part in parts.items() if any(parameter.requires_grad for parameter in part)}
        return [*(keep for keep, part in parts.items() if part and keep not in learning), "images"]

    def keep_within(self, rows: int, budget: float) -> Keep:
        """Set `keep` to the most useful part of which `rows` rows fit into `budget` bytes, and return it."""
        for part in self.keepable():
            self.keep = part
            sizes = (torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self.trace_spec().values())
            if part == "images" or rows * sum(sizes) <= budget:
                break
        return self.keep

    @property
    def critic_reads(self) -> str | None:  # type: ignore[override]
        """Return the entry of a trace that the critic reads directly, or None; see `Actor`."""
        return PRIVILEGED if self._critic_needs(CriticNeed.PRIVILEGED) else None

    @autocast_method
    @torch.no_grad()
    def keep_observation(self, observation: Observation) -> Trace:
        """Return the entries of a trace that keep an observation, for `encode_kept`."""
        return make_input_trace(self._inputs(observation))

    @autocast_method
    @torch.no_grad()
    def encode_kept(self, kept: Trace) -> Context:
        """Encode an observation that a trace keeps, without gradients."""
        return self.backbone.encode(read_inputs(kept))

    @autocast_method
    def critic_value(self, recorded: Tensor) -> Tensor:
        """Compute values from recorded privileged state [B, P]; see `Actor.critic_value`."""
        assert self.critic is not None, "this actor has no critic"
        return self.critic(recorded.to(self.device), None, None).float().cpu()

    @autocast_method
    def input_spec(self) -> TensorSpec:
        """Return shapes and dtypes of a trace's entries on inputs and privileged state."""
        spec = self.backbone.spec
        blank = torch.zeros(1, *spec.image_size, 3, dtype=torch.uint8, device=self.device)
        tokens = torch.zeros(1, spec.token_length, dtype=torch.int64, device=self.device)
        state = torch.zeros(1, spec.state_dim, device=self.device)
        with torch.no_grad():
            kept = keep_inputs(self.backbone, PolicyInput(dict.fromkeys(spec.cameras, blank), state, tokens), self.keep)
        rows = {name: (tuple(value.shape[1:]), value.dtype) for name, value in make_input_trace(kept).items()}
        return rows | ({PRIVILEGED: ((len(self.privileged_names),), torch.float32)} if self._keeps_privileged else {})

    def further_parameters(self) -> list[nn.Parameter]:
        """Return trainable parameters of the actor that belong neither to the network nor to the critic."""
        return []

    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        """Return trainable parameters: "actor" (with `further_parameters`), "critic", and unfrozen "perception"."""
        perception = [parameter for parameter in self.backbone.perception_parameters() if parameter.requires_grad]
        seen = {id(parameter) for parameter in perception}
        actor = [each for each in self.backbone.parameters() if each.requires_grad and id(each) not in seen]
        critic = [] if self.critic is None else list(self.critic.parameters())
        groups = {"actor": actor + self.further_parameters(), "critic": critic}
        return groups | {"perception": perception} if perception else groups

    def observation_inputs(self, observation: Observation, condition: str | Sequence[str] | None = None) -> PolicyInput:
        """Convert an observation to inputs on the network's device, with images even if perception is frozen.

        `condition`: see `Embodiment.inputs`.
        """
        return self.embodiment.inputs(observation, self.backbone, condition).to(self.device)

    def _inputs(self, observation: Observation, condition: str | None = None) -> PolicyInput:
        """Return the inputs in the form of a trace; see `Keep`."""
        return keep_inputs(self.backbone, self.observation_inputs(observation, condition), self.keep)

    def _keep_privileged(self, observation: Observation, required: bool) -> Trace:
        """Return the trace's entry of privileged state, if something reads it.

        Raises:
            UserError: it is required, and the observation has none.
        """
        if not self._keeps_privileged:
            return {}
        if observation.privileged is not None:
            values = self.embodiment.normalise_privileged(observation.privileged, self.privileged_names)
            return {PRIVILEGED: values.to(self.device)}
        if required:
            raise UserError(
                "The critic or the auxiliary loss reads privileged state and the observation has none: train on a "
                "simulator that gives it, or set policy.critic=prefix.",
                code="privileged-state-missing",
            )
        return {}

    def _find_auxiliary(self, trace: Trace, context: Context) -> tuple[Tensor | None, Tensor | None]:
        """Return the auxiliary prediction [n, G] and its target, on the host; None where it does not learn."""
        if not self._learns_auxiliary:
            return None, None
        columns = [self.privileged_names.index(name) for name in self.backbone.spec.auxiliary_names]
        predicted = None if context.auxiliary is None else context.auxiliary.cpu()
        return predicted, trace[PRIVILEGED][:, columns].cpu()

    def _critic_needs(self, need: CriticNeed) -> bool:
        return self.critic is not None and self.critic.needs == need

    @property
    def _learns_auxiliary(self) -> bool:
        names = self.backbone.spec.auxiliary_names
        return bool(names) and not self.freeze_perception and set(names) <= set(self.privileged_names)

    @property
    def _keeps_privileged(self) -> bool:
        return self._critic_needs(CriticNeed.PRIVILEGED) or self._learns_auxiliary


def make_input_trace(inputs: PolicyInput) -> Trace:
    """Return the entries of a trace from which `read_inputs` makes the same inputs."""
    trace = {TOKENS: inputs.tokens, STATE: inputs.state}
    trace |= {IMAGE + name: image for name, image in inputs.images.items()}
    trace |= {FEATURES + name: value for name, value in (inputs.features or {}).items()}
    return trace | {PREFIX + name: value for name, value in (inputs.prefix or {}).items()}


def read_inputs(trace: Trace) -> PolicyInput:
    """Return the inputs that a trace keeps."""
    images, features, prefix = (select_entries(trace, start) for start in (IMAGE, FEATURES, PREFIX))
    return PolicyInput(images, trace[STATE], trace[TOKENS], features or None, prefix or None)


def select_entries(trace: Trace, start: str) -> Trace:
    """Return the entries of a trace with a name that begins with `start`, by the rest of their names."""
    return {name.removeprefix(start): value for name, value in trace.items() if name.startswith(start)}


def check_fit(backbone: Backbone, embodiment: Embodiment, freeze_perception: bool) -> None:
    """Check that a network fits a robot, and has the perception that is to be frozen.

    Raises:
        UserError: they do not fit; the message names the entry.
    """
    spec = backbone.spec
    pairs = {
        "cameras": (spec.cameras, embodiment.view_names),
        "image size": (spec.image_size, embodiment.image_size),
        "instruction tokens": (spec.token_length, embodiment.token_length),
    }
    for name, (network, robot) in pairs.items():
        if network != robot:
            raise UserError(
                f"The policy has {network} {name}, the embodiment {robot}: build both from one simulator.",
                code="policy-robot-mismatch",
            )
    if (states := len(embodiment.state_names)) > spec.state_dim:
        raise UserError(
            f"The policy has {spec.state_dim} state entries, the robot {states}.", code="policy-robot-mismatch"
        )
    if embodiment.executed > (most := backbone.count_executable()):
        raise UserError(
            f"policy.executed={embodiment.executed} exceeds the {most} actions of a chunk.",
            code="executed-too-long",
        )
    if (robot_dim := len(embodiment.action_names)) > spec.action_dim:
        raise UserError(
            f"The policy has {spec.action_dim} action dimensions, the robot {robot_dim}.", code="policy-robot-mismatch"
        )
    if freeze_perception and not backbone.perception_parameters():
        raise UserError(
            "policy.freeze_perception=true, but this policy has no perception that can be frozen apart.",
            code="perception-missing",
        )


def keep_inputs(network: Backbone, inputs: PolicyInput, keep: str) -> PolicyInput:
    """Return the inputs in the form of a trace: images, or the output of a frozen part of the network; see `Keep`."""
    if keep == "images":
        return inputs
    if keep == "features":
        return replace(inputs, images={}, features=network.perceive(inputs))
    return replace(inputs, images={}, prefix=network.encode_prefix(inputs))
