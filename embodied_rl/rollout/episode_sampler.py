"""Which episode an environment runs next: a function of the run's seed, the episode's index and the tasks' weights."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embodied_rl.curricula.uniform import Uniform, UniformConfig, make_uniform_weights
from embodied_rl.interfaces.curriculum import Curriculum, EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec

Purpose = Literal["train", "select", "report"]
"""What an episode is for: learning, choosing a checkpoint, or the numbers that are published."""

_HASH_BITS = 61


def derive_episode_seed(purpose: Purpose, split: str, run_seed: int, index: int) -> int:
    """A seed in [0, 2^63) for the simulator; its two highest bits are the purpose, so purposes can never share one.

    Args:
        purpose: what the episode is for.
        split: "train" or a held-out split.
        run_seed: seed of the run (or of an evaluation protocol).
        index: any integer that tells episodes apart.

    Raises:
        UserError: unknown purpose.
    """
    purposes = get_args(Purpose)
    if purpose not in purposes:
        raise UserError(f"unknown purpose '{purpose}' of an episode; there are {', '.join(purposes)}")
    return purposes.index(purpose) << _HASH_BITS | _hash(split, run_seed, index)


class EpisodeSampler:
    """Draws a task by the weights of a curriculum, and a seed for the scene.

    Environment e of N runs the indices e, e + N, e + 2N, …, so that who runs what does not depend on timing. Groups
    are runs of `group_size` adjacent indices, hence of adjacent environments; their episodes start alike.

    What is drawn follows from the run's seed, the index and the weights, which change in `update` and nowhere else. An
    episode that has begun stays what it is, and so do those of its group that begin later.

    Args:
        spec: of the simulator.
        run_seed: seed of the run.
        group_size: G; must divide N.
        split: "train" or a held-out split.
        purpose: see `derive_episode_seed`.
        curriculum: gives the weights; by default families are drawn equally often, and the tasks of each.

    Raises:
        UserError: the split is unknown, the group size is below 1, groups are asked of a simulator that cannot start
            episodes alike, or the weights cannot be drawn from.
    """

    def __init__(
        self,
        spec: SimulatorSpec,
        run_seed: int,
        *,
        group_size: int = 1,
        split: str = "train",
        purpose: Purpose = "train",
        curriculum: Curriculum | None = None,
    ):
        if split not in ("train", *spec.splits):
            raise UserError(f"unknown split '{split}'; the simulator has {', '.join(('train', *spec.splits))}")
        if group_size < 1:
            raise UserError(f"group_size must be at least 1, got {group_size}")
        if group_size > 1 and not spec.seeded:
            raise UserError(
                "the episodes of a group start alike, but this simulator draws them whatever their seed: "
                "choose an algorithm without groups, such as algo=flow_sde."
            )
        self.group_size = group_size
        self._spec, self._run_seed, self._split = spec, run_seed, split
        self._purpose: Purpose = purpose
        self._curriculum = curriculum or Uniform(UniformConfig(), spec)
        self._weights = check_weights(self._curriculum, len(spec.tasks))
        self._open: dict[int, tuple[int, int]] = {}  # group of which some episodes have begun → its task, how many have

    def episode(self, index: int) -> Episode:
        """The episode with this index (≥ 0), were it to begin now."""
        group = index // self.group_size
        seed = derive_episode_seed(self._purpose, self._split, self._run_seed, group)
        task = self._open[group][0] if group in self._open else self._draw(group)
        return Episode(index, task, seed, group=group, split=self._split)

    def begin(self, index: int) -> Episode:
        """The episode with this index, which begins now. Each index of a group begins once."""
        episode = self.episode(index)
        begun = self._open.pop(episode.group, (episode.task, 0))[1] + 1
        if begun < self.group_size:
            self._open[episode.group] = episode.task, begun
        return episode

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        """Let the curriculum learn from the training episodes that ended, of all ranks; only between two rollouts.

        Raises:
            UserError: it gave weights that cannot be drawn from.
        """
        self._curriculum.update(finished)
        self._weights = check_weights(self._curriculum, len(self._spec.tasks))

    def figures(self) -> dict[str, float]:
        """For the log: each family's share of the draw, and among how many tasks it is; none while it is uniform.

        The number of tasks is the exponential of the draw's entropy: n where n tasks are equally likely.
        """
        share = self._weights / self._weights.sum()
        if np.allclose(share * len(self._spec.families), make_uniform_weights(self._spec)):
            return {}
        figures = {f"curriculum/weight/{family}": 0.0 for family in self._spec.families}
        for task, value in zip(self._spec.tasks, share.tolist(), strict=True):
            figures[f"curriculum/weight/{task.family}"] += value
        likely = share[share > 0]
        return figures | {"curriculum/effective_tasks": float(np.exp(-(likely * np.log(likely)).sum()))}

    def state(self) -> dict[str, Array]:
        """Everything `load` needs to draw on as if nothing had happened; copies."""
        begun = [(group, *drawn) for group, drawn in self._open.items()]
        own = {f"episodes/curriculum/{name}": array for name, array in self._curriculum.state().items()}
        return {"episodes/begun": np.array(begun, np.int64).reshape(-1, 3)} | own

    def load(self, state: Mapping[str, Array]) -> None:
        """The inverse of `state`; other entries are left alone."""
        prefix = "episodes/curriculum/"
        own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
        self._curriculum.load(own)
        self._weights = check_weights(self._curriculum, len(self._spec.tasks))
        self._open = {group: (task, begun) for group, task, begun in state["episodes/begun"].tolist()}

    def _draw(self, group: int) -> int:
        draw = _hash("task", self._purpose, self._split, self._run_seed, group)
        return pick_position(self._weights, draw)


def pick_position(weights: NDArray[np.float64], draw: int) -> int:
    """The position that a draw means: position i where the cumulative weights exceed u · total first.

    u = ⌊draw / 2^8⌋ / 2^53 is exact in float64 and below 1, so that every machine finds the same position, one of
    positive weight.

    Args:
        weights: float64 [n], not negative, the largest 1.
        draw: in [0, 2^61).
    """
    cumulative = np.cumsum(weights)
    u = (draw >> (_HASH_BITS - 53)) * 2.0**-53
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def check_weights(curriculum: Curriculum, tasks: int) -> NDArray[np.float64]:
    """float64 [tasks]: the weights of a curriculum, scaled so that the largest is 1.

    Raises:
        UserError: they are not one per task, or cannot be drawn from.
    """
    weights = np.array(curriculum.weights(), np.float64)
    name = type(curriculum).__name__
    if weights.shape != (tasks,):
        raise UserError(f"curriculum: {name} gave weights of shape {weights.shape} for {tasks} tasks")
    if not np.isfinite(weights).all() or weights.min() < 0 or weights.max() == 0:
        raise UserError(f"curriculum: {name} must give finite weights of at least 0, one of them more; not {weights}")
    return weights / weights.max()


def _hash(*parts: object) -> int:
    """61 well-mixed bits of the parts, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _HASH_BITS)
