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
from embodied_rl.actors.flow_inference import DeployedFlow
from embodied_rl.actors.network_actor import (
    PRIVILEGED,
    Keep,
    autocast_method,
    check_fit,
    make_input_trace,
    read_inputs,
    select_entries,
)
from embodied_rl.actors.start_noise import StartNoise
from embodied_rl.interfaces.backbone import Context, FlowBackbone, TensorSpec, copy_to
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Decision, Evaluation, NoiseKeys, Trace
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow.noise import NoiseStream, draw_normal
from embodied_rl.mathematics.flow.transition import Committed, give_times

FLOW, INITIAL, START = "flow/", "critic/initial", "start_noise"
COMMITTED, ACTIONS = f"{FLOW}committed", "actions"
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
        keep = keep or ("features" if freeze_perception else "images")
        super().__init__(backbone, sampler, embodiment, keep, delay, start_noise)
        self.learn_with(critic, privileged_names, freeze_perception)

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
        auxiliary, target = self._find_auxiliary(trace, context)
        return Evaluation(
            log_prob=self._executed(again.log_prob, known).cpu(),
            entropy=self._executed(again.entropy, known).cpu(),
            value=self._value(trace, context, len(context)).cpu(),
            auxiliary=auxiliary,
            auxiliary_target=target,
            mean=self._executed(again.mean, known).cpu(),
            std=self._executed(again.std, known).cpu(),
        )

    @autocast_method
    def trace_spec(self) -> TensorSpec:
        """Return the shapes and dtypes of one row of `Decision.trace`."""
        spec, rows = self.backbone.spec, self.input_spec()
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

    def further_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of a learned sampler, and of the policy over start noise."""
        own = list(self.sampler.parameters()) if isinstance(self.sampler, nn.Module) else []
        return own + ([] if self.start_noise is None else list(self.start_noise.parameters()))

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
        return trace | self._keep_privileged(observation, required)

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
