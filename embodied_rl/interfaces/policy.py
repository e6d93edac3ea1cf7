"""What a policy is to the engine. An author of a flow policy writes `encode` and `velocity`; the rest comes for free.

Shapes: `n` rows of a batch, `H` predicted actions of a chunk, `Hx` ≤ H executed ones, `D` action dimensions of the
model, `A` ≤ D of the simulator, `S` state dimensions, `L` instruction tokens, `F` width of the features.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation

TensorSpec = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""name → (shape of one row, dtype): what a rollout buffer allocates."""


@dataclass
class PolicyInput:
    """An observation as a network takes it. Never holds privileged state.

    Attributes:
        images: camera → uint8 [n, h, w, 3]; scaling and resizing are the backbone's.
        state: float32 [n, S], normalised by the embodiment, zeros beyond the robot's entries.
        tokens: int64 [n, L] prompt tokens, 0 where padded.
        features: what `FlowBackbone.perceive` gave earlier, where it is frozen; replaces `images`.
        prefix: what `FlowBackbone.encode_prefix` gave earlier, where it is frozen; replaces `images` and `features`.
    """

    images: dict[str, Tensor]
    state: Tensor
    tokens: Tensor
    features: dict[str, Tensor] | None = None
    prefix: dict[str, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.state)

    def to(self, device: torch.device) -> "PolicyInput":
        """The same on a device."""

        def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.to(device) for name, tensor in tensors.items()}

        features, prefix = (None if part is None else moved(part) for part in (self.features, self.prefix))
        return PolicyInput(moved(self.images), self.state.to(device), self.tokens.to(device), features, prefix)


@dataclass
class Context:
    """What a policy knows of an observation before it denoises: batch-first tensors.

    Attributes:
        tensors: e.g. keys and values per layer; every tensor is [n, ...].
        pooled: float32 [n, F], one vector per row, for a critic on the prefix.
        auxiliary: float32 [n, G], an auxiliary prediction (such as object positions), or None.
    """

    tensors: dict[str, Tensor]
    pooled: Tensor
    auxiliary: Tensor | None = None

    def __len__(self) -> int:
        return len(self.pooled)

    def select(self, rows: Tensor) -> "Context":
        auxiliary = None if self.auxiliary is None else self.auxiliary[rows]
        return Context({name: value[rows] for name, value in self.tensors.items()}, self.pooled[rows], auxiliary)

    @staticmethod
    def cat(parts: Sequence["Context"]) -> "Context":
        auxiliary = [part.auxiliary for part in parts if part.auxiliary is not None]
        return Context(
            {name: torch.cat([part.tensors[name] for part in parts]) for name in parts[0].tensors},
            torch.cat([part.pooled for part in parts]),
            torch.cat(auxiliary) if len(auxiliary) == len(parts) else None,
        )

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in (*self.tensors.values(), self.pooled))


@dataclass(frozen=True)
class PolicySpec:
    """The fixed sizes of a flow policy.

    Attributes:
        horizon: H, actions predicted at once.
        action_dim: D, action dimensions of the model.
        state_dim: S.
        cameras: names of the cameras it sees, in order.
        image_size: (height, width) of the images it is given.
        token_length: L.
        feature_dim: F of `velocity`'s features.
        context_dim: F of `Context.pooled`.
        auxiliary_names: privileged entries that `Context.auxiliary` predicts, in order.
    """

    horizon: int
    action_dim: int
    state_dim: int
    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    token_length: int
    feature_dim: int
    context_dim: int
    auxiliary_names: tuple[str, ...] = ()


class FlowBackbone(nn.Module):
    """A flow-matching VLA. Flow time follows openpi: t = 1 is noise, t = 0 is the action.

    Attributes:
        KIND: which kind of actor it becomes; see `embodied_rl.actors.kinds`.
        spec: its fixed sizes.
        config: the plug-in's `Config`, a dataclass, which policy files keep.
        source: where it came from, where that is a checkpoint of another project.
        CAN_BE_EMPTY: whether it may be laid out on the meta device, since `restore_buffers` fills what no checkpoint
            holds.
        STATISTICS: how states are normalised where they are measured anew: "mean_std" or "quantiles".
        PROMPT_WORDS: what a prompt holds beside the words of its instruction, for networks with new weights; None where
            instructions are read word by word, without a tokenizer.
    """

    KIND: ClassVar[str] = "flow"
    CAN_BE_EMPTY: ClassVar[bool] = False
    STATISTICS: ClassVar[str] = "mean_std"
    PROMPT_WORDS: ClassVar[tuple[str, ...] | None] = None

    spec: PolicySpec
    config: Any
    source: Any = None

    def perceive(self, inputs: PolicyInput) -> dict[str, Tensor] | None:
        """The part of `encode` that may be frozen and cached across epochs; None where there is no such part."""
        return None

    def perception_parameters(self) -> list[nn.Parameter]:
        """The parameters `perceive` uses."""
        return []

    def encode_prefix(self, inputs: PolicyInput) -> dict[str, Tensor] | None:
        """The part of `encode` that `prefix_parameters` alone decide, and that may be cached while they are frozen.

        Batch-first tensors; `inputs.features` replace images where given. None where there is no such part.
        """
        return None

    def prefix_parameters(self) -> list[nn.Parameter]:
        """The parameters `encode_prefix` uses, those of `perceive` among them."""
        return []

    def adapted_modules(self) -> list[str]:
        """Names of the linear maps that LoRA adapts; empty where this policy is not made for it."""
        return []

    def head_parameters(self) -> list[nn.Parameter]:
        """What learns in full beside adapters: projections of state, actions and time, say."""
        return []

    def prompts(self, instructions: Sequence[str], state: Tensor) -> Sequence[str]:
        """The texts to tokenize for n instructions and the robot's normalised states [n, entries]."""
        return instructions

    def restore_buffers(self) -> None:
        """Fill buffers that no checkpoint holds, after the network was laid out on the meta device and then loaded."""

    def predict_auxiliary(self, features: dict[str, Tensor]) -> Tensor:
        """What `perceive` gave → float32 [n, G], the privileged entries `spec.auxiliary_names`."""
        raise NotImplementedError

    def encode(self, inputs: PolicyInput) -> Context:
        """Once a decision: the prefix and its keys and values.

        Uses `inputs.prefix`, or else `inputs.features`, instead of images where given.
        """
        raise NotImplementedError

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """x float32 [n, H, D], t float32 [n] → velocity float32 [n, H, D], features [n, H, F]."""
        raise NotImplementedError


@dataclass(frozen=True)
class NoiseKeys:
    """What the policy's noise is a function of, so that it depends on neither batching nor timing.

    Attributes:
        seed: of the run.
        episode: int64 [n], `Episode.index`.
        decision: int64 [n], decisions since the episode began.
    """

    seed: int
    episode: np.ndarray
    decision: np.ndarray

    @staticmethod
    def none(rows: int) -> "NoiseKeys":
        """Of rows that nobody counts."""
        return NoiseKeys(0, np.zeros(rows, np.int64), np.zeros(rows, np.int64))

    def __len__(self) -> int:
        return len(self.episode)


Trace = dict[str, Tensor]
"""Batch-first tensors from which `Actor.evaluate` recomputes a decision: the inputs, and what the sampler drew."""


@dataclass
class Decision:
    """One policy call for n environments.

    Attributes:
        actions: float32 [n, Hx, A] in the simulator's units, on the host.
        trace: what recomputing the log-probability needs.
        log_prob: float32 [n, Hx, D'], per element (D' = action dims × stochastic steps); masked, then reduced.
        value: float32 [n].
        version: int64 [n], version of the weights that chose.
    """

    actions: np.ndarray
    trace: Trace
    log_prob: Tensor
    value: Tensor
    version: Tensor


@dataclass
class Evaluation:
    """A decision recomputed under the present weights.

    Attributes:
        log_prob: as in `Decision`, same shape and order.
        entropy: float32 [n, Hx, D'], zero where the noise is fixed.
        value: float32 [n].
        auxiliary: float32 [n, G], `Context.auxiliary`, or None.
        auxiliary_target: float32 [n, G], its targets from privileged state, or None.
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor
    auxiliary: Tensor | None = None
    auxiliary_target: Tensor | None = None


class Policy(Protocol):
    """What a collector asks: an `Actor`, or who stands for one that runs elsewhere."""

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        """See `Actor.act`."""
        ...

    def value(self, observation: Observation, keys: NoiseKeys) -> Tensor:
        """See `Actor.value`."""
        ...


class DeployedPolicy(Protocol):
    """What runs episodes, in simulation or on a robot: an `Actor`, or somebody who only acts."""

    def infer(self, observation: Observation, keys: NoiseKeys) -> np.ndarray:
        """float32 [n, Hx, A]: a chunk for each row, in the simulator's units; see `Actor.infer`."""
        ...


class Actor(nn.Module):
    """What algorithms, collectors, evaluators and servers see of a policy.

    Attributes:
        version: of the weights, counted in updates.
        embodiment: what the network is attached to; an `embodied_rl.actors.embodiment.Embodiment`.
        autocast: compute matrix products in bfloat16.
        keep: what its traces hold of an observation; see `keep_within`.
        critic_reads: the entry of a trace that the critic reads by itself, so that it can learn without the network;
            None where it reads what the network makes of an observation, or there is no critic.
    """

    version: int = 0
    embodiment: Any
    autocast: bool = False
    keep: str = "images"
    critic_reads: str | None = None

    @property
    def network(self) -> Any:
        """The policy's network, without sampler and critic: what a policy file holds."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return next(self.network.parameters()).device

    def infer(
        self,
        observation: Observation,
        keys: NoiseKeys | None = None,
        prefix: np.ndarray | None = None,
        committed: np.ndarray | None = None,
    ) -> np.ndarray:
        """The deployed policy's chunk for each row: no trace, no value, no exploration.

        Args:
            observation: n rows.
            keys: what the start of the chunk is drawn from; None begins at the mean of the noise.
            prefix: float32 [n, d, A] in the simulator's units, actions that the robot is about to execute whatever
                the policy says, such as those that it executes during inference.
            committed: int64 [n], how many of a row's d actions are; None for all.

        Returns:
            float32 [n, Hx, A], like `Decision.actions`. It begins with the committed actions, and continues them.

        Raises:
            UserError: inputs that do not fit, or a prefix that this policy cannot continue.
        """
        if prefix is not None:
            raise UserError(f"{type(self).__name__} cannot continue actions that are already committed.")
        return self.act(observation, keys or NoiseKeys.none(len(observation)), explore=False).actions

    def act(self, observation: Observation, keys: NoiseKeys, explore: bool) -> Decision:
        """Choose a chunk for each row. `explore=False` is the deterministic policy that is deployed."""
        raise NotImplementedError

    def value(self, observation: Observation, keys: NoiseKeys) -> Tensor:
        """float32 [n], for final and last observations; the same estimator as `act` and `evaluate` use."""
        raise NotImplementedError

    def critic_value(self, recorded: Tensor) -> Tensor:
        """float32 [B] with gradients, from the trace's entry `critic_reads`: a critic by itself."""
        raise NotImplementedError

    def keep_within(self, rows: int, budget: float) -> str:
        """Let traces hold the most useful part of which `rows` fit into `budget` bytes; returns which that is."""
        return self.keep

    def evaluate(self, trace: Trace) -> Evaluation:
        """Recompute log-probability, entropy and value of recorded decisions, with gradients."""
        raise NotImplementedError

    def trace_spec(self) -> TensorSpec:
        """What `Decision.trace` holds, row by row; a rollout buffer allocates from it."""
        raise NotImplementedError

    def log_prob_shape(self) -> tuple[int, ...]:
        """(Hx, D'): the shape of one row of `Decision.log_prob`."""
        raise NotImplementedError

    def exploration(self) -> dict[str, float]:
        """What an algorithm sets from outside while it trains, besides weights: the strength of the noise, say."""
        return {}

    def explore_with(self, settings: Mapping[str, float]) -> None:
        """Take over what another actor's `exploration` said."""

    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        """Trainable parameters: "actor", "critic", and "perception" where it learns at its own rate."""
        raise NotImplementedError
