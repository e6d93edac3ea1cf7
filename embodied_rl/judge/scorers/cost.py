"""What a judge costs: tokens as its server counts them, times prices; and a budget that is not exceeded.

What was not counted is unknown, never 0: an answer without a count of tokens has no price, and one that did not come in
time may have been paid for.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Reason, Score
from embodied_rl.schema import RewardNode

_PAID: tuple[Reason, ...] = ("ok", "unreadable", "unsure", "range")
"""Reasons of scores that a server has answered."""


@dataclass(frozen=True)
class Prices:
    """Prices of 1000 tokens that a model reads, and writes, in any currency."""

    read: float
    written: float

    def of(self, tokens: tuple[float, float]) -> float:
        """Return the price of tokens read and written."""
        return (tokens[0] * self.read + tokens[1] * self.written) / 1000


def find_prices(reward: RewardNode) -> Prices | None:
    """Return the prices of a configuration; None where it has none."""
    read, written = reward.price_per_1k_tokens, reward.price_per_1k_written
    return None if read is None else Prices(read, read if written is None else written)


class CostMeter:
    """Meter of the cost of answers, with an optional budget; without prices costs are not counted.

    Attributes:
        read, written: tokens so far. uncounted: answers with unknown token counts, including late ones.
    """

    def __init__(self, prices: Prices | None = None, budget: float | None = None) -> None:
        self._prices, self._budget = prices, budget
        self.read = self.written = self.uncounted = 0
        self._dearest, self._reserved, self._silent = 0.0, 0.0, False
        self._in_flight = 0

    def begin(self, questions: int) -> None:
        """Count questions that are sent, each of which `note` takes the answer to."""
        self._in_flight += questions

    def note(self, score: Score) -> None:
        """Count the answer to a question. One that came too late is reserved for at the highest price so far."""
        self._in_flight = max(0, self._in_flight - 1)
        if score.tokens is not None:
            self.read, self.written = self.read + score.tokens[0], self.written + score.tokens[1]
            self._dearest = max(self._dearest, self._prices.of(score.tokens) if self._prices else 0.0)
        elif score.reason in _PAID:
            self.uncounted += 1
            self._silent = True
        elif score.reason == "timeout":
            self.uncounted += 1
            self._reserved += self._dearest

    @property
    def spent(self) -> float:
        """Return the counted cost plus the possible cost of uncounted answers."""
        return self._reserved + (self._prices.of((self.read, self.written)) if self._prices else 0.0)

    def has_room(self, in_flight: int) -> bool:
        """Return whether the budget allows another request besides those in flight."""
        if self._budget is None:
            return True
        if not self.read + self.written:
            return not in_flight  # one after the other, until a price is known
        return self.spent + (in_flight + 1) * self._dearest <= self._budget

    @property
    def cause(self) -> str:
        """Return why no further request may be sent, regardless of those in flight; empty if one may."""
        if self._budget is None:
            return ""
        if self._silent:
            return "its server does not count tokens, so the cost is unknown (reward.budget_money)"
        if self.has_room(0):
            return ""
        return f"its budget of {self._budget:g} is spent but for less than a request costs (reward.budget_money)"

    def state(self) -> dict[str, float]:
        """Return what `load` needs. What is in flight is reserved for: a resumed run never hears what it cost."""
        names = ("read", "written", "uncounted", "_dearest", "_silent")
        reserved = self._reserved + self._in_flight * self._dearest
        return {name.strip("_"): float(getattr(self, name)) for name in names} | {"reserved": reserved}

    def load(self, state: Mapping[str, float]) -> None:
        """Restore a `state`."""
        self.read, self.written, self.uncounted = (int(state[name]) for name in ("read", "written", "uncounted"))
        self._dearest, self._reserved, self._silent = state["dearest"], state["reserved"], bool(state["silent"])


def describe_cost(read: int, written: int, uncounted: int, prices: Prices | None) -> dict[str, float | str]:
    """Return the figures of a run's cost so far; nothing for a scorer that was not asked, or counts no tokens."""
    if not read + written + uncounted:
        return {}
    tokens = {"reward/tokens_read": read, "reward/tokens_written": written, "reward/tokens_uncounted": uncounted}
    if prices is None:
        return {**tokens}
    return {**tokens, "reward/cost": "unknown" if uncounted else prices.of((read, written))}


def check_prices(reward: RewardNode, counts_tokens: bool) -> None:
    """Check that prices apply to a scorer, whose answers may count tokens, or raise `UserError`."""
    if reward.price_per_1k_tokens is not None and not counts_tokens:
        raise UserError(
            f"reward.price_per_1k_tokens: reward={reward.name} is paid by no tokens: leave it out.", code="key-unused"
        )
    for key in ("price_per_1k_written", "budget_money"):
        if reward.price_per_1k_tokens is None and getattr(reward, key) is not None:
            raise UserError(
                f"reward.{key} needs reward.price_per_1k_tokens, the price of 1000 tokens.", code="key-missing"
            )


def check_budget(reward: RewardNode, counts_tokens: bool) -> None:
    """Check that a budget can be enforced, because the server counts tokens, or raise `UserError`."""
    if reward.budget_money is not None and not counts_tokens:
        raise UserError(
            f"reward.budget_money={reward.budget_money:g}: the server does not count tokens (usage), so the "
            "cost is unknown. reward.budget limits the requests.",
            code="token-usage-missing",
        )
