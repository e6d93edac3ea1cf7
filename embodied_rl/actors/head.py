"""`HeadActor`: a network whose action head gives a distribution of each entry of a chunk, and a critic, as one Actor.

`act` and `evaluate` run the same operations on the same tensors, so that an unchanged network recomputes the
log-probabilities of its rollout to the bit.

Shapes: `n` rows, `H` predicted and `Hx` executed actions, `D` model and `A` simulator action dimensions.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from embodied_rl.actors.critics import Critic, CriticNeed, make_critic
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import ACTIONS
from embodied_rl.actors.kinds import ActorSettings
from embodied_rl.actors.network_actor import (
    PRIVILEGED,
    Keep,
    NetworkActor,
    autocast_method,
    check_fit,
    make_input_trace,
    read_inputs,
)
from embodied_rl.actors.placement import place_actor
from embodied_rl.actors.start_noise import StartNoise
from embodied_rl.interfaces.backbone import Backbone, Context, TensorSpec, copy_to
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import Decision, Evaluation, NoiseKeys, Trace
from embodied_rl.interfaces.sim import Observation


class HeadActor(NetworkActor):
    """A policy with an action head, for algorithms, collectors and servers; subclasses draw from its distribution.

    A critic on the expert reads the features of the action head.

    Attributes:
        CHOICE: entry of a trace: what was chosen, [Hx, A]. CHOICE_TYPE: its dtype.
        STRENGTH: name of the setting of the sampler that says how strongly it explores.
        SAMPLER: name of its sampler. CHOOSES: what the policy does, for messages.
        strength: that setting's value.
    """

    CHOICE: ClassVar[str]
    CHOICE_TYPE: ClassVar[torch.dtype]
    STRENGTH: ClassVar[str]
    SAMPLER: ClassVar[str]
    CHOOSES: ClassVar[str]

    def __init__(
        self,
        backbone: Backbone,
        critic: Critic | None,
        embodiment: Embodiment,
        *,
        strength: float = 1.0,
        privileged_names: Sequence[str] = (),
        freeze_perception: bool = False,
        keep: Keep | None = None,
    ) -> None:
        """Combine the parts into an actor; see `embodied_rl.actors.flow.FlowActor` for those that both have.

        Raises:
            UserError: backbone and embodiment do not fit, or the embodiment has guidance.
        """
        check_fit(backbone, embodiment, freeze_perception)
        if embodiment.guidance != 1:
            message = f"guidance={embodiment.guidance:g} is for flows, and this policy {self.CHOOSES}."
            raise UserError(message, code="guidance-not-supported")
        super().__init__(backbone, embodiment, keep or ("features" if freeze_perception else "images"))
        self.strength = strength
        self.learn_with(critic, privileged_names, freeze_perception)

    @abstractmethod
    def choose(self, context: Context, keys: NoiseKeys | None) -> tuple[Tensor, Tensor, Tensor]:
        """Draw a choice [n, H, D] by keys, or take the one to deploy without any; see `read_head` for what follows."""

    @abstractmethod
    def read_head(self, context: Context, choice: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return parameters of the distribution, float32 [n, H, D, …], and features float32 [n, H, F].

        `choice`: what was chosen, for a head that chooses entries in order.
        """

    @abstractmethod
    def find_actions(self, choice: Tensor) -> Tensor:
        """Return the actions in the model's units that a choice stands for, of the same shape."""

    @abstractmethod
    def score(self, parameters: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of a choice [n, Hx, A], and entropies, both float32 [n, Hx, A]."""

    def exploration(self) -> dict[str, float]:
        """Return the strength of the exploration."""
        return {self.STRENGTH: self.strength}

    def explore_with(self, settings: Mapping[str, float]) -> None:
        """Apply the settings that another actor's `exploration` returned."""
        self.strength = settings[self.STRENGTH]

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
        """Infer actions without exploration; see `Actor.infer`.

        Raises:
            UserError: a prefix is given, which such a policy cannot continue.
        """
        if prefix is not None:
            message = f"A policy that {self.CHOOSES} cannot continue actions that are already committed."
            raise UserError(message, code="prefix-not-supported")
        choice = self.choose(self.backbone.encode(self._inputs(observation)), None)[0]
        chunk = self.embodiment.all_actions(self.find_actions(choice), observation.state)
        return chunk if whole else chunk[:, : self.embodiment.executed]

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
        """Choose a chunk for each row; `explore=False` takes what is deployed.

        The value is NaN if a privileged critic gets no privileged state, which is allowed only in deployment.

        Raises:
            UserError: exploring needs privileged state and the observation has none, or a prefix is given.
        """
        if prefix is not None:
            raise UserError(f"prefix: a policy that {self.CHOOSES} acts without a delay.", code="prefix-not-supported")
        inputs = self._inputs(observation)
        context = self.backbone.encode(inputs)
        choice, parameters, features = self.choose(context, keys if explore else None)
        actions = self.find_actions(choice)[:, : self.embodiment.executed]
        trace = make_input_trace(inputs) | {self.CHOICE: self.select_executed(choice), ACTIONS: actions}
        trace |= self._keep_privileged(observation, explore)
        return Decision(
            actions=self.embodiment.actions(actions, observation.state),
            trace=trace,
            log_prob=self.score(parameters, trace[self.CHOICE])[0],
            value=self._value(trace, context, features, len(inputs)),
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
            UserError: the critic needs privileged state and the observation has none.
        """
        return self.estimate_value(observation, keys)

    @autocast_method
    def estimate_value(self, observation: Observation, keys: NoiseKeys) -> Tensor:
        """Compute `value` with gradients; a critic that detaches its input gets one without a graph."""
        required = self._critic_needs(CriticNeed.PRIVILEGED)
        trace = self._keep_privileged(observation, required)
        if self.critic is None or required:
            return self._value(trace, None, None, len(observation))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.critic.detach):
            context = self.backbone.encode(self._inputs(observation))
            features = self.read_head(context)[1] if self._critic_needs(CriticNeed.EXPERT) else None
        return self._value(trace, context, features, len(observation))

    @autocast_method
    def evaluate(self, trace: Trace) -> Evaluation:
        """Recompute decisions with gradients from the tensors that `act` recorded; the result lies on the host."""
        trace = {name: copy_to(value, self.device) for name, value in trace.items()}
        context = self.backbone.encode(read_inputs(trace))
        parameters, features = self.read_head(context, trace[self.CHOICE])
        log_prob, entropy = self.score(parameters, trace[self.CHOICE])
        auxiliary, target = self._find_auxiliary(trace, context)
        return Evaluation(
            log_prob=log_prob.cpu(),
            entropy=entropy.cpu(),
            value=self._value(trace, context, features, len(context)).cpu(),
            auxiliary=auxiliary,
            auxiliary_target=target,
        )

    def trace_spec(self) -> TensorSpec:
        """Return the shapes and dtypes of one row of `Decision.trace`."""
        robot = self.embodiment
        return self.input_spec() | {
            self.CHOICE: ((robot.executed, len(robot.action_names)), self.CHOICE_TYPE),
            ACTIONS: ((robot.executed, self.backbone.spec.action_dim), torch.float32),
        }

    def log_prob_shape(self) -> tuple[int, ...]:
        """Return (Hx, A)."""
        return self.embodiment.executed, len(self.embodiment.action_names)

    def select_executed(self, values: Tensor) -> Tensor:
        """Select the executed actions and the robot's dimensions: [n, H, D, …] → [n, Hx, A, …]."""
        return values[:, : self.embodiment.executed, : len(self.embodiment.action_names)]

    def _value(self, trace: Trace, context: Context | None, features: Tensor | None, rows: int) -> Tensor:
        if self.critic is None:
            return torch.zeros(rows, device=self.device)
        if self._critic_needs(CriticNeed.PRIVILEGED) and PRIVILEGED not in trace:
            return torch.full((rows,), torch.nan, device=self.device)
        seen = None if features is None else features[:, : self.embodiment.executed]
        return self.critic(trace.get(PRIVILEGED), None if context is None else context.pooled, seen).float()


class HeadKind:
    """Makes `HeadActor`s of one class; see `embodied_rl.actors.kinds`."""

    ACTOR: ClassVar[type[HeadActor]]

    def make(self, network: Any, embodiment: Embodiment, settings: ActorSettings) -> HeadActor:
        """Make an actor that learns; see `embodied_rl.actors.kinds.make_actor`.

        Raises:
            UserError: sampler or algorithm are for other policies, or the policy is to continue committed actions.
        """
        node, chooses, sampler = settings.policy, self.ACTOR.CHOOSES, self.ACTOR.SAMPLER
        if settings.start_noise is not None:
            message = f"this algorithm learns the start noise of a flow, and the policy {chooses}."
            raise UserError(message, code="algorithm-needs-flow")
        if settings.sampling.name != sampler:
            message = f"algo.sampler.name={settings.sampling.name} is for other policies, and this one {chooses}: give "
            raise UserError(f"{message}algo.sampler.name={sampler}.", code="sampler-not-supported")
        if node.delay:
            message = f"policy.delay={node.delay}: a policy that {chooses} does not continue committed actions."
            raise UserError(message, code="prefix-not-supported")
        critic = make_critic(
            node.critic if settings.needs_critic else "none",
            privileged_dim=len(settings.privileged_names),
            context_dim=network.spec.context_dim,
            feature_dim=network.spec.feature_dim,
        )
        actor = self.ACTOR(
            network,
            critic,
            embodiment,
            strength=getattr(settings.sampling, self.ACTOR.STRENGTH),
            privileged_names=settings.privileged_names,
            freeze_perception=node.freeze_perception,
        )
        return place_actor(actor, node)

    def deploy(
        self, network: Any, embodiment: Embodiment, entries: Mapping[str, Any], start_noise: StartNoise | None = None
    ) -> HeadActor:
        """Make an actor that acts without exploration, for a policy file."""
        return self.ACTOR(network, None, embodiment).eval()
