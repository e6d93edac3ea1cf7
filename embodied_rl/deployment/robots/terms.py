"""How a file writes a number of a message: <topic>.<field>, with a sign or a factor before it."""

import math
import re

from embodied_rl.deployment.robots.description import Term
from embodied_rl.interfaces.errors import UserError

_TERM = re.compile(
    r"(?:(?P<factor>[-+]?[0-9][0-9.eE+-]*)\s*\*\s*|(?P<sign>-))?(?P<topic>[A-Za-z_]\w*)\.(?P<field>\S.*)"
)
_STEP = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?:\[(?P<entry>[^\[\]]+)\])?")


def parse_term(text: str) -> Term:
    """Return the term that a text means, such as -tool.pose.position.x or 0.001 * joints.position[elbow].

    Raises:
        UserError: it means none.
    """
    found = _TERM.fullmatch(text.strip())
    if found is None:
        raise UserError(f"{text!r} is no number of a message: write <topic>.<field>, such as tool.pose.position.x.")
    split_field(found["field"])
    return Term(found["topic"], found["field"], _read_factor(text, found["factor"], found["sign"]))


def split_field(field: str) -> list[tuple[str, str | None]]:
    """Return the steps of a path: (name, what stands in brackets or None).

    Raises:
        UserError: it is no path.
    """
    steps: list[tuple[str, str | None]] = []
    rest = field
    while True:
        found = _STEP.match(rest)
        if found is None:
            break
        steps.append((found["name"], found["entry"]))
        rest = rest[found.end() :]
        if not rest:
            return steps
        if not rest.startswith("."):
            break
        rest = rest[1:]
    raise UserError(f"{field!r} is no field: write it as pose.position.x, or position[elbow] for a joint by its name.")


def is_number(entry: str) -> bool:
    """Whether the entry of a list is given by its number; joints' names may look like anything else."""
    return re.fullmatch(r"[0-9]{1,9}", entry) is not None


def _read_factor(text: str, factor: str | None, sign: str | None) -> float:
    if factor is None:
        return -1.0 if sign else 1.0
    try:
        found = float(factor)
    except ValueError:
        found = 0.0
    if not 0 < abs(found) < math.inf:
        raise UserError(f"{text!r}: {factor!r} is no factor, such as 0.001.")
    return found
