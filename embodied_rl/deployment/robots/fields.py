"""Numbers inside of messages: which fields a type has, and reading one of them, joints by their names."""

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

from embodied_rl.deployment.robots.terms import is_number, split_field
from embodied_rl.deployment.transport.messages import ARRAY, BASE, NAME, SEQUENCE, Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.untrusted_files import make_printable

NAMES = ("name", "joint_names")
"""Fields that name the entries of a message's lists, as JointState and JointTrajectory have them."""


LONGEST = 600
"""Characters of what is said about a message."""


class UnusableMessageError(UserError):
    """A message cannot be used: what it lacks, or what is wrong in it.

    Args:
        problem: in words; what a stranger's message said in them is cut and made printable.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(make_printable(problem if len(problem) <= LONGEST else f"{problem[:LONGEST]}…"))


def check_field(messages: Messages, type_name: str, field: str) -> None:
    """Check that a type of message has a number at a path.

    Raises:
        UserError: it has not; the message says what it has there.
    """
    kind: Any = (NAME, type_name)
    for name, entry in split_field(field):
        if kind[0] != NAME:
            raise UserError(f"{field!r}: nothing lies below {name!r}, it is no message.")
        fields = dict(messages.find_fields(kind[1]))
        if name not in fields:
            raise UserError(f"{kind[1]} has no field {name!r}; it has {', '.join(fields)}.")
        kind = _enter(fields[name], name, entry, kind[1], any(each in fields for each in NAMES))
    if kind[0] != BASE or kind[1][0] == "string":
        raise UserError(f"{field!r} of {type_name} is no number: go on to one of its fields.")


def _enter(kind: Any, name: str, entry: str | None, type_name: str, named: bool) -> Any:
    listed = kind[0] in (ARRAY, SEQUENCE)
    if listed and entry is None:
        raise UserError(f"{name!r} of {type_name} is a list: say which entry, such as {name}[<joint or number>].")
    if not listed and entry is not None:
        raise UserError(f"{name!r} of {type_name} is no list: leave [{entry}] out.")
    if entry is None:
        return kind
    if not named and not is_number(entry):
        raise UserError(f"{type_name} names no joints: write a number in {name}[{entry}].")
    if named and is_number(entry):
        raise UserError(f"{name}[{entry}]: {type_name} names its joints, and their order may change: write a name.")
    return kind[1][0]


def make_reader(field: str, topic: str) -> Callable[[Any], float]:
    """Return a function that reads the number at a path from a decoded message.

    Args:
        field: see `description.Term`. topic: for messages of errors.

    Raises:
        UserError: no path. The function raises `UnusableMessageError`: a joint is missing or stands there twice, the
            list is too short, or the number is not finite.
    """
    steps = [_make_step(name, entry, topic) for name, entry in split_field(field)]

    def read(message: Any) -> float:
        for step in steps:
            message = step(message)
        if not math.isfinite(message):
            raise UnusableMessageError(f"{topic}: {field} is {message}: the robot's driver has to say a number.")
        return float(message)

    return read


def _make_step(name: str, entry: str | None, topic: str) -> Callable[[Any], Any]:
    take = operator.attrgetter(name)
    if entry is None:
        return take
    find = EntryFinder(entry, topic).find

    def step(message: Any) -> Any:
        values = take(message)
        place = find(message)
        if place >= len(values):
            raise UnusableMessageError(f"{topic}: {name} has {len(values)} entries, and that of {entry} is missing.")
        return values[place]

    return step


class EntryFinder:
    """Where an entry stands in a message's lists; remembered for as long as the message's names stay the same."""

    def __init__(self, entry: str, topic: str) -> None:
        self._entry, self._topic = entry, topic
        self._names: Sequence[str] = ()
        self._place = int(entry) if is_number(entry) else -1

    def find(self, message: Any) -> int:
        """Return the position of the entry.

        Raises:
            UnusableMessageError: no joint of that name, or two.
        """
        names = getattr(message, "name", None)
        if names is None:
            names = getattr(message, "joint_names", None)
        if names is None:
            return self._place
        if names != self._names:
            self._place, self._names = self._search(list(names)), list(names)
        return self._place

    def _search(self, names: list[str]) -> int:
        if (found := names.count(self._entry)) != 1:
            problem = "is not among its joints" if not found else f"stands {found} times among them"
            raise UnusableMessageError(f"{self._topic}: {self._entry} {problem}: {_list(names)}.")
        return names.index(self._entry)


def _list(names: list[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:20]) or "it has none"
    return f"{shown} … ({len(names)})" if len(names) > 20 else shown
