"""Numbers in messages: field paths in the robot's file, checks against message types, and readers."""

import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from embodied_rl.deployment.robots.description import Term
from embodied_rl.deployment.transport.messages import ARRAY, BASE, NAME, SEQUENCE, Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import make_printable

NAMES = ("name", "joint_names")
"""Fields with the names of list entries, in JointState and JointTrajectory."""

LONGEST = 600
"""Characters of an error about a message."""
_TERM = re.compile(
    r"(?:(?P<factor>[-+]?[0-9][0-9.eE+-]*)\s*\*\s*|(?P<sign>-))?(?P<topic>[A-Za-z_]\w*)\.(?P<field>\S.*)"
)
_STEP = re.compile(r"(?P<name>[a-z][a-z0-9_]*)(?:\[(?P<entry>[^\[\]]+)\])?")


class UnusableMessageError(UserError):
    """A message cannot be used.

    Args:
        problem: is shortened and made printable, because it may quote an untrusted message.
    """

    def __init__(self, problem: str) -> None:
        text = problem if len(problem) <= LONGEST else f"{problem[:LONGEST]}…"
        super().__init__(make_printable(text), code="message-unusable")


def parse_term(text: str) -> Term:
    """Parse a term, such as -tool.pose.position.x or 0.001 * joints.position[elbow]; raises UserError."""
    found = _TERM.fullmatch(text.strip())
    if found is None:
        raise UserError(
            f"{text!r} is not a number of a message: write <topic>.<field>, such as tool.pose.position.x.",
            code="field-syntax-invalid",
        )
    split_field(found["field"])
    scale = -1.0 if found["sign"] else 1.0
    if found["factor"] is not None:
        try:
            scale = float(found["factor"])
        except ValueError:
            scale = 0.0
        if not 0 < abs(scale) < math.inf:
            raise UserError(
                f"{text!r}: {found['factor']!r} is not a factor, such as 0.001.", code="field-factor-invalid"
            )
    return Term(found["topic"], found["field"], scale)


def split_field(field: str) -> list[tuple[str, str | None]]:
    """Return the steps of a field path as (name, text in brackets or None); raises UserError."""
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
    raise UserError(
        f"{field!r} is not a field path: write it as pose.position.x, or position[elbow] for a joint by its name.",
        code="field-syntax-invalid",
    )


def is_number(entry: str) -> bool:
    """Return whether a list entry is given by its number; joint names may be any other text."""
    return re.fullmatch(r"[0-9]{1,9}", entry) is not None


def check_field(messages: Messages, type_name: str, field: str) -> None:
    """Check that a message type has a number at a path; raises UserError with the existing fields."""
    kind: Any = (NAME, type_name)
    for name, entry in split_field(field):
        if kind[0] != NAME:
            raise UserError(f"{field!r}: {name!r} is not a message and has no fields.", code="field-unknown")
        fields = dict(messages.find_fields(kind[1]))
        if name not in fields:
            raise UserError(f"{kind[1]} has no field {name!r}; it has {', '.join(fields)}.", code="field-unknown")
        owner, kind = kind[1], fields[name]
        listed, named = kind[0] in (ARRAY, SEQUENCE), not fields.keys().isdisjoint(NAMES)
        if listed and entry is None:
            raise UserError(
                f"{name!r} of {owner} is a list: name an entry, such as {name}[<joint or number>].",
                code="field-entry-missing",
            )
        if entry is None:
            continue
        if not listed:
            raise UserError(f"{name!r} of {owner} is not a list: leave [{entry}] out.", code="field-not-a-list")
        if not named and not is_number(entry):
            raise UserError(
                f"{owner} has no joint names: write a number in {name}[{entry}].", code="field-entry-invalid"
            )
        if named and is_number(entry):
            raise UserError(
                f"{name}[{entry}]: {owner} names its joints, and their order may change: write a name.",
                code="field-entry-invalid",
            )
        kind = kind[1][0]
    if kind[0] != BASE or kind[1][0] == "string":
        raise UserError(f"{field!r} of {type_name} is not a number: name one of its fields.", code="field-not-a-number")


def make_reader(field: str, topic: str) -> Callable[[Any], float]:
    """Return a function that reads the number at a path (`description.Term`) from a decoded message.

    The function raises `UnusableMessageError`: a joint is missing or listed twice, the list is too short, or the number
    is not finite. `topic` is for these errors.
    """
    steps = [
        operator.attrgetter(name) if entry is None else EntryReader(name, entry, topic)
        for name, entry in split_field(field)
    ]

    def read(message: Any) -> float:
        for step in steps:
            message = step(message)
        if not math.isfinite(message):
            raise UnusableMessageError(f"{topic}: {field} is {message}, not a finite number.")
        return float(message)

    return read


class EntryReader:
    """Reads an entry of a list in a message, by joint name or number; the index of a name is kept while names stay."""

    def __init__(self, name: str, entry: str, topic: str) -> None:
        self._name, self._entry, self._topic = name, entry, topic
        self._names: Sequence[str] = ()
        self._place = int(entry) if is_number(entry) else -1

    def __call__(self, message: Any) -> Any:
        """Return the entry; raises `UnusableMessageError`: no joint of that name, or two, or the list is too short."""
        values = getattr(message, self._name)
        names = getattr(message, "name", None)
        if names is None:
            names = getattr(message, "joint_names", None)
        if names is not None and names != self._names:
            if (found := list(names).count(self._entry)) != 1:
                problem = "is not one of its joints" if not found else f"is listed {found} times"
                shown = ", ".join(name[:40] for name in names[:20]) or "it has none"
                shown = f"{shown} … ({len(names)})" if len(names) > 20 else shown
                raise UnusableMessageError(f"{self._topic}: {self._entry} {problem}: {shown}.")
            self._place, self._names = list(names).index(self._entry), list(names)
        if self._place >= len(values):
            raise UnusableMessageError(
                f"{self._topic}: {self._name} has {len(values)} entries; that of {self._entry} is missing."
            )
        return values[self._place]
