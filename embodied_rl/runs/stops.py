"""Record of the signals that asked this process to stop, for its exit code."""

_received: list[int] = []


def note_stop(number: int) -> None:
    """Record a signal; handlers that end a command in order call this."""
    _received.append(number)


def count_stops() -> int:
    """Return how many signals were recorded in this process."""
    return len(_received)


def find_stop_code(since: int) -> int | None:
    """Return the exit code of the first signal after the first `since` ones, as shells count: 128 + its number."""
    return 128 + _received[since] if len(_received) > since else None
