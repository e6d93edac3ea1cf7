"""Common parts of the simulators: chunks, seeds, pictures, versions of packages.

NumPy and the standard library only, Python 3.10 or newer.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version

import numpy as np

from embodied_rl.interfaces.sim import Array, Diagnosis, Episode, Observation, SimulatorSpec, Source, StepResult


def make_empty_result(spec: SimulatorSpec, actions: Array) -> StepResult:
    """Build the result of a chunk before its first step: actions are clipped to the limits, the observation is empty.

    Args:
        spec: specification of the simulator.
        actions: float32 [n, H, A].
    """
    n, chunk, _ = actions.shape
    low, high = (np.array(limit, np.float32) for limit in (spec.action_low, spec.action_high))
    return StepResult(
        reward=np.zeros((n, chunk), np.float32),
        success=np.zeros((n, chunk), bool),
        steps=np.zeros(n, np.int64),
        executed=np.clip(actions, low, high).astype(np.float32),
        source=np.full((n, chunk), Source.HOLD, np.uint8),
        terminated=np.zeros(n, bool),
        truncated=np.zeros(n, bool),
        observation=Observation({}, np.zeros((0, 0)), ()),
    )


def wants_final_picture(episodes: Sequence[Episode | None]) -> Array:
    """Return bool [n]: whether an episode requests its final picture even if it terminates."""
    return np.array([episode is not None and episode.final_picture for episode in episodes], bool)


class NoSnapshots:
    """Base class of simulators that cannot save a state in mid-episode: `spec.can_snapshot` is False."""

    def snapshot(self) -> dict[str, Array]:
        raise NotImplementedError("this simulator cannot be saved in mid-episode: spec.can_snapshot is False")

    def restore(self, state: dict[str, Array]) -> Observation:
        raise NotImplementedError("this simulator cannot be saved in mid-episode: spec.can_snapshot is False")


_PURPOSE_BITS = 61


def fold_seed(seed: int, bits: int) -> int:
    """Fold an episode's 63-bit seed to `bits` bits; seeds below 2^(bits - 2) stay unchanged.

    The two highest bits state the purpose of an episode and remain the highest: training and evaluation share no scene.
    """
    kept = bits - 2
    return (seed >> _PURPOSE_BITS) << kept | seed & ((1 << kept) - 1)


def resize_picture(picture: Array, height: int, width: int) -> Array:
    """Resize `picture`, uint8 [h, w, 3], to uint8 [height, width, 3]: each pixel is the mean of the area it covers."""
    if picture.shape[:2] == (height, width):
        return picture
    rows, columns = _shares(picture.shape[0], height), _shares(picture.shape[1], width)
    mean = np.einsum("ah,hwc,bw->abc", rows, picture.astype(np.float64), columns, optimize=True)
    return np.rint(mean).astype(np.uint8)


def _shares(old: int, new: int) -> Array:
    """Compute the share of each new pixel that each old pixel covers, float64 [new, old]; rows sum to 1."""
    edges = np.linspace(0, old, new + 1)
    first, last, pixel = edges[:-1, None], edges[1:, None], np.arange(old)
    covered = np.clip(np.minimum(last, pixel + 1) - np.maximum(first, pixel), 0, None)
    return covered / covered.sum(axis=1, keepdims=True)


def find_version(name: str) -> str | None:
    """Return the installed version of a distribution; None if it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def find_versions(names: Iterable[str]) -> dict[str, str]:
    """Return distribution → version of the installed ones."""
    return {name: found for name in names if (found := find_version(name)) is not None}


def diagnose_package(name: str, pinned: str, remedy: str, relation: str = "tested with") -> Diagnosis:
    """Build the line of `doctor` for a distribution: not installed, pinned version, or another version."""
    found = find_version(name)
    if found is None:
        return Diagnosis(name, "fail", "not installed", remedy)
    if found.partition("+")[0] != pinned:  # what follows + is how it was built
        return Diagnosis(name, "warn", f"{found}, {relation} {pinned}", remedy)
    return Diagnosis(name, "ok", found)


def measure_rate(draw: Callable[[], object], count: int) -> float:
    """Return how often a second `draw` can be called, from `count` calls after a first one."""
    draw()
    began = time.perf_counter()
    for _ in range(count):
        draw()
    return count / (time.perf_counter() - began)
