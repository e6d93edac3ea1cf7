"""The `FlowActor`: a flow-matching backbone, a sampler and a critic as one Actor.

`act` and `evaluate` run the same operations on the same tensors, so that an unchanged network recomputes the
log-probabilities of its rollout to the bit, and the first importance ratio of an update is exactly 1.

Shapes: `n` rows, `H` predicted and `Hx` executed actions, `D` model and `A` simulator action dimensions, `D'` = action
dimensions x stochastic denoise steps, `P` privileged entries, `G` of them predicted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.actors.critics import Critic, CriticNeed
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.precision import autocast_method
from embodied_rl.flow.noise import NoiseStream, draw_normal
from embodied_rl.flow.sampler import Committed, ode_sample
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import (
    Actor,
    Context,
    Decision,
    Evaluation,
    FlowBackbone,
    NoiseKeys,
    PolicyInput,
    TensorSpec,
    Trace,
)
from embodied_rl.interfaces.sim import Observation

Keep = Literal["images", "features", "prefix"]
IMAGE, FEATURES, PREFIX, FLOW = "input/image/", "input/features/", "input/prefix/", "flow/"
TOKENS, STATE, PRIVILEGED, INITIAL = "input/tokens", "input/state", "input/privileged", "critic/initial"


class FlowActor(Actor):
    """A flow policy as algorithms, collectors and servers use it.

    A critic on the expert reads the features of one point that `act`, `evaluate` and `value` all share: those of the
    first denoise evaluation, at t = 1 and the x_1 that the noise keys draw. π_RL averages over all steps in the rollout
    and takes one step in the update, which are two different estimators; here it is the same one. Given the keys, x_1
    is known before any stochastic step is drawn, so V(o, x_1) is a valid baseline.
    """

    def __init__(
        self,
        backbone: FlowBackbone,
        sampler: Any,
        critic: Critic | None,
        embodiment: Embodiment,
        *,
        privileged_names: Sequence[str] = (),
        freeze_perception: bool = False,
        keep: Keep | None = None,
    ) -> None:
        """Combine the parts into an actor.

        Args:
            backbone: the network; its sizes must fit the embodiment.
            sampler: draws and scores denoise chains (`embodied_rl.flow.sampler`); an nn.Module where it learns.
            critic: the value head, or None for methods without one (values are then 0).
            embodiment: names, statistics and limits.
            privileged_names: the columns of `Observation.privileged` of the simulator at hand.
            freeze_perception: freeze the parameters that `perceive` uses.
            keep: what a trace stores of an observation: its images, or the output of a frozen part of the network; by
                default the features where `freeze_perception` is set, else images.

        Raises:
            UserError: backbone and embodiment do not fit; the message names the entry.
        """
        super().__init__()
        _check_fit(backbone, embodiment, freeze_perception)
        if freeze_perception:
            freeze_parameters(backbone.perception_parameters())
        self.backbone, self.sampler, self.embodiment = backbone, sampler, embodiment
        self.critic = critic
        self.privileged_names, self.freeze_perception = tuple(privileged_names), freeze_perception
        self.keep: Keep = keep or ("features" if freeze_perception else "images")

    def keepable(self) -> list[Keep]:
        """Return what a trace may store, largest saving first: outputs of frozen parts need not be recomputed."""
        prefix, perception = self.backbone.prefix_parameters(), self.backbone.perception_parameters()
        found: list[Keep] = ["prefix"] if prefix and is_frozen(prefix) else []
        return [*found, *(["features"] if perception and is_frozen(perception) else []), "images"]

    def keep_within(self, rows: int, budget: float) -> Keep:
        """Set `keep` to the most useful part of which `rows` rows fit into `budget` bytes, and return it."""
        for part in self.keepable():
            self.keep = part
            sizes = (torch.Size(shape).numel() * dtype.itemsize for shape, dtype in self.trace_spec().values())
            if part == "images" or rows * sum(sizes) <= budget:
                break
        return self.keep

    def exploration(self) -> dict[str, float]:
        """Return the strength of the exploration noise."""
        level = getattr(self.sampler, "noise_level", None)
        return {} if level is None else {"noise_level": float(level)}

    def explore_with(self, settings: Mapping[str, float]) -> None:
        """Apply the settings that another actor's `exploration` returned."""
        for name, value in settings.items():
            setattr(self.sampler, name, value)

    @property
    def network(self) -> FlowBackbone:
        return self.backbone

    @property
    def critic_reads(self) -> str | None:  # type: ignore[override]
        """Return the entry of a trace that the critic reads directly, or None; see `Actor`."""
        return PRIVILEGED if self._critic_needs(CriticNeed.PRIVILEGED) else None

    @autocast_method
    @torch.no_grad()
    def infer(
        self,
        observation: Observation,
        keys: NoiseKeys | None = None,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
        *,
        whole: bool = False,
        strategy: str = "prefix",
    ) -> np.ndarray:
        """Infer actions; see `Actor.infer`. A prefix is imposed by replacement while the other actions are denoised."""
        context = self.backbone.encode(self._inputs(observation))
        shape = (self.backbone.spec.horizon, self.backbone.spec.action_dim)
        start = torch.zeros(len(observation), *shape)
        start = (start if keys is None else draw_normal(keys, NoiseStream.INITIAL, shape)).to(self.device)
        given = None if prefix is None else self._committed(prefix, committed, observation)
        drawn = ode_sample(self._velocity(context), start, self.sampler.denoise_steps, given)
        body = replace(self.embodiment, executed=shape[0]) if whole else self.embodiment
        return body.actions(drawn, observation.state)

    def _committed(self, prefix: np.ndarray, committed: np.ndarray | None, observation: Observation) -> Committed:
        """Convert committed actions to the network's units, with a mask.

        Raises:
            UserError: the prefix has another shape, is longer than a chunk or not finite, or `committed` does not fit.
        """
        rows, horizon, entries = len(observation), self.backbone.spec.horizon, len(self.embodiment.action_names)
        length = prefix.shape[1] if prefix.ndim == 3 else -1
        counts = np.full(rows, length) if committed is None else np.asarray(committed)
        if prefix.shape != (rows, length, entries) or length > horizon:
            raise UserError(f"prefix has the shape {prefix.shape}; [{rows}, at most {horizon}, {entries}] fits.")
        if counts.shape != (rows,) or counts.min(initial=0) < 0 or counts.max(initial=0) > length:
            raise UserError(f"committed must say for each of {rows} rows how many of {length} actions are, from 0 on.")
        if not np.isfinite(prefix).all():
            raise UserError("prefix holds numbers that are none.")
        known = self.embodiment.model_actions(prefix, observation.state, self.backbone.spec.action_dim)
        actions = torch.zeros(rows, horizon, known.shape[2])
        actions[:, :length] = known
        mask = torch.zeros(actions.shape, dtype=torch.bool)
        mask[:, :length, :entries] = (torch.arange(length) < torch.from_numpy(counts)[:, None])[..., None]
        return Committed(actions.to(self.device), mask.to(self.device))

    @autocast_method
    @torch.no_grad()
    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        """Choose a chunk for each row; `explore=False` follows the plain ODE from the same x_1.

        The value is NaN where a privileged critic gets no privileged state, which is allowed only in deployment.

        Raises:
            UserError: exploring needs privileged state and the observation has none, or the inputs do not fit.
        """
        inputs = self._inputs(observation)
        context = self.backbone.encode(inputs)
        shape = (self.backbone.spec.horizon, self.backbone.spec.action_dim)
        sample = self.sampler.sample(self._velocity(context), keys, shape, explore, self.device)
        trace = self._input_trace(inputs) | {FLOW + name: value for name, value in sample.trace.items()}
        trace |= self._critic_trace(observation, keys, required=explore)
        return Decision(
            actions=self.embodiment.actions(sample.actions, observation.state),
            trace=trace,
            log_prob=self._executed(sample.log_prob),
            value=self._value(trace, context, len(inputs)),
            version=torch.full((len(inputs),), self.version, dtype=torch.int64, device=self.device),
        )

    @autocast_method
    @torch.no_grad()
    def value(self, observation: Observation, keys: NoiseKeys) -> Tensor:
        """Compute the values float32 [n] that `act` would return with the same keys, without choosing actions.

        Raises:
            UserError: the critic needs privileged state and the observation has none.
        """
        trace = self._critic_trace(observation, keys, required=True)
        reads_network = self.critic is not None and self.critic.needs != CriticNeed.PRIVILEGED
        context = self.backbone.encode(self._inputs(observation)) if reads_network else None
        return self._value(trace, context, len(observation))

    @autocast_method
    def evaluate(self, trace: Trace) -> Evaluation:
        """Recompute decisions with gradients from the tensors that `act` recorded; the result lies on the host."""
        trace = {name: value.to(self.device) for name, value in trace.items()}
        context = self.backbone.encode(self._recorded_inputs(trace))
        flow = {name.removeprefix(FLOW): value for name, value in trace.items() if name.startswith(FLOW)}
        again = self.sampler.evaluate(self._velocity(context), flow)
        target = self._auxiliary_target(trace)
        auxiliary = None if target is None else context.auxiliary
        return Evaluation(
            log_prob=self._executed(again.log_prob).cpu(),
            entropy=self._executed(again.entropy).cpu(),
            value=self._value(trace, context, len(context)).cpu(),
            auxiliary=None if auxiliary is None else auxiliary.cpu(),
            auxiliary_target=None if target is None else target.cpu(),
        )

    @autocast_method
    def critic_value(self, recorded: Tensor) -> Tensor:
        """Compute values from recorded privileged state [B, P]; see `Actor.critic_value`."""
        assert self.critic is not None, "this actor has no critic"
        return self.critic(recorded.to(self.device), None, None).float().cpu()

    def trace_spec(self) -> TensorSpec:
        """Return the shapes and dtypes of one row of `Decision.trace`."""
        spec, size = self.backbone.spec, self.backbone.spec.image_size
        rows: TensorSpec = {TOKENS: ((spec.token_length,), torch.int64), STATE: ((spec.state_dim,), torch.float32)}
        if self.keep != "images":
            start = FEATURES if self.keep == "features" else PREFIX
            rows |= {start + name: (tuple(value.shape[1:]), value.dtype) for name, value in self._example().items()}
        else:
            rows |= {IMAGE + name: ((*size, 3), torch.uint8) for name in spec.cameras}
        if self._keeps_privileged:
            rows[PRIVILEGED] = ((len(self.privileged_names),), torch.float32)
        if self._critic_needs(CriticNeed.EXPERT):
            rows[INITIAL] = ((spec.horizon, spec.action_dim), torch.float32)
        flow = self.sampler.trace_spec(spec.horizon, spec.action_dim)
        return rows | {FLOW + name: entry for name, entry in flow.items()}

    def log_prob_shape(self) -> tuple[int, ...]:
        """Return (Hx, D')."""
        spec = self.backbone.spec
        steps = self.sampler.log_prob_width(spec.action_dim) // spec.action_dim
        return self.embodiment.executed, steps * len(self.embodiment.action_names)

    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        """Return trainable parameters: "actor" (with a learned sampler's), "critic", and unfrozen "perception"."""
        perception = select_learning(self.backbone.perception_parameters())
        seen = {id(parameter) for parameter in perception}
        actor = [parameter for parameter in select_learning(self.backbone.parameters()) if id(parameter) not in seen]
        if isinstance(self.sampler, nn.Module):
            actor += self.sampler.parameters()
        groups = {"actor": actor, "critic": [] if self.critic is None else list(self.critic.parameters())}
        return groups | {"perception": perception} if perception else groups

    def observation_inputs(self, observation: Observation) -> PolicyInput:
        """Convert an observation to inputs on the network's device, with images even if perception is frozen."""
        return self.embodiment.inputs(observation, self.backbone).to(self.device)

    def _inputs(self, observation: Observation) -> PolicyInput:
        inputs = self.observation_inputs(observation)
        if self.keep == "images":
            return inputs
        if self.keep == "features":
            return replace(inputs, images={}, features=self.backbone.perceive(inputs))
        return replace(inputs, images={}, prefix=self.backbone.encode_prefix(inputs))

    def _input_trace(self, inputs: PolicyInput) -> Trace:
        trace = {TOKENS: inputs.tokens, STATE: inputs.state}
        trace |= {IMAGE + name: image for name, image in inputs.images.items()}
        trace |= {FEATURES + name: value for name, value in (inputs.features or {}).items()}
        return trace | {PREFIX + name: value for name, value in (inputs.prefix or {}).items()}

    def _recorded_inputs(self, trace: Trace) -> PolicyInput:
        images = {name.removeprefix(IMAGE): value for name, value in trace.items() if name.startswith(IMAGE)}
        features = {name.removeprefix(FEATURES): value for name, value in trace.items() if name.startswith(FEATURES)}
        prefix = {name.removeprefix(PREFIX): value for name, value in trace.items() if name.startswith(PREFIX)}
        return PolicyInput(images, trace[STATE], trace[TOKENS], features or None, prefix or None)

    def _critic_trace(self, observation: Observation, keys: NoiseKeys, required: bool) -> Trace:
        """Return the tensors that the critic and the auxiliary loss read beyond the policy's inputs."""
        trace: Trace = {}
        if self._critic_needs(CriticNeed.EXPERT):
            shape = (self.backbone.spec.horizon, self.backbone.spec.action_dim)
            trace[INITIAL] = draw_normal(keys, NoiseStream.INITIAL, shape).to(self.device)
        if not self._keeps_privileged:
            return trace
        if observation.privileged is not None:
            values = self.embodiment.normalise_privileged(observation.privileged, self.privileged_names)
            trace[PRIVILEGED] = values.to(self.device)
        elif required:
            raise UserError(
                "The critic or the auxiliary loss reads privileged state and the observation has none: train on a "
                "simulator that gives it, or set policy.critic=prefix."
            )
        return trace

    def _velocity(self, context: Context) -> Any:
        def velocity(x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
            value, features = self.backbone.velocity(x, t, context)
            return value.float(), features.float()

        return velocity

    def _executed(self, values: Tensor) -> Tensor:
        """Select the entries that the simulator executes, [n, H, steps x D] → [n, Hx, steps x A], for scoring."""
        by_step = values.unflatten(-1, (-1, self.backbone.spec.action_dim))
        return by_step[:, : self.embodiment.executed, :, : len(self.embodiment.action_names)].flatten(2)

    def _value(self, trace: Trace, context: Context | None, rows: int) -> Tensor:
        if self.critic is None:
            return torch.zeros(rows, device=self.device)
        if self.critic.needs == CriticNeed.PRIVILEGED and PRIVILEGED not in trace:
            return torch.full((rows,), torch.nan, device=self.device)
        pooled = None if context is None else context.pooled
        return self.critic(trace.get(PRIVILEGED), pooled, self._expert_features(trace, context)).float()

    def _expert_features(self, trace: Trace, context: Context | None) -> Tensor | None:
        """Compute features [n, Hx, F] at t = 1 and the recorded x_1 for a critic on the expert; else return None."""
        if context is None or self.critic is None or not self._critic_needs(CriticNeed.EXPERT):
            return None
        start = trace[INITIAL]
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.critic.detach):
            features = self._velocity(context)(start, torch.ones(len(start), device=start.device))[1]
        return features[:, : self.embodiment.executed]

    def _critic_needs(self, need: CriticNeed) -> bool:
        return self.critic is not None and self.critic.needs == need

    @property
    def _learns_auxiliary(self) -> bool:
        names = self.backbone.spec.auxiliary_names
        return bool(names) and not self.freeze_perception and set(names) <= set(self.privileged_names)

    @property
    def _keeps_privileged(self) -> bool:
        return self._critic_needs(CriticNeed.PRIVILEGED) or self._learns_auxiliary

    def _auxiliary_target(self, trace: Trace) -> Tensor | None:
        """Return normalised targets [n, G] of the backbone's auxiliary prediction; None where it does not learn."""
        if not self._learns_auxiliary:
            return None
        columns = [self.privileged_names.index(name) for name in self.backbone.spec.auxiliary_names]
        return trace[PRIVILEGED][:, columns]

    @autocast_method
    @torch.no_grad()
    def _example(self) -> dict[str, Tensor]:
        """Compute the output of the kept part for one blank row, to get its shapes."""
        spec, device = self.backbone.spec, self.device
        blank = torch.zeros(1, *spec.image_size, 3, dtype=torch.uint8, device=device)
        tokens = torch.zeros(1, spec.token_length, dtype=torch.int64, device=device)
        inputs = PolicyInput(dict.fromkeys(spec.cameras, blank), torch.zeros(1, spec.state_dim, device=device), tokens)
        part = self.backbone.perceive if self.keep == "features" else self.backbone.encode_prefix
        return part(inputs) or {}


def freeze_parameters(parameters: Iterable[nn.Parameter]) -> None:
    """Freeze parameters, so that they are not trained."""
    for parameter in parameters:
        parameter.requires_grad_(False)


def select_learning(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    """Return the trainable parameters."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def is_frozen(parameters: Iterable[nn.Parameter]) -> bool:
    """Return whether none of the parameters is trainable."""
    return not select_learning(parameters)


def _check_fit(backbone: FlowBackbone, embodiment: Embodiment, freeze_perception: bool) -> None:
    spec = backbone.spec
    pairs = {
        "cameras": (spec.cameras, embodiment.seen_as),
        "image size": (spec.image_size, embodiment.image_size),
        "instruction tokens": (spec.token_length, embodiment.token_length),
    }
    for name, (network, robot) in pairs.items():
        if network != robot:
            raise UserError(f"The policy has {network} {name}, the embodiment {robot}: build both from one simulator.")
    if (states := len(embodiment.state_names)) > spec.state_dim:
        raise UserError(f"The policy has {spec.state_dim} state entries, the robot {states}.")
    if embodiment.executed > spec.horizon:
        raise UserError(f"policy.executed={embodiment.executed} exceeds the {spec.horizon} actions of a chunk.")
    if (robot_dim := len(embodiment.action_names)) > spec.action_dim:
        raise UserError(f"The policy has {spec.action_dim} action dimensions, the robot {robot_dim}.")
    if freeze_perception and not backbone.perception_parameters():
        raise UserError("policy.freeze_perception=true, but this policy has no perception that can be frozen apart.")
