"""Trains an embedded critic on judged episodes: soft classes of progress, and done.

The backbone is frozen, so what it sees in each row is computed once. A row is a frame with an instruction: the own one
for every frame, and another goal of the scene for about as many.

Shapes: r rows, and those of `Scene`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from embodied_rl.actors.learning.optimiser import LightAdam
from embodied_rl.critic.judged_episode import JudgedEpisode
from embodied_rl.critic.network import ProgressCritic
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scene import Scene
from embodied_rl.interfaces.sim import Array

AT_ONCE = 256
"""Frames that the backbone sees at once."""
OTHER_OBJECT, OTHER_TASK = 0.66, 0.5
"""Share of frames that are asked about another object, and about another task or place; last frames always are."""
WARMUP, LOWEST = 100, 0.02
"""Steps of the rising learning rate; the last one, as a share of the highest."""


@dataclass(frozen=True)
class TrainingOptions:
    """How a critic learns."""

    steps: int = 6000
    """of the optimiser."""
    batch: int = 192
    """rows of a step."""
    rate: float = 1e-3
    """highest learning rate."""
    decay: float = 1e-2
    """decoupled weight decay."""
    spread: float = 0.04
    """standard deviation of the soft label around the true progress."""
    done_share: float = 3.0
    """how much more often a row is drawn whose goal holds."""


def train_critic(
    critic: ProgressCritic,
    episodes: Sequence[JudgedEpisode],
    seed: int,
    options: TrainingOptions | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> None:
    """Train the head of a critic; the same seed, episodes and number of threads give the same bits.

    Raises:
        UserError: the list of episodes is empty, or they do not fit the critic.
    """
    options = options or TrainingOptions()
    if not episodes:
        raise UserError("There are no episodes to train a critic on.", code="dataset-empty")
    rng = np.random.default_rng(seed)
    rows = choose_rows(episodes, rng)
    examples = _Examples.encode(critic, episodes, rows)
    report(f"{len(rows)} rows of {len(episodes)} episodes; {examples.done.mean():.1%} of them are done")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for module in (*critic.squeeze.modules(), *critic.head.modules()):
            if isinstance(module, torch.nn.Linear | torch.nn.LayerNorm):
                module.reset_parameters()
    trained = [*critic.head.parameters(), *critic.squeeze.parameters()]
    group = {"params": trained, "lr": options.rate, "weight_decay": options.decay, "decoupled_weight_decay": True}
    optimiser = LightAdam([group], (0.9, 0.999), 1e-8)
    critic.train()
    smooth = math.nan
    weight = np.cumsum(np.where(examples.done.numpy() > 0, options.done_share, 1.0))
    for step in range(options.steps):
        drawn = rng.random(options.batch) * weight[-1]
        batch = torch.from_numpy(np.minimum(np.searchsorted(weight, drawn, "right"), len(rows) - 1))
        cosine = 0.5 * (1 + math.cos(math.pi * step / options.steps))
        schedule = min(1.0, (step + 1) / WARMUP) * (LOWEST + (1 - LOWEST) * cosine)
        optimiser.param_groups[0]["lr"] = options.rate * schedule
        loss = _compute_loss(critic, examples.select(batch), options.spread)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        smooth = loss.item() if math.isnan(smooth) else 0.98 * smooth + 0.02 * loss.item()
        if (step + 1) % max(options.steps // 4, 1) == 0:
            report(f"step {step + 1} of {options.steps}: loss {smooth:.3f}")
    critic.eval()


def choose_rows(episodes: Sequence[JudgedEpisode], rng: np.random.Generator) -> Array:
    """Return rows (episode, frame, goal), int64 [r, 3], sorted by episode and goal."""
    rows: list[tuple[int, int, int]] = []
    for number, episode in enumerate(episodes):
        frames = len(episode.state)
        rows += [(number, frame, 0) for frame in range(frames)]
        objects = [i for i, goal in enumerate(episode.goals) if goal.relation == "object"]
        others = [i for i, goal in enumerate(episode.goals) if goal.relation in ("task", "place")]
        for pool, share in ((objects, OTHER_OBJECT), (others, OTHER_TASK)):
            if pool:
                asked = (rng.random(frames) < share) | (np.arange(frames) == frames - 1)
                rows += [(number, int(frame), int(rng.choice(pool))) for frame in np.flatnonzero(asked)]
    chosen = np.array(rows, np.int64)
    return chosen[np.lexsort((chosen[:, 1], chosen[:, 2], chosen[:, 0]))]


@dataclass(frozen=True)
class _Examples:
    """r rows as the head takes them; patches in half precision, for memory."""

    places: Tensor
    patches: Tensor
    words: Tensor
    start: Tensor
    state: Tensor
    progress: Tensor
    done: Tensor

    def select(self, rows: Tensor) -> "_Examples":
        return _Examples(
            self.places[rows], self.patches[rows].float(), self.words[rows], self.start[rows], self.state[rows],
            self.progress[rows], self.done[rows],
        )  # fmt: skip

    @staticmethod
    @torch.no_grad()
    def encode(critic: ProgressCritic, episodes: Sequence[JudgedEpisode], rows: Array) -> "_Examples":
        asked, which = np.unique(rows[:, [0, 2]], axis=0, return_inverse=True)
        begun = np.stack([asked[:, 0], np.zeros(len(asked), np.int64), asked[:, 1]], axis=1)
        seen = [(s.places, s.patches.half(), s.words, state) for s, state in _look(critic, episodes, rows)]
        places, patches, words, state = (torch.cat(parts) for parts in zip(*seen, strict=True))
        start = torch.cat([scene.places for scene, _ in _look(critic, episodes, begun)])
        goals = [(episodes[e].goals[g], f) for e, f, g in rows.tolist()]
        progress = torch.tensor([float(goal.progress[f]) for goal, f in goals])
        done = torch.tensor([float(goal.done[f]) for goal, f in goals])
        return _Examples(places, patches, words, start[which.reshape(-1)], state, progress, done)


def _look(critic: ProgressCritic, episodes: Sequence[JudgedEpisode], rows: Array) -> Iterator[tuple[Scene, Tensor]]:
    """Yield what the backbone sees in rows, and their normalised state, some rows at a time."""
    for begin in range(0, len(rows), AT_ONCE):
        part = rows[begin : begin + AT_ONCE].tolist()
        frames = {name: np.stack([episodes[e].frames[name][f] for e, f, _ in part]) for name in critic.cameras}
        words = [episodes[e].goals[g].instruction for e, _, g in part]
        inputs = critic.prepare(frames, words, np.stack([episodes[e].state[f] for e, f, _ in part]))
        yield critic.encode_image(inputs), inputs.state


def _compute_loss(critic: ProgressCritic, rows: _Examples, spread: float) -> Tensor:
    """Compute the cross-entropy to a discretised normal distribution around the truth, and that of done.

    Rows with unknown progress (NaN) count for done alone.
    """
    scene = Scene(rows.places, rows.patches, rows.words)
    bins, done = critic.progress_logits(scene, rows.start, rows.state)
    known = rows.progress.isfinite()
    distance = critic.centres - rows.progress[known, None]
    target = torch.softmax(-(distance**2) / (2 * spread**2), dim=1)
    progress = -(target * F.log_softmax(bins[known], dim=1)).sum() / len(known)
    return progress + F.binary_cross_entropy_with_logits(done, rows.done)
