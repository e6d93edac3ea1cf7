"""The contract of a simulator's scripted operator, `interfaces.sim.Operated.expert`, as checks for tests."""

from collections.abc import Callable

import numpy as np

from embodied_rl.actors.scripted import Operator
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Episode, Operated, Simulator, StepResult
from embodied_rl.rollout.episode_sampler import EpisodeSampler

LONGEST = 500
"""Control steps in which an operator must end an episode."""


def find_operator(simulator: Simulator) -> Operator | None:
    """Return the operator of all environments; None if the simulator has none, or none under its settings."""
    if not isinstance(simulator, Operated):
        return None
    try:
        return simulator.expert()
    except UserError:  # no operator under these settings
        return None


def call_operator(operate: Operator, rows: int, action_dim: int) -> Array:
    """Return the operator's actions, float32 [rows, A], after a check of their type and shape.

    Raises:
        AssertionError: another type or shape, or not finite.
    """
    actions, wanted = operate(), (rows, action_dim)
    assert isinstance(actions, np.ndarray), f"the operator must return an array, got {type(actions).__name__}"
    assert actions.dtype == np.float32, f"the operator's actions must be float32, got {actions.dtype}"
    assert actions.shape == wanted, f"the operator's actions must have shape {wanted}, got {actions.shape}"
    assert np.isfinite(actions).all(), "the operator's actions are not finite"
    return actions


def check_termination_beats_truncation(build: Callable[[int, int], Simulator]) -> None:
    """Check that an episode that succeeds on the last step of the horizon counts as terminated, not truncated.

    Args:
        build: (number of environments, horizon) → a new simulator with an operator.

    Raises:
        AssertionError: it counts as truncated; or the operator is missing, or never ends an episode.
    """
    long = build(1, 10_000)
    episode = EpisodeSampler(long.spec, run_seed=1).episode(0)
    needed, result = _operate(long, episode, LONGEST)
    assert result.terminated[0], f"the operator did not end an episode within {LONGEST} steps"
    simulator = build(1, needed)
    _, result = _operate(simulator, episode, needed)
    assert result.terminated[0], f"success on the last of {needed} steps is not reported as terminated"
    assert not result.truncated[0], "terminated and truncated at once: termination wins"
    for each in (long, simulator):
        each.close()


def _operate(simulator: Simulator, episode: Episode, most: int) -> tuple[int, StepResult]:
    """Run an episode with the operator for at most `most` steps; return their number and the last result."""
    operate = find_operator(simulator)
    assert operate is not None, "build_with_horizon needs a simulator with a scripted operator; `expert` is missing"
    simulator.reset([episode])
    for step in range(1, most + 1):
        actions = call_operator(operate, 1, simulator.spec.action_dim)
        result = simulator.step(actions[:, None], [None])
        if result.terminated[0] or step == most:
            return step, result
    raise AssertionError(f"an episode needs at least one step, not {most}")
