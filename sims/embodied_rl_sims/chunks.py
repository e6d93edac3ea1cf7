"""Common parts of all simulators' chunks. NumPy and the standard library only, Python 3.10 or newer."""

from collections.abc import Sequence

import numpy as np

from embodied_rl.interfaces.sim import Array, Episode, Observation, SimulatorSpec, Source, StepResult


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
