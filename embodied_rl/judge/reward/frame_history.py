"""Earlier frames of running episodes, for questions about more than one picture.

Shapes: N environments of a collector, f frames of a question, h × w pixels.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from embodied_rl.interfaces.scorer import Span
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.judge.scorers.shared_images import Picture, SharedImages


class FrameHistory:
    """Bounded history of scored frames, as many as a request may show.

    For the span "latest" these are the last f - 1. For "episode" every 2^k-th frame of the episode is kept; when there
    are 2 f of them, every second one is dropped.

    Args:
        spec: of the simulator.
        cameras: cameras of the kept frames.
        num_envs: N.
        frames: f, frames of a request with the current one; 1 keeps nothing.
        span: which frames.
    """

    def __init__(self, spec: SimulatorSpec, cameras: Sequence[str], num_envs: int, frames: int, span: Span) -> None:
        self._frames, self._span = frames, span
        self._room = 2 * frames if span == "episode" and frames > 1 else frames - 1
        self._sizes = {each.name: (each.height, each.width, 3) for each in spec.cameras if each.name in cameras}
        self._kept: list[list[Mapping[str, Picture]]] = [[] for _ in range(num_envs)]
        self._seen = np.zeros(num_envs, np.int64)
        """Frames of the episode so far, kept or not."""
        self._stride = np.ones(num_envs, np.int64)

    def begin(self, column: int) -> None:
        """Forget the episode of an environment."""
        self._kept[column], self._seen[column], self._stride[column] = [], 0, 1

    def has_earlier(self, column: int) -> bool:
        """Return whether an earlier frame of the running episode is kept."""
        return bool(self._kept[column])

    def show(self, column: int, present: Mapping[str, Picture]) -> SharedImages:
        """Return the frames of a question, n of each camera with n at most f, the present one last.

        Args:
            column: number of the environment.
            present: camera → picture.
        """
        kept = self._kept[column]
        shown = [*(kept[place] for place in self._choose(len(kept))), present]
        return SharedImages({name: tuple(each[name] for each in shown) for name in self._sizes})

    def _choose(self, count: int) -> list[int]:
        """Return the indices of the kept frames that a request shows before the current one."""
        shown = min(self._frames - 1, count)
        if self._span == "latest" or shown == count:
            return list(range(count - shown, count))
        return sorted({round(place * count / shown) for place in range(shown)})  # place `count` is the present one

    def add(self, column: int, present: Mapping[str, Picture]) -> None:
        """Keep a frame that was, or could have been, asked about."""
        number, kept = int(self._seen[column]), self._kept[column]
        self._seen[column] += 1
        if not self._room or (self._span == "episode" and number % self._stride[column]):
            return
        if len(kept) == self._room:
            self._make_room(column)
            if self._span == "episode" and number % self._stride[column]:
                return
        kept.append(present)

    def _make_room(self, column: int) -> None:
        if self._span == "episode":
            del self._kept[column][1::2]
            self._stride[column] *= 2
        else:
            del self._kept[column][0]

    def state(self) -> dict[str, Array]:
        """Return copies of all arrays; nothing where nothing is kept."""
        if not self._room:
            return {}
        arrays = {"count": np.array([len(kept) for kept in self._kept]), "seen": self._seen, "stride": self._stride}
        for name, size in self._sizes.items():
            arrays[f"frames/{name}"] = np.zeros((len(self._kept), self._room, *size), np.uint8)
            for column, kept in enumerate(self._kept):
                for place, each in enumerate(kept):
                    arrays[f"frames/{name}"][column, place] = each[name].pixels
        return {f"history/{name}": array.copy() for name, array in arrays.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore a `state`."""
        if not self._room:
            return
        self._seen[:], self._stride[:] = state["history/seen"], state["history/stride"]
        for column, count in enumerate(state["history/count"].tolist()):
            self._kept[column] = [
                {name: Picture(state[f"history/frames/{name}"][column, place].copy()) for name in self._sizes}
                for place in range(count)
            ]
