"""How an executor joins chunks, and what it accepts."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array

Strategy = Literal["prefix", "naive", "blend", "stop", "replacement", "guided"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CONTINUING: tuple[Strategy, ...] = ("prefix", "replacement", "guided")
"""The strategies whose policy is shown what the plan holds."""


@dataclass(frozen=True)
class Settings:
    """The settings of an executor. Lengths of time are in control steps, unless said otherwise.

    Attributes:
        horizon: H, actions of each chunk.
        action_low, action_high: [A], limits to which actions are clipped before they are committed.
        strategy: how a chunk joins the plan:
            "prefix": the policy continues the actions that are executed while it infers;
            "naive": the newest chunk replaces the plan when it arrives;
            "blend": as naive, and both plans are mixed over `blend` steps;
            "stop": stop-and-go: the robot holds still while the policy infers;
            "replacement", "guided": as prefix, for policies that were not trained on prefixes; they are shown the rest
            of the plan as well, to stay near it: the H - s actions that the next chunk overlaps.
        replan: s, between two requests; for "stop": actions of a chunk that are executed.
        delay: d, expected from a request to its answer, until that has been measured.
        control_hz: control steps in a second of the clock.
        blend: steps over which "blend" mixes.
        longest_prefix: most actions that are committed at a request; None for no limit.
        jump: [A], largest difference between a chunk's first action and the command before it; None for no limit.
        open_loop: an action is never executed later than this after its observation; None for `horizon`, and for
            "stop" for what an answer may take, plus `replan`.
        give_up: after this an unanswered request counts as lost; None for the horizon, at least four delays.
        quantile: of the measured delays, how many actions are committed.

    Raises:
        UserError: chunks are too short for the delay, or a number cannot be; the message says what would fit.
    """

    horizon: int
    action_low: Array
    action_high: Array
    strategy: Strategy
    replan: int
    delay: int
    control_hz: float = 1.0
    blend: int = 3
    longest_prefix: int | None = None
    jump: Array | None = None
    open_loop: int | None = None
    give_up: int | None = None
    quantile: float = 0.95

    def __post_init__(self) -> None:
        if self.strategy not in STRATEGIES:
            raise UserError(f"strategy={self.strategy} is not one of {', '.join(STRATEGIES)}.")
        for name, least in (("horizon", 1), ("replan", 1), ("delay", 0), ("blend", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}.")
        if not (math.isfinite(self.control_hz) and self.control_hz > 0 and 0 < self.quantile <= 1):
            raise UserError(f"control_hz={self.control_hz} must be above 0, quantile={self.quantile} within 0…1.")
        check_budget(self.horizon, self.delay, self.replan, self.strategy)

    @property
    def longest_wait(self) -> int:
        """Return after how many control steps an unanswered request is lost."""
        return max(self.horizon, 4 * self.delay) if self.give_up is None else self.give_up

    @property
    def budget(self) -> int:
        """Return how many control steps after its observation an action is executed at the latest."""
        if self.open_loop is not None:
            return self.open_loop
        return self.longest_wait + self.replan if self.strategy == "stop" else self.horizon


def choose_replan(delay: int, strategy: Strategy, executed: int) -> int:
    """Return the usual s: a new inference begins as soon as the last one is answered; "stop" executes whole chunks."""
    return executed if strategy == "stop" else max(delay, 1)


def check_budget(horizon: int, delay: int, replan: int, strategy: Strategy) -> None:
    """Check that a plan lasts until the answer to the next request: s + d ≤ H. A plan that stops lasts s ≤ H.

    Raises:
        UserError: it does not; the message has the numbers, and what would fit.
    """
    if strategy == "stop":
        if replan > horizon:
            raise UserError(f"replan={replan} exceeds the {horizon} actions of a chunk. Take replan={horizon}.")
        return
    if replan < delay:
        raise UserError(
            f"replan={replan}: an inference takes delay={delay} control steps, and the next one begins after it. Take "
            f"replan={delay} or more."
        )
    if replan + delay > horizon:
        shorter = f"replan={horizon - delay}, " if delay <= horizon - delay else ""
        raise UserError(
            f"An inference every replan={replan} control steps that takes delay={delay} needs chunks of "
            f"{replan + delay} actions, and this policy predicts {horizon}. Take {shorter}a delay of at most "
            f"{horizon // 2} (a quicker policy or machine), strategy=stop (the robot waits for each answer), or a "
            f"policy with a longer horizon, such as sft with policy.horizon={2 * max(delay, 1)} makes."
        )
