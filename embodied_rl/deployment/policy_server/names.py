"""How an observation's entries are called on the wire, where that differs from our names: said, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_rl.interfaces.description import STATE
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.given_observation import as_array


@dataclass(frozen=True)
class WireNames:
    """Our name → theirs.

    Attributes:
        given: such as {"images/front": "observation/image"}; what is not here has our name. For the state several names
            may be joined: "observation/joint_position+observation/gripper_position".
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
        for name, parts in ((name, text.split("+")) for name, text in self.given.items()):
            if all(part in plain for part in parts):
                ours[name] = _join([plain[part] for part in parts])
        taken = {part for text in self.given.values() for part in text.split("+")}
        rest = {name: value for name, value in plain.items() if name not in taken}
        if twice := [name for name in ours if name in rest]:
            raise UserError(f"The observation has {twice[0]!r} beside {self.given[twice[0]]!r}: leave one out.")
        return rest | ours

    def to_theirs(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Return an observation's entries by their names."""
        if joined := [text for text in self.given.values() if "+" in text]:
            raise UserError(f"{joined[0]!r}: a client sends the state under one name.")
        return {self.given.get(name, name): value for name, value in ours.items()}


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


def _join(parts: Sequence[Any]) -> Any:
    """Return one part as it is, several as one array.

    Raises:
        UserError: they are no arrays, or do not fit together.
    """
    if len(parts) == 1:
        return parts[0]
    arrays = [np.atleast_1d(as_array(part, STATE)) for part in parts]
    if len({(array.shape[:-1], array.dtype.kind in "fiu") for array in arrays}) > 1:
        found = " and ".join(f"{array.dtype} {list(array.shape)}" for array in arrays)
        raise UserError(f"state: its parts are {found}; they are numbers, or rows of them.")
    return np.concatenate(arrays, axis=-1)
