"""Earlier frames of running episodes, for questions about more than one picture.

Shapes: N environments of a collector, f frames of a question, h × w pixels.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from embodied_rl.interfaces.scorer import Span
from embodied_rl.interfaces.sim import Array, SimulatorSpec


class FrameHistory:
    """Keeps frames that were asked about, as many as questions may show, and no more memory than that.

    For the span "latest" these are the last f - 1. For "episode" every 2^k-th frame of the episode is kept, fewer than
    2 f of them: when there are as many, every second one is dropped.

    Args:
        spec: of the simulator.
        cameras: whose frames are kept.
        num_envs: N.
        frames: f, of a question, with the present one; 1 keeps nothing.
        span: which ones.
    """

    def __init__(self, spec: SimulatorSpec, cameras: Sequence[str], num_envs: int, frames: int, span: Span) -> None:
        self._frames, self._span = frames, span
        self._room = 2 * frames if span == "episode" and frames > 1 else frames - 1
        sizes = {camera.name: (camera.height, camera.width, 3) for camera in spec.cameras if camera.name in cameras}
        self._kept = {name: np.zeros((num_envs, self._room, *size), np.uint8) for name, size in sizes.items()}
        self._count = np.zeros(num_envs, np.int64)
        self._seen = np.zeros(num_envs, np.int64)
        """Frames of the episode so far, kept or not."""
        self._stride = np.ones(num_envs, np.int64)

    def begin(self, column: int) -> None:
        """Forget the episode of an environment."""
        self._count[column], self._seen[column], self._stride[column] = 0, 0, 1

    def has_earlier(self, column: int) -> bool:
        """Return whether an earlier frame of the running episode is kept."""
        return bool(self._count[column])

    def show(self, column: int, present: Mapping[str, Array]) -> dict[str, Array]:
        """Return the frames of a question, uint8 [n, h, w, 3] of each camera with n at most f, the present one last.

        Args:
            column: number of the environment.
            present: camera → uint8 [h, w, 3].
        """
        count = int(self._count[column])
        chosen = self._choose(count)
        return {
            name: np.concatenate([self._kept[name][column, chosen], present[name][None]])
            if chosen else present[name][None].copy()
            for name in self._kept
        }  # fmt: skip

    def _choose(self, count: int) -> list[int]:
        """Return the places of kept frames that a question shows beside the present one."""
        shown = min(self._frames - 1, count)
        if self._span == "latest" or shown == count:
            return list(range(count - shown, count))
        return sorted({round(place * count / shown) for place in range(shown)})  # place `count` is the present one

    def add(self, column: int, present: Mapping[str, Array]) -> None:
        """Keep a frame that was, or could have been, asked about."""
        number = int(self._seen[column])
        self._seen[column] += 1
        if not self._room or (self._span == "episode" and number % self._stride[column]):
            return
        if self._count[column] == self._room:
            self._make_room(column)
            if self._span == "episode" and number % self._stride[column]:
                return
        place = int(self._count[column])
        for name, kept in self._kept.items():
            kept[column, place] = present[name]
        self._count[column] += 1

    def _make_room(self, column: int) -> None:
        for kept in self._kept.values():
            left = kept[column, ::2].copy() if self._span == "episode" else kept[column, 1:].copy()
            kept[column, : len(left)] = left
        if self._span == "episode":
            self._stride[column] *= 2
            self._count[column] = (self._room + 1) // 2
        else:
            self._count[column] -= 1

    def state(self) -> dict[str, Array]:
        """Return copies of all arrays; nothing where nothing is kept."""
        if not self._room:
            return {}
        counts = {"count": self._count, "seen": self._seen, "stride": self._stride}
        arrays = counts | {f"frames/{name}": kept for name, kept in self._kept.items()}
        return {f"history/{name}": array.copy() for name, array in arrays.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        if not self._room:
            return
        self._count[:], self._seen[:], self._stride[:] = (
            state[f"history/{name}"] for name in ("count", "seen", "stride")
        )
        for name, kept in self._kept.items():
            kept[:] = state[f"history/frames/{name}"]
