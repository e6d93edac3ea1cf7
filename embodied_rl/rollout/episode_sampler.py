"""Sampler of episodes: the next episode follows from the run's seed, the episode's index and the tasks' weights."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.curriculum import Curriculum, EpisodeRecord
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, SimulatorSpec
from embodied_rl.rollout.curricula import Uniform, UniformConfig, make_uniform_weights
from embodied_rl.rollout.late_starts import LateStarts, LateStartSettings

Purpose = Literal["train", "select", "report", "publish"]
"""What an episode is for: learning; choosing a checkpoint; the reports of runs and evaluations, by which people compare
settings and tune rules; figures that are published, on episodes that nothing was tuned on."""

_HASH_BITS = 61


def derive_episode_seed(purpose: Purpose, split: str, run_seed: int, index: int) -> int:
    """Return a simulator seed in [0, 2^63); its two highest bits are the purpose, so purposes never share a seed.

    `split` is "train" or a held-out split, `run_seed` that of the run or of an evaluation protocol.

    Raises:
        UserError: the purpose is unknown.
    """
    purposes = get_args(Purpose)
    if purpose not in purposes:
        message = f"unknown purpose '{purpose}' of an episode; there are {', '.join(purposes)}"
        raise UserError(message, code="purpose-unknown")
    return purposes.index(purpose) << _HASH_BITS | _hash(split, run_seed, index)


def choose_tasks(spec: SimulatorSpec, task: str | None, key: str = "task") -> list[int]:
    """Return the numbers of the tasks with this name or family, or of all.

    Raises:
        UserError: the task is unknown; it names the setting `key`.
    """
    if task is not None and task not in (known := [*spec.families, *(item.name for item in spec.tasks)]):
        raise UserError(f"{key}: unknown task '{task}'.{suggest_name(task, known)}", code="task-unknown")
    return [number for number, item in enumerate(spec.tasks) if task in (None, item.name, item.family)]


def name_tasks(spec: SimulatorSpec, task: str | None) -> frozenset[str] | None:
    """Return the names of the tasks that `train.task` selects; None if it selects all."""
    return None if task is None else frozenset(spec.tasks[each].name for each in choose_tasks(spec, task, "train.task"))


def derive_noise_seed(purpose: Purpose, seed: int) -> int:
    """Derive the seed of the noise in the episodes of a purpose."""
    return derive_episode_seed(purpose, "noise", seed, 0)


class EpisodeSampler:
    """Draws a task by the weights of a curriculum, and a seed for the scene.

    Environment e of N runs the indices e, e + N, e + 2N, …, so that its episodes do not depend on timing. A group is
    `group_size` adjacent indices (G divides N), hence adjacent environments; the episodes of a group start alike.

    A draw follows from the run's seed, the index and the weights; only `update` changes the weights. An episode that
    has begun keeps its task, and so do the episodes of its group that begin later. Without a curriculum, families are
    drawn equally often, and so are the tasks of a family. `task` limits the draw to one task, or to one family.

    With `late_starts` some groups begin near the end of an earlier failure; see `embodied_rl.rollout.late_starts`.

    Raises:
        UserError: the split or task is unknown, the group size is below 1, groups are requested of a simulator that
            cannot start episodes alike, late starts of one that cannot begin in mid-episode, or the weights are
            invalid, or 0 for all tasks that `task` selects.
    """

    def __init__(
        self,
        spec: SimulatorSpec,
        run_seed: int,
        *,
        group_size: int = 1,
        split: str = "train",
        purpose: Purpose = "train",
        task: str | None = None,
        curriculum: Curriculum | None = None,
        late_starts: LateStartSettings | None = None,
    ):
        if split not in ("train", *spec.splits):
            message = f"unknown split '{split}'; the simulator has {', '.join(('train', *spec.splits))}"
            raise UserError(message, code="split-unknown")
        if group_size < 1:
            raise UserError(f"group_size must be at least 1, got {group_size}", code="group-size-out-of-range")
        if group_size > 1 and not spec.seeded:
            raise UserError(
                "the episodes of a group start alike, but this simulator draws them whatever their seed: "
                "choose an algorithm without groups, such as algo=flow_sde.",
                code="groups-not-seeded",
            )
        if late_starts is not None and not spec.can_replay:
            message = f"train.late_starts={late_starts.share}: this simulator cannot begin in mid-episode; give 0."
            raise UserError(message, code="late-starts-not-supported")
        self.group_size = group_size
        self._spec, self._run_seed, self._split = spec, run_seed, split
        self._purpose: Purpose = purpose
        self._curriculum = curriculum or Uniform(UniformConfig(), spec)
        self._task, self._drawn = task, np.isin(np.arange(len(spec.tasks)), choose_tasks(spec, task, "train.task"))
        self._weights = self._find_weights()
        self._late_starts = late_starts
        self._open: dict[int, tuple[int, int]] = {}  # partly begun group → its task, number of begun episodes

    def episode(self, index: int) -> Episode:
        """Return the episode with this index (≥ 0) as it would begin now."""
        group = index // self.group_size
        seed = derive_episode_seed(self._purpose, self._split, self._run_seed, group)
        if group in self._open:
            task = self._open[group][0]
        else:
            draw = _hash("task", self._purpose, self._split, self._run_seed, group)
            task = pick_position(self._weights, draw)
        return Episode(index, task, seed, group=group, split=self._split)

    def begin(self, index: int) -> Episode:
        """Return the episode with this index and count it as begun. Each index of a group begins once."""
        episode = self.episode(index)
        begun = self._open.pop(episode.group, (episode.task, 0))[1] + 1
        if begun < self.group_size:
            self._open[episode.group] = episode.task, begun
        return episode

    def make_late_starts(self, envs: int, executed: int) -> LateStarts | None:
        """Return the late starts of some environments; None where all episodes begin at their beginning."""
        if self._late_starts is None:
            return None
        return LateStarts(self._late_starts, self._spec, envs, executed, self.group_size)

    def draw_late_start(self, group: int) -> int:
        """Return the draw in [0, 2^61) by which the episodes of a group begin late."""
        return _hash("late start", self._purpose, self._split, self._run_seed, group)

    def update(self, finished: Sequence[EpisodeRecord]) -> None:
        """Update the curriculum with the finished training episodes of all ranks; call it only between two rollouts.

        Those that began late are left out.

        Raises:
            UserError: the curriculum gave invalid weights.
        """
        self._curriculum.update([record for record in finished if not record.late])
        self._weights = self._find_weights()

    def figures(self) -> dict[str, float]:
        """Return each family's sampling share and the effective number of tasks, for the log; nothing while uniform.

        The effective number of tasks is the exponential of the draw's entropy: n where n tasks are equally likely.
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
        """Return copies of the arrays that `load` needs to continue the same draws."""
        begun = [(group, *drawn) for group, drawn in self._open.items()]
        own = {f"episodes/curriculum/{name}": array for name, array in self._curriculum.state().items()}
        return {"episodes/begun": np.array(begun, np.int64).reshape(-1, 3)} | own

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`; other entries are ignored."""
        prefix = "episodes/curriculum/"
        own = {name.removeprefix(prefix): array for name, array in state.items() if name.startswith(prefix)}
        self._curriculum.load(own)
        self._weights = self._find_weights()
        self._open = {group: (task, begun) for group, task, begun in state["episodes/begun"].tolist()}

    def _find_weights(self) -> NDArray[np.float64]:
        weights = np.where(self._drawn, check_weights(self._curriculum, len(self._spec.tasks)), 0.0)
        if not weights.any():
            name = type(self._curriculum).__name__
            message = f"curriculum: {name} gives no weight to train.task={self._task}, which alone is drawn"
            raise UserError(message, code="curriculum-weights-invalid")
        return weights / weights.max()


def pick_position(weights: NDArray[np.float64], draw: int) -> int:
    """Return the position that a draw in [0, 2^61) selects: the first i with a cumulative weight above u · total.

    u = ⌊draw / 2^8⌋ / 2^53 is exact in float64 and below 1, so that every machine finds the same position, and its
    weight is positive. `weights`: float64 [n], not negative, the largest 1.
    """
    cumulative = np.cumsum(weights)
    u = (draw >> (_HASH_BITS - 53)) * 2.0**-53
    return int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))


def check_weights(curriculum: Curriculum, tasks: int) -> NDArray[np.float64]:
    """Return the weights of a curriculum, float64 [tasks], scaled so that the largest is 1.

    Raises:
        UserError: there is not one weight per task, or the weights are not finite, are negative, or are all zero.
    """
    weights = np.array(curriculum.weights(), np.float64)
    name = type(curriculum).__name__
    if weights.shape != (tasks,):
        message = f"curriculum: {name} gave weights of shape {weights.shape} for {tasks} tasks"
        raise UserError(message, code="curriculum-weights-invalid")
    if not np.isfinite(weights).all() or weights.min() < 0 or weights.max() == 0:
        message = f"curriculum: {name} must give finite weights of at least 0, one of them more; not {weights}"
        raise UserError(message, code="curriculum-weights-invalid")
    return weights / weights.max()


def _hash(*parts: object) -> int:
    """Return 61 well-mixed bits of the parts, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _HASH_BITS)
