"""The result of one evaluated episode."""

from dataclasses import dataclass

IN_DISTRIBUTION = "eval"
"""The split with the conditions of training, on seeds that training never sees."""


@dataclass(frozen=True)
class EpisodeResult:
    """The result of one episode.

    Attributes:
        split: the simulator's conditions, as `Episode.split`; those of an evaluation's split "eval" are "train".
        success: whether the goal held after any control step; success_at_end: after the last control step.
        reward: undiscounted sum of rewards.
        smoothness: mean square of the second difference of the executed actions, in the simulator's units; 0 is smooth.
        initial_state: the numbered initial state, if the benchmark has them.
        simulator: the number of its simulator in the report's `simulators`; None in reports of older versions.
        failure: kind of failure, "" after a success; None if the simulator gives no reason.
        steps_to_success: control steps until the goal held for the first time; None without success.
    """

    index: int
    task: int
    seed: int
    split: str
    success: bool
    success_at_end: bool
    steps: int
    reward: float
    smoothness: float
    initial_state: int | None = None
    simulator: int | None = None
    failure: str | None = None
    steps_to_success: int | None = None
