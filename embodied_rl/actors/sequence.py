"""`SequenceActor`: a network that writes a chunk as a sequence of tokens, as an Actor.

The log-probability of a decision is the sum over the tokens of its sequence up to the end. It stands at the chunk's
first action, and the others have 0, so that the sum over a chunk is that of the sequence wherever an episode ends.

Shapes: `n` rows, `Hx` executed actions, `M` places, `N` tokens, as in `SequenceBackbone`.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from embodied_rl.actors.head import HeadActor, HeadKind
from embodied_rl.actors.token import draw_uniform, invert
from embodied_rl.interfaces.backbone import Context, SequenceBackbone, TensorSpec
from embodied_rl.interfaces.policy import NoiseKeys

TOKENS = "sequence/tokens"
"""Entry of a trace: the chosen tokens int64 [M]."""


class SequenceActor(HeadActor):
    """Explores by drawing each token from softmax(logits / temperature), by a separate random number, and deploys the
    likeliest tokens."""

    CHOICE, CHOICE_TYPE, STRENGTH = TOKENS, torch.int64, "temperature"
    SAMPLER, CHOOSES = "tokens", "writes a chunk as a sequence of tokens"
    backbone: SequenceBackbone

    def choose(self, context: Context, keys: NoiseKeys | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return tokens int64 [n, M], drawn by keys, or the likeliest without any, with their logits and features.

        Logits are recomputed in one pass over the chosen tokens, as `evaluate` does.
        """
        uniform = None if keys is None else draw_uniform(keys, 1, self.backbone.longest, self.device)[:, 0]

        def choose_one(logits: Tensor, place: int) -> Tensor:
            if uniform is None:
                return logits.argmax(dim=-1)
            return invert(logits.float() / self.strength, uniform[:, place])

        tokens = self.backbone.choose_tokens(context, choose_one)
        return tokens, *self.read_head(context, tokens)

    def read_head(self, context: Context, choice: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logits float32 [n, M, N + 1] and features float32 [n, 1, F]; without a choice no logits."""
        none = torch.zeros(len(context), 0, dtype=torch.int64, device=self.device)
        logits, features = self.backbone.token_logits(context, none if choice is None else choice)
        return logits.float(), features.float()

    def find_actions(self, choice: Tensor) -> Tensor:
        """Return the actions float32 [n, H, D] that tokens [n, M] stand for."""
        return self.backbone.read_tokens(choice)

    def score(self, parameters: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of sequences and their tokens' summed entropies, float32 [n, Hx, 1], at the first
        action."""
        log_probs = (parameters / self.strength).log_softmax(dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        chosen = log_probs.gather(-1, choice[..., None]).squeeze(-1)
        counted, later = self.backbone.find_counted(choice), self.embodiment.executed - 1
        sums = (torch.where(counted, each, 0).sum(dim=1) for each in (chosen, entropy))
        log_prob, entropy = (F.pad(each[:, None, None], (0, 0, 0, later)) for each in sums)
        return log_prob, entropy

    def trace_spec(self) -> TensorSpec:
        """Return the shapes and dtypes of one row of `Decision.trace`."""
        return super().trace_spec() | {TOKENS: ((self.backbone.longest,), torch.int64)}

    def log_prob_shape(self) -> tuple[int, ...]:
        """Return (Hx, 1)."""
        return self.embodiment.executed, 1

    def select_executed(self, values: Tensor) -> Tensor:
        """Return the values: a sequence has no part for each action."""
        return values


class SequenceKind(HeadKind):
    """Makes `SequenceActor`s from networks that write chunks as sequences of tokens."""

    ACTOR = SequenceActor
