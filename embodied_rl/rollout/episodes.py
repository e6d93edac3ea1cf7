"""Which episode an environment runs next, as pure functions of the run's seed and the episode's index."""

import hashlib
from collections.abc import Mapping
from typing import Literal, get_args

from embodied_rl.interfaces.sim import Episode, SimulatorSpec

Purpose = Literal["train", "select", "report"]
"""What an episode is for: learning, choosing a checkpoint, or the numbers that are published."""

_HASH_BITS = 61


def episode_seed(purpose: Purpose, split: str, run_seed: int, index: int) -> int:
    """A seed in [0, 2^63) for the simulator; its two highest bits are the purpose, so purposes can never share one.

    Args:
        purpose: what the episode is for.
        split: "train" or a held-out split.
        run_seed: seed of the run (or of an evaluation protocol).
        index: any integer that tells episodes apart.

    Raises:
        ValueError: unknown purpose.
    """
    purposes = get_args(Purpose)
    if purpose not in purposes:
        raise ValueError(f"unknown purpose '{purpose}' of an episode; there are {', '.join(purposes)}")
    return purposes.index(purpose) << _HASH_BITS | _hash(split, run_seed, index)


class EpisodeSampler:
    """Draws a family by weight, then a task of it uniformly, and a seed for the scene.

    Environment e of N runs the indices e, e + N, e + 2N, …, so that who runs what does not depend on timing. Groups
    are runs of `group_size` adjacent indices, hence of adjacent environments; their episodes start alike.

    Args:
        spec: of the simulator.
        run_seed: seed of the run.
        group_size: G; must divide N.
        split: "train" or a held-out split.
        purpose: see `episode_seed`.
        family_weights: how often each family is drawn, in whole numbers; 1 for those it leaves out.

    Raises:
        ValueError: the split or a family is unknown, or the group size is below 1.
    """

    def __init__(
        self,
        spec: SimulatorSpec,
        run_seed: int,
        *,
        group_size: int = 1,
        split: str = "train",
        purpose: Purpose = "train",
        family_weights: Mapping[str, int] | None = None,
    ):
        if split not in ("train", *spec.splits):
            raise ValueError(f"unknown split '{split}'; the simulator has {', '.join(('train', *spec.splits))}")
        if group_size < 1:
            raise ValueError(f"group_size must be at least 1, got {group_size}")
        self.group_size = group_size
        self._run_seed, self._split = run_seed, split
        self._purpose: Purpose = purpose
        weights = dict.fromkeys(spec.families, 1) | dict(family_weights or {})
        if unknown := [family for family in weights if family not in spec.families]:
            known = ", ".join(spec.families)
            raise ValueError(f"train.family_weights: unknown family '{unknown[0]}'; the simulator has {known}")
        if min(weights.values()) < 0 or not any(weights.values()):
            raise ValueError(f"train.family_weights must be at least 0, and one of them more; got {weights}")
        self._families = [
            [number for number, task in enumerate(spec.tasks) if task.family == family]
            for family in spec.families
            for _ in range(weights[family])
        ]

    def episode(self, index: int) -> Episode:
        """The episode with this index (≥ 0)."""
        group = index // self.group_size
        draw = _hash("task", self._purpose, self._split, self._run_seed, group)
        draw, family = divmod(draw, len(self._families))
        tasks = self._families[family]
        seed = episode_seed(self._purpose, self._split, self._run_seed, group)
        return Episode(index, tasks[draw % len(tasks)], seed, group=group, split=self._split)


def _hash(*parts: object) -> int:
    """61 well-mixed bits of the parts, the same on every machine."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - _HASH_BITS)
