"""`TokenActor`: a network that chooses action tokens, and a critic, as one Actor.

`act` and `evaluate` run the same operations on the same tensors, so that an unchanged network recomputes the
log-probabilities of its rollout to the bit.

Shapes: `n` rows, `H` predicted and `Hx` executed actions, `D` model and `A` simulator action dimensions, `N` bins.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from embodied_rl.actors.critics import Critic, CriticNeed
from embodied_rl.actors.embodiment import Embodiment
from embodied_rl.actors.flow import ACTIONS
from embodied_rl.actors.network_actor import (
    PRIVILEGED,
    Keep,
    NetworkActor,
    autocast_method,
    check_fit,
    make_input_trace,
    read_inputs,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.policy import (
    Context,
    Decision,
    Evaluation,
    NoiseKeys,
    TensorSpec,
    TokenBackbone,
    Trace,
    copy_to,
)
from embodied_rl.interfaces.sim import Observation
from embodied_rl.mathematics.flow.noise import NoiseStream, as_uniform, draw_words

BINS = "token/bins"
"""Entry of a trace: the chosen bins int64 [Hx, A]."""


class TokenActor(NetworkActor):
    """A token policy for algorithms, collectors and servers.

    It explores by drawing each entry's bin from softmax(logits / temperature), and deploys the likeliest bins. A critic
    on the expert reads the features of the action head.
    """

    backbone: TokenBackbone

    def __init__(
        self,
        backbone: TokenBackbone,
        critic: Critic | None,
        embodiment: Embodiment,
        *,
        temperature: float = 1.0,
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
            message = f"guidance={embodiment.guidance:g} is for flows, and this policy chooses tokens."
            raise UserError(message, code="guidance-not-supported")
        super().__init__(backbone, embodiment, keep or ("features" if freeze_perception else "images"))
        self.temperature = temperature
        self.learn_with(critic, privileged_names, freeze_perception)

    def exploration(self) -> dict[str, float]:
        """Return the strength of the exploration."""
        return {"temperature": self.temperature}

    def explore_with(self, settings: Mapping[str, float]) -> None:
        """Apply the settings that another actor's `exploration` returned."""
        self.temperature = settings["temperature"]

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
        """Infer actions from the likeliest bins; see `Actor.infer`.

        Raises:
            UserError: a prefix is given, which a token policy cannot continue.
        """
        if prefix is not None:
            message = "A policy that chooses tokens cannot continue actions that are already committed."
            raise UserError(message, code="prefix-not-supported")
        bins = self._choose(self.backbone.encode(self._inputs(observation)), None)[0]
        chunk = self.embodiment.all_actions(self._centres(bins), observation.state)
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
        """Choose a chunk for each row; `explore=False` takes the likeliest bins.

        The value is NaN if a privileged critic gets no privileged state, which is allowed only in deployment.

        Raises:
            UserError: exploring needs privileged state and the observation has none, or a prefix is given.
        """
        if prefix is not None:
            raise UserError("prefix: a policy that chooses tokens acts without a delay.", code="prefix-not-supported")
        inputs = self._inputs(observation)
        context = self.backbone.encode(inputs)
        bins, logits, features = self._choose(context, keys if explore else None)
        actions = self._centres(bins)[:, : self.embodiment.executed]
        trace = make_input_trace(inputs) | {BINS: self._executed(bins), ACTIONS: actions}
        trace |= self._keep_privileged(observation, explore)
        return Decision(
            actions=self.embodiment.actions(actions, observation.state),
            trace=trace,
            log_prob=self._score(logits, trace[BINS])[0],
            value=self._value(trace, context, features, len(inputs)),
            version=torch.full((len(inputs),), self.version, dtype=torch.int64, device=self.device),
        )

    @autocast_method
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
        required = self._critic_needs(CriticNeed.PRIVILEGED)
        trace = self._keep_privileged(observation, required)
        if self.critic is None or required:
            return self._value(trace, None, None, len(observation))
        context = self.backbone.encode(self._inputs(observation))
        features = self._logits(context)[1] if self._critic_needs(CriticNeed.EXPERT) else None
        return self._value(trace, context, features, len(observation))

    @autocast_method
    def evaluate(self, trace: Trace) -> Evaluation:
        """Recompute decisions with gradients from the tensors that `act` recorded; the result lies on the host."""
        trace = {name: copy_to(value, self.device) for name, value in trace.items()}
        context = self.backbone.encode(read_inputs(trace))
        logits, features = self._logits(context, trace[BINS])
        log_prob, entropy = self._score(logits, trace[BINS])
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
            BINS: ((robot.executed, len(robot.action_names)), torch.int64),
            ACTIONS: ((robot.executed, self.backbone.spec.action_dim), torch.float32),
        }

    def log_prob_shape(self) -> tuple[int, ...]:
        """Return (Hx, A)."""
        return self.embodiment.executed, len(self.embodiment.action_names)

    def _choose(self, context: Context, keys: NoiseKeys | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return bins int64 [n, H, D], drawn by keys, or the likeliest without any, with their logits and features.

        Logits of an autoregressive network are recomputed in one pass over the chosen bins, as `evaluate` does.
        """
        if not self.backbone.AUTOREGRESSIVE:
            logits, features = self._logits(context)
            bins = logits.argmax(dim=-1) if keys is None else draw_bins(keys, logits / self.temperature)
            return bins, logits, features
        horizon, width = self.backbone.spec.horizon, self.backbone.spec.action_dim
        uniform = None if keys is None else draw_uniform(keys, horizon, width, self.device).flatten(1)
        bins = torch.zeros(len(context), 0, dtype=torch.int64, device=self.device)
        for entry in range(horizon * width):
            logits = self.backbone.next_logits(context, bins).float()
            chosen = logits.argmax(dim=-1) if uniform is None else invert(logits / self.temperature, uniform[:, entry])
            bins = torch.cat([bins, chosen[:, None]], dim=1)
        bins = bins.unflatten(1, (horizon, width))
        return bins, *self._logits(context, bins)

    def _logits(self, context: Context, bins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        logits, features = self.backbone.action_logits(context, bins)
        return logits.float(), features.float()

    def _centres(self, bins: Tensor) -> Tensor:
        return self.backbone.bin_centres().to(bins.device)[bins]

    def _executed(self, values: Tensor) -> Tensor:
        """Select the executed actions and the robot's dimensions: [n, H, D, …] → [n, Hx, A, …]."""
        return values[:, : self.embodiment.executed, : len(self.embodiment.action_names)]

    def _score(self, logits: Tensor, bins: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of bins [n, Hx, A], and entropies, both float32 [n, Hx, A], at the temperature."""
        log_probs = (self._executed(logits) / self.temperature).log_softmax(dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return log_probs.gather(-1, bins[..., None]).squeeze(-1), entropy

    def _value(self, trace: Trace, context: Context | None, features: Tensor | None, rows: int) -> Tensor:
        if self.critic is None:
            return torch.zeros(rows, device=self.device)
        if self._critic_needs(CriticNeed.PRIVILEGED) and PRIVILEGED not in trace:
            return torch.full((rows,), torch.nan, device=self.device)
        seen = None if features is None else features[:, : self.embodiment.executed]
        return self.critic(trace.get(PRIVILEGED), None if context is None else context.pooled, seen).float()


def draw_bins(keys: NoiseKeys, logits: Tensor) -> Tensor:
    """Draw a bin of each entry from softmax(logits [n, H, D, N]) by its noise keys: int64 [n, H, D].

    A row's bins do not depend on other rows.
    """
    return invert(logits, draw_uniform(keys, logits.shape[1], logits.shape[2], logits.device))


def draw_uniform(keys: NoiseKeys, horizon: int, width: int, device: torch.device) -> Tensor:
    """Draw the uniform number of each entry of a chunk by its noise keys: float64 [n, H, D]."""
    words = draw_words(keys, {NoiseStream.STEP: horizon * width})[NoiseStream.STEP]
    return torch.from_numpy(as_uniform(words)).reshape(len(keys), horizon, width).to(device)


def invert(logits: Tensor, uniform: Tensor) -> Tensor:
    """Return the bins int64 [...] where the distribution function of softmax(logits [..., N]) exceeds numbers [...]."""
    cumulative = logits.double().softmax(dim=-1).cumsum(dim=-1)
    return (cumulative <= uniform[..., None] * cumulative[..., -1:]).sum(dim=-1)
