"""How an observation's entries are called on the wire, where that differs from our names: said, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_rl.interfaces.description import STATE
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import as_array


@dataclass(frozen=True)
class WireNames:
    """Our name → theirs.

    Attributes:
        given: such as {"images/front": "observation/image"}; what is not here has our name. For the state several names
            may be joined: "observation/joint_position:7+observation/gripper_position:1". A receiver needs no sizes.
        ignored: names of theirs that are left out.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def check(self, keys: Sequence[str], option: str) -> None:
        """Check that the names are of a policy.

        Args:
            keys: of the policy's observations.
            option: who gave the names, for messages.

        Raises:
            UserError: an entry is none of the policy's.
        """
        if unknown := [name for name in self.given if name not in keys]:
            raise UserError(f"{option}: the policy has no {unknown[0]!r}; it takes {', '.join(keys)}.")

    def to_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a message's entries by our names; groups of theirs are spread, `a: {b: …}` to `a/b`, but `state`."""
        plain = {name: value for name, value in _spread(theirs).items() if name not in self.ignored}
        ours: dict[str, Any] = {}
        parts = {name: _find_sizes(text) for name, text in self.given.items()}
        for name, sizes in parts.items():
            if plain.keys() >= sizes.keys():
                ours[name] = _join({part: plain[part] for part in sizes}, sizes)
        taken = {part for sizes in parts.values() for part in sizes}
        rest = {name: value for name, value in plain.items() if name not in taken}
        if twice := [name for name in ours if name in rest]:
            raise UserError(f"The observation has {twice[0]!r} beside {self.given[twice[0]]!r}: leave one out.")
        return rest | ours

    def to_theirs(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Return an observation's entries by their names.

        Raises:
            UserError: a joined state cannot be split.
        """
        theirs: dict[str, Any] = {}
        for name, value in ours.items():
            sizes = _find_sizes(self.given.get(name, name))
            theirs |= dict.fromkeys(sizes, value) if len(sizes) == 1 else _split(value, sizes)
        return theirs


def _find_sizes(text: str) -> dict[str, int | None]:
    """Return the names of `a:7+b:1` with their sizes; None where none is given."""
    found: dict[str, int | None] = {}
    for part in text.split("+"):
        name, _, size = part.rpartition(":")
        found |= {name: int(size)} if name and size.isascii() and size.isdigit() else {part: None}
    return found


def _split(value: Any, sizes: Mapping[str, int | None]) -> dict[str, Any]:
    array, given = as_array(value, STATE), [size for size in sizes.values() if size is not None]
    if len(given) < len(sizes):
        raise UserError(f"state: say how many entries each name has, such as {next(iter(sizes))}:2.")
    if array.dtype.kind not in "fiu" or array.shape[-1:] != (sum(given),):
        raise UserError(f"state is {array.dtype} {list(array.shape)}; {', '.join(sizes)} have {sum(given)} entries.")
    return dict(zip(sizes, np.split(array, np.cumsum(given)[:-1], axis=-1), strict=True))


def _spread(group: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in group.items():
        if isinstance(value, Mapping) and before + name != STATE:  # a state may be a map of its names
            inner = _spread(value, f"{before}{name}/")
        else:
            inner = {f"{before}{name}": value}
        if twice := [each for each in inner if each in found]:
            raise UserError(f"The observation has {twice[0]!r} twice, once within a group: leave one out.")
        found |= inner
    return found


def _join(parts: Mapping[str, Any], sizes: Mapping[str, int | None]) -> Any:
    """Return one part as it is, several as one array.

    Raises:
        UserError: they are no arrays, of other sizes, or do not fit together.
    """
    if len(parts) == 1:
        return next(iter(parts.values()))
    arrays = {name: np.atleast_1d(as_array(part, STATE)) for name, part in parts.items()}
    if len({(array.shape[:-1], array.dtype.kind in "fiu") for array in arrays.values()}) > 1:
        found = " and ".join(f"{array.dtype} {list(array.shape)}" for array in arrays.values())
        raise UserError(f"state: its parts are {found}; they are numbers, or rows of them.")
    for name, array in arrays.items():
        if sizes[name] not in (None, array.shape[-1]):
            raise UserError(f"state: {name!r} has {array.shape[-1]} entries, not {sizes[name]}.")
    return np.concatenate(list(arrays.values()), axis=-1)
