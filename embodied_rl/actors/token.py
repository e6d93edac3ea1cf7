"""`TokenActor`: a network that chooses action tokens, as an Actor.

Shapes: `n` rows, `H` predicted actions, `D` model action dimensions, `N` bins.
"""

import torch
from torch import Tensor

from embodied_rl.actors.head import HeadActor, HeadKind
from embodied_rl.interfaces.backbone import Context, TokenBackbone
from embodied_rl.interfaces.policy import NoiseKeys
from embodied_rl.mathematics.flow.noise import NoiseStream, as_uniform, draw_words

BINS = "token/bins"
"""Entry of a trace: the chosen bins int64 [Hx, A]."""


class TokenActor(HeadActor):
    """A token policy; it explores by drawing each bin from softmax(logits / temperature), and deploys the likeliest."""

    CHOICE, CHOICE_TYPE, STRENGTH = BINS, torch.int64, "temperature"
    SAMPLER, CHOOSES = "tokens", "chooses tokens"
    backbone: TokenBackbone

    def choose(self, context: Context, keys: NoiseKeys | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return bins int64 [n, H, D], drawn by keys, or the likeliest without any, with their logits and features.

        Logits of an autoregressive network are recomputed in one pass over the chosen bins, as `evaluate` does.
        """
        if not self.backbone.AUTOREGRESSIVE:
            logits, features = self.read_head(context)
            bins = logits.argmax(dim=-1) if keys is None else draw_bins(keys, logits / self.strength)
            return bins, logits, features
        horizon, width = self.backbone.spec.horizon, self.backbone.spec.action_dim
        uniform = None if keys is None else draw_uniform(keys, horizon, width, self.device).flatten(1)
        bins = torch.zeros(len(context), 0, dtype=torch.int64, device=self.device)
        for entry in range(horizon * width):
            logits = self.backbone.next_logits(context, bins).float()
            chosen = logits.argmax(dim=-1) if uniform is None else invert(logits / self.strength, uniform[:, entry])
            bins = torch.cat([bins, chosen[:, None]], dim=1)
        bins = bins.unflatten(1, (horizon, width))
        return bins, *self.read_head(context, bins)

    def read_head(self, context: Context, choice: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logits float32 [n, H, D, N] and features; see `HeadActor`."""
        logits, features = self.backbone.action_logits(context, choice)
        return logits.float(), features.float()

    def find_actions(self, choice: Tensor) -> Tensor:
        """Return the actions that bins stand for."""
        return self.backbone.bin_centres().to(choice.device)[choice]

    def score(self, parameters: Tensor, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of bins, and entropies, at the temperature; see `HeadActor`."""
        log_probs = (self.select_executed(parameters) / self.strength).log_softmax(dim=-1)
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        return log_probs.gather(-1, choice[..., None]).squeeze(-1), entropy


class TokenKind(HeadKind):
    """Makes `TokenActor`s from networks that choose action tokens."""

    ACTOR = TokenActor


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
