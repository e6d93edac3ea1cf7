"""Settings of an executor: how chunks join the plan, and which chunks it accepts."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array

Strategy = Literal["prefix", "naive", "blend", "stop", "replacement", "guided"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
CONTINUING: tuple[Strategy, ...] = ("prefix", "replacement", "guided")
"""The strategies that pass the plan's next actions to the policy."""


@dataclass(frozen=True)
class Settings:
    """Settings of an executor. Times are in control steps, unless another unit is given.

    Attributes:
        horizon: H, actions of each chunk.
        action_low, action_high: [A], limits to which actions are clipped before they are committed.
        strategy: how a chunk joins the plan:
            "prefix": the policy continues the actions that are executed while it infers;
            "naive": the newest chunk replaces the plan when it arrives;
            "blend": as naive, and both plans are mixed over `blend` steps;
            "stop": stop-and-go: the robot holds still while the policy infers;
            "replacement", "guided": as prefix, for policies that were not trained on prefixes; they also receive the
            rest of the plan, to stay near it: the H - s actions that the next chunk overlaps.
        replan: s, between two requests; for "stop": executed actions of a chunk.
        delay: d, expected from a request to its answer, until it has been measured.
        control_hz: control steps per second of the clock.
        blend: steps over which "blend" mixes.
        longest_prefix: most actions that are committed at a request; None for no limit.
        jump: [A], largest difference between a chunk's first action and the command before it; None for no limit.
        open_loop: latest execution of an action after its observation; None for `horizon`, and with "stop" for
            `longest_wait` + `replan`.
        give_up: timeout after which a request counts as lost; None for the horizon, at least four delays.
        quantile: of the measured delays, for the number of committed actions.

    Raises:
        UserError: chunks are too short for the delay, or a number is invalid; the message suggests values.
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
            raise UserError(f"strategy={self.strategy} is not one of {', '.join(STRATEGIES)}.", code="strategy-unknown")
        for name, least in (("horizon", 1), ("replan", 1), ("delay", 0), ("blend", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name}={getattr(self, name)} must be at least {least}.", code="value-out-of-range")
        if not (math.isfinite(self.control_hz) and self.control_hz > 0 and 0 < self.quantile <= 1):
            raise UserError(
                f"control_hz={self.control_hz} must be above 0, quantile={self.quantile} within 0…1.",
                code="value-out-of-range",
            )
        check_budget(self.horizon, self.delay, self.replan, self.strategy)

    @property
    def longest_wait(self) -> int:
        """Return the number of control steps after which an unanswered request is lost."""
        return max(self.horizon, 4 * self.delay) if self.give_up is None else self.give_up

    @property
    def budget(self) -> int:
        """Return the largest number of control steps between an observation and the execution of an action."""
        if self.open_loop is not None:
            return self.open_loop
        return self.longest_wait + self.replan if self.strategy == "stop" else self.horizon


def choose_replan(delay: int, strategy: Strategy, executed: int) -> int:
    """Return the default s: a new inference starts as soon as the last one ends; "stop" executes whole chunks."""
    return executed if strategy == "stop" else max(delay, 1)


def check_budget(horizon: int, delay: int, replan: int, strategy: Strategy) -> None:
    """Raise `UserError` unless a plan lasts until the answer to the next request: s + d ≤ H; with "stop": s ≤ H."""
    if strategy == "stop":
        if replan > horizon:
            raise UserError(
                f"replan={replan} exceeds the {horizon} actions of a chunk. Take replan={horizon}.",
                code="replan-out-of-range",
            )
        return
    if replan < delay:
        raise UserError(
            f"replan={replan}: an inference takes delay={delay} control steps, and the next one begins after it. Take "
            f"replan={delay} or more.",
            code="replan-out-of-range",
        )
    if replan + delay > horizon:
        shorter = f"replan={horizon - delay}, " if delay <= horizon - delay else ""
        raise UserError(
            f"An inference every replan={replan} control steps that takes delay={delay} needs chunks of "
            f"{replan + delay} actions, and this policy predicts {horizon}. Take {shorter}a delay of at most "
            f"{horizon // 2} (a quicker policy or machine), strategy=stop (the robot waits for each answer), or a "
            f"policy with a longer horizon, such as sft with policy.horizon={2 * max(delay, 1)} makes.",
            code="horizon-too-short",
        )
