"""Transitions that are read from a replay storage.

Shapes: B decisions, Hx executed actions of a chunk, A action dimensions.
"""

from dataclasses import dataclass

from embodied_rl.interfaces.sim import Array, Observation


@dataclass
class Transitions:
    """B decisions and their results. All arrays are copies.

    Entries j ≥ steps are zero (False, HOLD). For a discount γ per control step, a decision is worth
    Σ_{j < steps} γ^j reward_j, and the next value counts with γ^steps, or not at all where terminated.

    Attributes:
        observation: B rows, before each decision.
        action: float32 [B, Hx, A] as chosen.
        executed: float32 [B, Hx, A] as applied, after clipping, a safety filter or a human.
        reward: float32 [B, Hx].
        success: bool [B, Hx].
        source: uint8 [B, Hx], a `Source` each.
        steps: int64 [B], control steps executed.
        terminated: bool [B].
        truncated: bool [B]; never true where `terminated` is.
        next_observation: B rows; the episode's final one if truncated; unused if terminated (a copy of `observation`).
        version: int64 [B], version of the weights that chose the action, -1 without a policy.
        episode, seed, group, task: int64 [B], as in `Episode`.
        decision: int64 [B], decisions since the episode began.
        extra: the extra fields of the format, [B, ...] each.
    """

    observation: Observation
    action: Array
    executed: Array
    reward: Array
    success: Array
    source: Array
    steps: Array
    terminated: Array
    truncated: Array
    next_observation: Observation
    version: Array
    episode: Array
    seed: Array
    group: Array
    task: Array
    decision: Array
    extra: dict[str, Array]

    def __len__(self) -> int:
        return len(self.steps)


PLAIN = (
    *("action", "executed", "reward", "success", "source", "steps", "terminated", "truncated"),
    *("version", "episode", "seed", "group", "task", "decision"),
)
"""The attributes that are fields of a row."""
