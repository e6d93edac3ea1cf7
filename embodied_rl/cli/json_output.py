"""What `--json` prints: a command offers its result, and everything else that it prints goes to standard error."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

_offered: list[Any] | None = None
"""What was offered since `printed_as_json` began; None outside of it."""


def offer_json(content: Any) -> None:
    """Let `--json` print this as the command's result, if it was typed; the last one offered counts."""
    if _offered is not None:
        _offered.append(content)


@contextmanager
def printed_as_json() -> Iterator[None]:
    """Print what the commands in this context offer as one JSON document, and nothing else, to standard output."""
    global _offered
    _offered = []
    try:
        with redirect_stdout(sys.stderr):
            yield
        for content in _offered[-1:]:
            print(json.dumps(content, indent=1, ensure_ascii=False))
    finally:
        _offered = None
