"""The order in which requests are answered, where not all of them can be."""

ENDS, FIRST = 0, 1
"""Priorities before all others: the last observations of episodes and rollouts; then the first ones of episodes."""
PROBE = 1 << 40
"""The priority after all others: nobody waits for it."""


def rank_decision(row: int, decisions: int) -> int:
    """Return the priority of row `row` of `decisions`, from coarse to fine: lower numbers are answered earlier.

    It is 2 plus the row's place in the bit-reversed order of rows, so any answered prefix is nearly an even grid. That
    is what holding the last score needs: a queue answered in the order of time would leave the whole end unanswered.
    """
    bits = max(1, (decisions - 1).bit_length())
    return 2 + int(format(row, f"0{bits}b")[::-1], 2)
