"""How an observation's entries are called on the wire, where that differs from our names: said, never guessed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from embodied_rl.interfaces.description import STATE
from embodied_rl.interfaces.errors import UserError


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
        return {name: value for name, value in plain.items() if name not in taken} | ours

    def to_theirs(self, ours: Mapping[str, Any]) -> dict[str, Any]:
        """Return an observation's entries by their names."""
        if joined := [text for text in self.given.values() if "+" in text]:
            raise UserError(f"{joined[0]!r}: a client sends the state under one name.")
        return {self.given.get(name, name): value for name, value in ours.items()}


def _spread(group: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in group.items():
        if isinstance(value, Mapping) and before + name != STATE:  # a state may be a map of its names
            found |= _spread(value, f"{before}{name}/")
        else:
            found[f"{before}{name}"] = value
    return found


def _join(parts: Sequence[Any]) -> Any:
    return parts[0] if len(parts) == 1 else np.concatenate([np.atleast_1d(part) for part in parts], axis=-1)
