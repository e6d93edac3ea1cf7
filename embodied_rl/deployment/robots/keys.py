"""Checks of single keys of a robot's description; errors begin with the key."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError


@contextmanager
def name_key(where: str) -> Iterator[None]:
    """Prefix `UserError` messages with a key."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}", code=error.code) from None


def name_command(name: str) -> str:
    """Return the key of a command topic in a robot's file, by its name; empty: the main one."""
    return f"commands.{name}" if name else "command"


def check_positive(value: float, where: str) -> None:
    """Raise UserError unless a number is above 0 and finite."""
    if not 0 < value < math.inf:
        raise UserError(f"{where}={value:g} must be above 0.", code="value-out-of-range")


def check_known(name: str, known: Collection[str], where: str, what: str) -> None:
    """Raise UserError unless a name is among the known ones."""
    if name not in known:
        raise UserError(f"{where}: {name!r} is not {what}.{suggest_name(name, list(known))}", code="name-unknown")
