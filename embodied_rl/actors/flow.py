"""`FlowActor`: a flow-matching backbone, a sampler and a critic as one Actor.

`act` and `evaluate` run the same operations on the same tensors, so that an unchanged network recomputes the
log-probabilities of its rollout to the bit, and the first importance ratio of an update is exactly 1.

Shapes: `n` rows, `H` predicted and `Hx` executed actions, `D` model and `A` simulator action dimensions, `D'` = action
dimensions x stochastic denoise steps, `P` privileged entries, `G` of them predicted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.actors.critics import Critic, CriticNeed
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow_inference import DeployedFlow, Keep, autocast_method, keep_inputs
from embodied_rl.actors.start_noise import StartNoise
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import (
    Context,
    Decision,
    Evaluation,
    FlowBackbone,
    NoiseKeys,
    PolicyInput,
    TensorSpec,
    Trace,
    copy_to,
)
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.transition import Committed, give_times

FLOW, PRIVILEGED, INITIAL = "flow/", "input/privileged", "critic/initial"
COMMITTED, ACTIONS = f"{FLOW}committed", "actions"
IMAGE, FEATURES, PREFIX = "input/image/", "input/features/", "input/prefix/"
TOKENS, STATE = "input/tokens", "input/state"
START = "start_noise"
"""Names, or starts of names, of the entries of a trace."""
GUIDANCE, PLAIN_START = "guidance", "plain_start"
"""Names of settings of exploration."""


class FlowActor(DeployedFlow):
    """A flow policy for algorithms, collectors and servers.

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
        delay: int = 0,
        start_noise: StartNoise | None = None,
    ) -> None:
        """Combine the parts into an actor.

        Args:
            backbone: the network; its sizes must fit the embodiment.
            sampler: draws and scores denoise chains (`mathematics.flow.sampler`); an nn.Module if it learns.
            critic: the value head, or None for methods without one (values are then 0).
            embodiment: names, statistics and limits.
            privileged_names: the columns of `Observation.privileged` of the simulator at hand.
            freeze_perception: freeze the parameters that `perceive` uses.
            keep: what a trace stores of an observation: its images, or the output of a frozen part of the network; by
                default the features if `freeze_perception` is set, else images.
            delay: see `Actor.delay`.
            start_noise: the policy that chooses x₁, the only thing that explores then; None: x₁ ~ N(0, I).

        Raises:
            UserError: backbone, embodiment and delay do not fit; the message names the entry.
        """
        check_fit(backbone, embodiment, freeze_perception)
        if freeze_perception:
            for parameter in backbone.perception_parameters():
                parameter.requires_grad_(False)
        keep = keep or ("features" if freeze_perception else "images")
        super().__init__(backbone, sampler, embodiment, keep, delay, start_noise)
        self.critic = critic
        self.privileged_names, self.freeze_perception = tuple(privileged_names), freeze_perception

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

    def exploration(self) -> dict[str, float]:
        """Return the strength of the exploration noise, the guidance, and whether the start noise is plain."""
        level = getattr(self.sampler, "noise_level", None)
        settings = {} if level is None else {"noise_level": float(level)}
        settings |= {GUIDANCE: self.embodiment.guidance} if self.embodiment.condition else {}
        return settings | ({} if self.start_noise is None else {PLAIN_START: float(self.start_noise.plain)})

    def explore_with(self, settings: Mapping[str, float]) -> None:
        """Apply the settings that another actor's `exploration` returned."""
        for name, value in settings.items():
            if name == GUIDANCE:
                self.embodiment = replace(self.embodiment, guidance=value)
            elif name == PLAIN_START and self.start_noise is not None:
                self.start_noise.plain = bool(value)
            else:
                setattr(self.sampler, name, value)

    @property
    def critic_reads(self) -> str | None:  # type: ignore[override]
        """Return the entry of a trace that the critic reads directly, or None; see `Actor`."""
        return PRIVILEGED if self._critic_needs(CriticNeed.PRIVILEGED) else None

    @autocast_method
    @torch.no_grad()
    def act(
        self,
        observation: Observation,
        keys: NoiseKeys,
        explore: bool,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> Decision:
        """Choose a chunk for each row; `explore=False` follows the plain ODE from the same x_1.

        With a start-noise policy both follow the ODE, from its noise or from the centre of it.

        The value is NaN if a privileged critic gets no privileged state, which is allowed only in deployment.

        Raises:
            UserError: exploring needs privileged state and the observation has none, the inputs do not fit, the
                prefix is longer than `delay`, or than what the policy is trained to continue, or a policy with guidance
                is to explore.
        """
        if explore:
            self._check_plain()
        known = self._commit(prefix, committed, observation)
        inputs = self._inputs(observation)
        context = self.backbone.encode(inputs)
        chosen = self._choose_start(context, keys, explore)
        start = None if self.start_noise is None or chosen is None else self.start_noise.expand(chosen)
        velocity = self._velocity(context) if explore else self._deployed_velocity(observation, context)
        noisy = explore and start is None
        sample = self.sampler.sample(velocity, keys, self._chunk, noisy, self.device, known, start)
        actions = self._following(sample.actions, known)
        trace = make_input_trace(inputs) | {FLOW + name: value for name, value in sample.trace.items()}
        trace[ACTIONS] = actions
        trace |= {} if chosen is None else {START: chosen}
        trace |= self._critic_trace(observation, keys, explore, known)
        return Decision(
            actions=self.embodiment.actions(actions, observation.state),
            trace=trace,
            log_prob=self._executed(sample.log_prob, known),
            value=self._value(trace, context, len(inputs)),
            version=torch.full((len(inputs),), self.version, dtype=torch.int64, device=self.device),
        )

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

    @torch.no_grad()
    def value(
        self,
        observation: Observation,
        keys: NoiseKeys,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> Tensor:
        """Compute the values float32 [n] that `act` would return with the same inputs, without choosing actions.

        Raises:
            UserError: the critic needs privileged state and the observation has none, or the prefix does not fit.
        """
        return self.estimate_value(observation, keys, prefix, committed)

    @autocast_method
    def estimate_value(
        self,
        observation: Observation,
        keys: NoiseKeys,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> Tensor:
        """Compute `value` with gradients; a critic that detaches its input gets one without a graph."""
        required = self._critic_needs(CriticNeed.PRIVILEGED)
        trace = self._critic_trace(observation, keys, required, self._commit(prefix, committed, observation))
        context = None
        if self.critic is not None and not required:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.critic.detach):
                context = self.backbone.encode(self._inputs(observation))
        return self._value(trace, context, len(observation))

    @autocast_method
    def evaluate(self, trace: Trace) -> Evaluation:
        """Recompute decisions with gradients from the tensors that `act` recorded; the result lies on the host.

        Raises:
            UserError: the policy has guidance.
        """
        self._check_plain()
        trace = {name: copy_to(value, self.device) for name, value in trace.items()}
        context = self.backbone.encode(read_inputs(trace))
        again = self.sampler.evaluate(self._velocity(context), select_entries(trace, FLOW))
        known = Committed(trace[f"{FLOW}x"][:, 0], trace[COMMITTED]) if COMMITTED in trace else None
        target = None
        if self._learns_auxiliary:
            columns = [self.privileged_names.index(name) for name in self.backbone.spec.auxiliary_names]
            target = trace[PRIVILEGED][:, columns]
        auxiliary = None if target is None else context.auxiliary
        return Evaluation(
            log_prob=self._executed(again.log_prob, known).cpu(),
            entropy=self._executed(again.entropy, known).cpu(),
            value=self._value(trace, context, len(context)).cpu(),
            auxiliary=None if auxiliary is None else auxiliary.cpu(),
            auxiliary_target=None if target is None else target.cpu(),
            mean=self._executed(again.mean, known).cpu(),
            std=self._executed(again.std, known).cpu(),
        )

    @autocast_method
    def critic_value(self, recorded: Tensor) -> Tensor:
        """Compute values from recorded privileged state [B, P]; see `Actor.critic_value`."""
        assert self.critic is not None, "this actor has no critic"
        return self.critic(recorded.to(self.device), None, None).float().cpu()

    @autocast_method
    def trace_spec(self) -> TensorSpec:
        """Return the shapes and dtypes of one row of `Decision.trace`."""
        spec = self.backbone.spec
        blank = torch.zeros(1, *spec.image_size, 3, dtype=torch.uint8, device=self.device)
        tokens = torch.zeros(1, spec.token_length, dtype=torch.int64, device=self.device)
        state = torch.zeros(1, spec.state_dim, device=self.device)
        with torch.no_grad():
            kept = keep_inputs(self.backbone, PolicyInput(dict.fromkeys(spec.cameras, blank), state, tokens), self.keep)
        rows = {name: (tuple(value.shape[1:]), value.dtype) for name, value in make_input_trace(kept).items()}
        if self._keeps_privileged:
            rows[PRIVILEGED] = ((len(self.privileged_names),), torch.float32)
        if self._critic_needs(CriticNeed.EXPERT):
            rows[INITIAL] = ((spec.horizon, spec.action_dim), torch.float32)
        if self.start_noise is not None:
            rows[START] = ((self.start_noise.size,), torch.float32)
        flow = self.sampler.trace_spec(spec.horizon, spec.action_dim, self.delay > 0)
        rows[ACTIONS] = ((self.embodiment.executed, spec.action_dim), torch.float32)
        return rows | {FLOW + name: entry for name, entry in flow.items()}

    def log_prob_shape(self) -> tuple[int, ...]:
        """Return (Hx, D')."""
        spec = self.backbone.spec
        steps = self.sampler.log_prob_width(spec.action_dim) // spec.action_dim
        return self.embodiment.executed, steps * len(self.embodiment.action_names)

    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        """Return trainable parameters: "actor" (with a learned sampler's), "critic", and unfrozen "perception"."""
        perception = [parameter for parameter in self.backbone.perception_parameters() if parameter.requires_grad]
        seen = {id(parameter) for parameter in perception}
        actor = [each for each in self.backbone.parameters() if each.requires_grad and id(each) not in seen]
        if isinstance(self.sampler, nn.Module):
            actor += self.sampler.parameters()
        actor += [] if self.start_noise is None else self.start_noise.parameters()
        groups = {"actor": actor, "critic": [] if self.critic is None else list(self.critic.parameters())}
        return groups | {"perception": perception} if perception else groups

    def _check_plain(self) -> None:
        """Check that the deployed velocity is that of one encoding, from which traces are recomputed."""
        if (weight := self.embodiment.guidance) != 1:
            raise UserError(
                f"This policy acts with guidance={weight:g}, which is neither explored nor scored: only its guidance=1 "
                "is.",
                code="guidance-not-scored",
            )

    def _choose_start(self, context: Context, keys: NoiseKeys, explore: bool) -> Tensor | None:
        """Return the start noise [n, d] that the start-noise policy chooses; None without one."""
        if self.start_noise is None:
            return None
        if not explore:
            return self.start_noise.find_centre(context.pooled)
        noise = draw_normal(keys, NoiseStream.INITIAL, (self.start_noise.size,)).to(self.device)
        return self.start_noise.explore(context.pooled, noise)

    def _critic_trace(
        self, observation: Observation, keys: NoiseKeys, required: bool, known: Committed | None
    ) -> Trace:
        """Return the tensors that the critic and the auxiliary loss read beyond the policy's inputs."""
        trace: Trace = {} if known is None else {COMMITTED: known.counts}
        if self._critic_needs(CriticNeed.EXPERT):
            start = draw_normal(keys, NoiseStream.INITIAL, self._chunk).to(self.device)
            trace[INITIAL] = start if known is None else known.hold(start)
        if not self._keeps_privileged:
            return trace
        if observation.privileged is not None:
            values = self.embodiment.normalise_privileged(observation.privileged, self.privileged_names)
            trace[PRIVILEGED] = values.to(self.device)
        elif required:
            raise UserError(
                "The critic or the auxiliary loss reads privileged state and the observation has none: train on a "
                "simulator that gives it, or set policy.critic=prefix.",
                code="privileged-state-missing",
            )
        return trace

    def _executed(self, values: Tensor, known: Committed | None) -> Tensor:
        """Select the entries that `act` returns, [n, H, steps x D] → [n, Hx, steps x A], for scoring."""
        by_step = values.unflatten(-1, (-1, self.backbone.spec.action_dim))
        return self._following(by_step[..., : len(self.embodiment.action_names)], known).flatten(2)

    def _following(self, values: Tensor, known: Committed | None) -> Tensor:
        """Select the actions that `act` returns, the first Hx after each row's committed ones: [n, H, …] → [n, Hx, …].

        A robot that holds still for its first inference has none, and executes its first chunk from the beginning.
        """
        if known is None:
            return values[:, : self.embodiment.executed]
        return known.select_following(values, self.embodiment.executed)

    def _value(self, trace: Trace, context: Context | None, rows: int) -> Tensor:
        if self.critic is None:
            return torch.zeros(rows, device=self.device)
        if self.critic.needs == CriticNeed.PRIVILEGED and PRIVILEGED not in trace:
            return torch.full((rows,), torch.nan, device=self.device)
        features = None
        if context is not None and self._critic_needs(CriticNeed.EXPERT):  # at t = 1 and the recorded x_1
            start = trace[INITIAL]
            known = Committed(start, trace[COMMITTED]) if COMMITTED in trace else None
            times = give_times(known, torch.ones(len(start), device=start.device))
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.critic.detach):
                features = self._following(self._velocity(context)(start, times)[1], known)
        return self.critic(trace.get(PRIVILEGED), None if context is None else context.pooled, features).float()

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


def check_fit(backbone: FlowBackbone, embodiment: Embodiment, freeze_perception: bool) -> None:
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
    if embodiment.executed > spec.horizon:
        raise UserError(
            f"policy.executed={embodiment.executed} exceeds the {spec.horizon} actions of a chunk.",
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
