"""The interface of networks. The author of a flow policy writes `encode` and `velocity`, that of a token policy
`encode` and `action_logits` (and `next_logits` if entries are chosen in order), that of a policy that predicts actions
as numbers `encode` and `action_mean`, that of a policy that is only cloned `encode`, `predict` and `imitation_loss`,
that of a policy that writes chunks as sequences the methods of `SequenceBackbone`; the rest has defaults.

Shapes: `n` rows of a batch, `H` predicted actions of a chunk, `Hx` ≤ H executed ones, `D` action dimensions of the
model, `A` ≤ D of the simulator, `S` state dimensions, `L` instruction tokens, `F` width of the features.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

TensorSpec = dict[str, tuple[tuple[int, ...], torch.dtype]]
"""name → (shape of one row, dtype): what a rollout buffer allocates."""


def copy_to(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on `device`; from the host to a GPU it is copied through pinned memory, without waiting."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


@dataclass
class PolicyInput:
    """An observation in the form that a network takes. It never holds privileged state.

    Attributes:
        images: camera → uint8 [n, h, w, 3]; the backbone scales and resizes them.
        state: float32 [n, S], normalised by the embodiment, zeros beyond the robot's entries.
        tokens: int64 [n, L] prompt tokens, 0 where padded.
        features: earlier result of `FlowBackbone.perceive`, if perception is frozen; replaces `images`.
        prefix: earlier result of `FlowBackbone.encode_prefix`, if it is frozen; replaces `images` and `features`.
        earlier: inputs of the control steps before, oldest first, for policies with several `observations`.
    """

    images: dict[str, Tensor]
    state: Tensor
    tokens: Tensor
    features: dict[str, Tensor] | None = None
    prefix: dict[str, Tensor] | None = None
    earlier: tuple["PolicyInput", ...] = ()

    def __len__(self) -> int:
        return len(self.state)

    def to(self, device: torch.device) -> "PolicyInput":
        """Return a copy with all tensors on `device`."""

        def moved(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: copy_to(tensor, device) for name, tensor in tensors.items()}

        features, prefix = (None if part is None else moved(part) for part in (self.features, self.prefix))
        state, tokens = copy_to(self.state, device), copy_to(self.tokens, device)
        earlier = tuple(each.to(device) for each in self.earlier)
        return PolicyInput(moved(self.images), state, tokens, features, prefix, earlier)


@dataclass
class Context:
    """The encoding of an observation that the policy denoises from; batch-first tensors.

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
    """The fixed sizes of a policy.

    Attributes:
        horizon: H, actions predicted at once.
        action_dim: D, action dimensions of the model.
        state_dim: S.
        cameras: names of the cameras that the policy uses, in order.
        image_size: (height, width) of the input images.
        token_length: L.
        feature_dim: F of the features that a critic on the action head reads.
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


class Backbone(nn.Module):
    """A vision-language-action network: what flow and token policies have in common.

    Attributes:
        KIND: the kind of actor that wraps this network; see `embodied_rl.actors.kinds`.
        spec: fixed sizes of the policy.
        config: the plug-in's `Config`, a dataclass that is saved in policy files.
        source: the origin of the weights, if that is a checkpoint of another project.
        prefix_trained_to: the most committed actions, at flow time 0, that the network is trained to continue; 0 if it
            is not trained on any. Training sets it; policy files store it.
        CAN_BE_EMPTY: whether it may be created on the meta device, because `restore_buffers` fills the buffers that no
            checkpoint holds.
        STATISTICS: how states are normalised when statistics are measured: "mean_std" or "quantiles".
        GROWS: sizes of the configuration in which a network may exceed the checkpoint it starts from, each with the
            name of the parameter that has one row for each; no other parameter depends on them.
        PROMPT_WORDS: the words of a prompt besides those of its instruction, for networks with new weights; None if
            instructions are read word by word, without a tokenizer.
        READS_INSTRUCTIONS: whether it reads the instruction; a policy of one task may not.
        WORD_ROWS: names of the parameters with one row for each word of the vocabulary, and for each position of an
            instruction, to which rows can be added for further words; None if there are none. No other parameter
            depends on these sizes. Positions without a word change no result.
    """

    KIND: ClassVar[str]
    CAN_BE_EMPTY: ClassVar[bool] = False
    STATISTICS: ClassVar[str] = "mean_std"
    GROWS: ClassVar[Mapping[str, str]] = MappingProxyType({})
    PROMPT_WORDS: ClassVar[tuple[str, ...] | None] = None
    READS_INSTRUCTIONS: ClassVar[bool] = True
    WORD_ROWS: ClassVar[tuple[str, str] | None] = None

    spec: PolicySpec
    config: Any
    source: Any = None
    prefix_trained_to: int = 0

    def perceive(self, inputs: PolicyInput) -> dict[str, Tensor] | None:
        """Compute the part of `encode` that may be frozen and cached across epochs; None if there is no such part."""
        return None

    def perception_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that `perceive` uses."""
        return []

    def encode_prefix(self, inputs: PolicyInput) -> dict[str, Tensor] | None:
        """Compute the part of `encode` that uses only `prefix_parameters`; it may be cached while they are frozen.

        Returns batch-first tensors, or None if there is no such part. Given `inputs.features` replace the images.
        """
        return None

    def prefix_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that `encode_prefix` uses, including those of `perceive`."""
        return []

    def count_executable(self) -> int:
        """Return how many actions of a chunk, from the first, can be executed."""
        return self.spec.horizon

    def adapted_modules(self) -> list[str]:
        """Return the names of the linear layers that LoRA adapts; empty if this policy does not support LoRA."""
        return []

    def head_parameters(self) -> list[nn.Parameter]:
        """Return the parameters trained in full besides adapters, such as projections of state, actions and time."""
        return []

    def prompts(self, instructions: Sequence[str], state: Tensor) -> Sequence[str]:
        """Return the texts to tokenize for n instructions and the robot's normalised states [n, entries]."""
        return instructions

    def restore_buffers(self) -> None:
        """Fill buffers that no checkpoint holds, after a network created on the meta device was loaded."""

    def predict_auxiliary(self, features: dict[str, Tensor]) -> Tensor:
        """Predict the privileged entries `spec.auxiliary_names`, float32 [n, G], from the features of `perceive`."""
        raise NotImplementedError

    def encode(self, inputs: PolicyInput) -> Context:
        """Encode observations once per decision: the prefix and its keys and values.

        Uses `inputs.prefix`, or else `inputs.features`, instead of images if given.
        """
        raise NotImplementedError


class FlowBackbone(Backbone):
    """A flow-matching VLA. Flow time follows openpi: t = 1 is noise, t = 0 is the action."""

    KIND: ClassVar[str] = "flow"

    def velocity(self, x: Tensor, t: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Compute velocity float32 [n, H, D] and features [n, H, F] at x float32 [n, H, D].

        The flow time t is float32 [n], or [n, H] where each action has its own: an action at time 0 is given, as it
        will be executed, and the others are denoised so that they continue it. Equal times mean what t [n] means.
        """
        raise NotImplementedError


class TokenBackbone(Backbone):
    """A VLA that chooses one of N bins for each action dimension, such as OpenVLA's 256 (arXiv:2406.09246).

    The N bins divide an action in the model's units, from -1 to 1; `bin_centres` says what each stands for.

    Attributes:
        AUTOREGRESSIVE: whether the entries of a chunk are chosen one after another, each by `next_logits`.
        bins: N.
    """

    KIND: ClassVar[str] = "token"
    AUTOREGRESSIVE: ClassVar[bool] = False
    bins: int

    def bin_centres(self) -> Tensor:
        """Return the actions that the bins stand for, float32 [N], in the model's units: the middles of equal bins."""
        edges = torch.linspace(-1, 1, self.bins + 1)
        return (edges[:-1] + edges[1:]) / 2

    def find_bins(self, actions: Tensor) -> Tensor:
        """Return the bins int64 of actions in the model's units, of the same shape; clamped to the first and last."""
        return ((actions.clamp(-1, 1) + 1) * (self.bins / 2)).long().clamp_max(self.bins - 1)

    def action_logits(self, context: Context, bins: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute logits [n, H, D, N] of all entries at once (parallel decoding, arXiv:2502.19645), and the features
        [n, H, F] they are made of.

        If the network is autoregressive, the logits of an entry are given the entries before it in `bins`, int64
        [n, H, D], and the features depend on no bin; None takes any bins, where only features are needed.
        """
        raise NotImplementedError

    def next_logits(self, context: Context, bins: Tensor) -> Tensor:
        """Compute the logits [n, N] of the entry after the first k of a chunk, which are in `bins`, int64 [n, k].

        Only an autoregressive network needs it.
        """
        raise NotImplementedError


class SequenceBackbone(Backbone):
    """A VLA that writes a chunk as a sequence of tokens of any length, such as π0-FAST (arXiv:2501.09747).

    At each of M places one of N + 1 choices is made: 0 to N - 1 are tokens, and N ends the sequence. The choices after
    the first N are N, too, and count for nothing. A single action has no probability, only the whole chunk has one.

    Attributes:
        choices: N.
        longest: M.
    """

    KIND: ClassVar[str] = "sequence"
    choices: int
    longest: int

    def choose_tokens(self, context: Context, choose: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Choose tokens in order, int64 [n, M]; `choose` returns int64 [n] for logits [n, N + 1] and their place."""
        raise NotImplementedError

    def token_logits(self, context: Context, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the logits [n, m, N + 1] of each place, given the m tokens int64 [n, m] before it, and features.

        The features [n, 1, F] depend on no token. `m` is M, or 0 where only features are needed.
        """
        raise NotImplementedError

    def write_actions(self, actions: Tensor) -> Tensor:
        """Return the tokens int64 [n, M] of actions float32 [n, H, D] in the model's units; too many are left out."""
        raise NotImplementedError

    def read_tokens(self, tokens: Tensor) -> Tensor:
        """Return the actions float32 [n, H, D] in the model's units that tokens int64 [n, M] stand for."""
        raise NotImplementedError

    def cloning_error(self, context: Context, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the cross-entropy of the K tokens of actions [n, H, D], float32 [n, K]; and bool [n, K]: which count.

        K is at most M, with what the network writes besides.
        """
        raise NotImplementedError

    def find_counted(self, tokens: Tensor) -> Tensor:
        """Return which tokens int64 [n, M] count, bool [n, M]: those up to the first end."""
        ends = tokens == self.choices
        return ends.cumsum(dim=1) - ends.long() == 0


class GaussianBackbone(Backbone):
    """A VLA that predicts actions as numbers, such as OpenVLA-OFT with its L1 head (arXiv:2502.19645).

    While it learns, actions are drawn from a normal distribution around them.
    """

    KIND: ClassVar[str] = "gaussian"

    def action_mean(self, context: Context) -> tuple[Tensor, Tensor]:
        """Compute actions [n, H, D] in the model's units, and the features [n, H, F] they are made of."""
        raise NotImplementedError


class ImitationBackbone(Backbone):
    """A policy that is only cloned: it returns actions, and no probability of them, so that no policy gradient exists.

    Attributes:
        observations: control steps whose observations it reads, the current one and those before it, which are the
            `earlier` of its inputs. Where fewer are given, as at an episode's begin, the oldest counts for the others.
            The chunks it is cloned from begin so much earlier, too.
        noise_shape: shape of the standard normal noise of one row that `predict` takes; () for none.
    """

    KIND: ClassVar[str] = "imitation"
    READS_INSTRUCTIONS: ClassVar[bool] = False
    observations: int = 1
    noise_shape: tuple[int, ...] = ()

    def prompts(self, instructions: Sequence[str], state: Tensor) -> Sequence[str]:
        """Return empty texts: instructions are not read."""
        return [""] * len(instructions) if not self.READS_INSTRUCTIONS else instructions

    def predict(self, context: Context, noise: Tensor | None) -> Tensor:
        """Predict chunks float32 [n, H, D] from noise float32 [n, …] of `noise_shape`; None without any."""
        raise NotImplementedError

    def imitation_loss(
        self, inputs: PolicyInput, actions: Tensor, generator: torch.Generator, padding: Tensor | None = None
    ) -> Tensor:
        """Compute the loss of cloning actions float32 [n, observations - 1 + H, D] in the model's units, a scalar.

        Actions where `padding`, bool [n, observations - 1 + H], is set only repeat a neighbour.
        """
        raise NotImplementedError
