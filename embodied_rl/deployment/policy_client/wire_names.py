"""Names of observation entries on the wire, where they differ from ours; they are configured, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_rl.interfaces.description import STATE
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.observation_input import as_array


@dataclass(frozen=True)
class WireNames:
    """Mapping of our names to names on the wire.

    Attributes:
        given: such as {"images/front": "observation/image"}; other entries keep our name. The state may be joined from
            several: "observation/joint_position:7+observation/gripper_position:1". Only the sender needs the sizes.
        ignored: wire names to leave out.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()

    def check(self, keys: Sequence[str], option: str) -> None:
        """Raise `UserError` if the policy's observations, of these keys, lack an entry; `option` is for the message."""
        if unknown := [name for name in self.given if name not in keys]:
            raise UserError(
                f"{option}: the policy has no {unknown[0]!r}; it takes {', '.join(keys)}.", code="key-unknown"
            )

    def to_ours(self, theirs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a message by our names; nested maps `a: {b: …}` but `state` become `a/b`."""
        plain = {name: value for name, value in _flatten(theirs).items() if name not in self.ignored}
        ours: dict[str, Any] = {}
        parts = {name: _parse_sizes(text) for name, text in self.given.items()}
        for name, sizes in parts.items():
            if plain.keys() >= sizes.keys():
                single, *more = (plain[part] for part in sizes)
                ours[name] = _join_parts({part: plain[part] for part in sizes}, sizes) if more else single
        taken = {part for sizes in parts.values() for part in sizes}
        rest = {name: value for name, value in plain.items() if name not in taken}
        if twice := [name for name in ours if name in rest]:
            raise UserError(
                f"The observation has both {twice[0]!r} and {self.given[twice[0]]!r}: leave one out.",
                code="observation-invalid",
            )
        return rest | ours

    def to_theirs(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of an observation by their names on the wire.

        Raises:
            UserError: a joined state cannot be split.
        """
        theirs: dict[str, Any] = {}
        for name, value in ours.items():
            sizes = _parse_sizes(self.given.get(name, name))
            if len(sizes) == 1:
                theirs |= dict.fromkeys(sizes, value)
                continue
            array, given = as_array(value, STATE), [size for size in sizes.values() if size is not None]
            if len(given) < len(sizes):
                example = f"{next(iter(sizes))}:2"
                raise UserError(f"state: give the size of each name, such as {example}.", code="state-invalid")
            if array.dtype.kind not in "fiu" or array.shape[-1:] != (sum(given),):
                raise UserError(
                    f"state is {array.dtype} {list(array.shape)}; {', '.join(sizes)} have {sum(given)} entries.",
                    code="state-invalid",
                )
            theirs |= dict(zip(sizes, np.split(array, np.cumsum(given)[:-1], axis=-1), strict=True))
        return theirs


def _parse_sizes(text: str) -> dict[str, int | None]:
    """Return the names of `a:7+b:1` with their sizes; None for a name without size."""
    found: dict[str, int | None] = {}
    for part in text.split("+"):
        name, _, size = part.rpartition(":")
        found |= {name: int(size)} if name and size.isascii() and size.isdigit() else {part: None}
    return found


def _flatten(group: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in group.items():
        if isinstance(value, Mapping) and before + name != STATE:  # a state may be a map of named entries
            inner = _flatten(value, f"{before}{name}/")
        else:
            inner = {f"{before}{name}": value}
        if twice := [each for each in inner if each in found]:
            raise UserError(
                f"The observation has {twice[0]!r} twice, once within a nested map: leave one out.",
                code="observation-invalid",
            )
        found |= inner
    return found


def _join_parts(parts: Mapping[str, Any], sizes: Mapping[str, int | None]) -> Any:
    """Return the concatenation of the parts of a state."""
    arrays = {name: np.atleast_1d(as_array(part, STATE)) for name, part in parts.items()}
    if len({(array.shape[:-1], array.dtype.kind in "fiu") for array in arrays.values()}) > 1:
        found = " and ".join(f"{array.dtype} {list(array.shape)}" for array in arrays.values())
        raise UserError(f"state: its parts are {found}; they must be numbers or rows of numbers.", code="state-invalid")
    for name, array in arrays.items():
        if sizes[name] not in (None, array.shape[-1]):
            raise UserError(f"state: {name!r} has {array.shape[-1]} entries, not {sizes[name]}.", code="state-invalid")
    return np.concatenate(list(arrays.values()), axis=-1)
