"""The inputs and outputs of a policy, for users outside of this library. Imports the standard library only.

Shapes: `S` state entries, `A` action entries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.robot import Body

IMAGES, STATE, PROMPT, UNITS = "images/", "state", "prompt", "state_units"
"""The keys of an observation: `images/<camera>`, `state`, `prompt`; and optionally the state's units."""

SI = "SI"
"""Metres, radians, seconds, newtons, and 0 … 1 for quantities without a unit."""


@dataclass(frozen=True)
class PolicyDescription:
    """The entries of a policy's observations, and the meaning of its actions.

    Attributes:
        cameras: name → (height, width) of its images, which are uint8 RGB.
        state_names: names of the S entries of the state, in order.
        state_units: of the state: SI.
        action_names: names of the A entries of an action, in order.
        action_low, action_high: limits of an action in the robot's units, length A.
        control_hz: actions per second; None if the policy's file does not store it.
        horizon: actions that the policy predicts at once.
        executed: number of them that one call returns, and that are executed before the next call.
        words: all words that a prompt may have; empty for policies with a tokenizer, which take any text.
        prompt_length: most words of a prompt, or most tokens.
        prefix_trained_to: most committed actions that the policy was trained to continue; 0: none.
        normalisation: SHA-256 of the statistics, names and limits between the robot and the network.
    """

    cameras: Mapping[str, tuple[int, int]]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    control_hz: float | None
    horizon: int
    executed: int
    words: tuple[str, ...]
    prompt_length: int
    prefix_trained_to: int
    normalisation: str
    state_units: str = SI

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys of an observation."""
        return (*(IMAGES + name for name in self.cameras), STATE, PROMPT)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for messages."""
        return asdict(self)

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> "PolicyDescription":
        """Create a description from a server's metadata.

        Raises:
            UserError: an entry is missing, or has another type.
        """
        try:
            given = {item.name: content[item.name] for item in fields(PolicyDescription)}
            given["cameras"] = {str(name): (int(size[0]), int(size[1])) for name, size in given["cameras"].items()}
            for name in ("state_names", "action_names", "words"):
                given[name] = tuple(map(str, given[name]))
            for name in ("action_low", "action_high"):
                given[name] = tuple(map(float, given[name]))
            for name in ("horizon", "executed", "prompt_length", "prefix_trained_to"):
                given[name] = int(given[name])
            given["control_hz"] = None if given["control_hz"] is None else float(given["control_hz"])
            return PolicyDescription(**given)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
            raise UserError(
                f"The description of the policy is incomplete: {type(error).__name__}: {error}.",
                code="description-incomplete",
            ) from None

    def check_body(self, body: Body, words: Sequence[str] = ()) -> None:
        """Check that the policy was made for a robot.

        Raises:
            UserError: cameras, state, actions, limits, rate or words differ; the message names them.
        """
        for name, size in self.cameras.items():
            if body.cameras.get(name) != size:
                raise UserError(
                    f"The policy sees camera {name!r} at {size}; the robot has {dict(body.cameras)}.",
                    code="policy-does-not-fit",
                )
        for entry in ("state_names", "action_names", "action_low", "action_high"):
            mine, other = getattr(self, entry), tuple(getattr(body, entry))
            if mine != other:
                raise UserError(
                    f"The policy was made for another robot: its {entry} are {mine}, here {other}.",
                    code="policy-does-not-fit",
                )
        if self.control_hz not in (None, body.control_hz):
            raise UserError(
                f"The policy acts {self.control_hz:g} times a second, the robot {body.control_hz:g} times.",
                code="policy-does-not-fit",
            )
        unknown = sorted({word.lower() for word in words} - set(self.words))
        if unknown and self.words:
            raise UserError(
                f"The policy was trained without the words {', '.join(unknown)}.", code="policy-does-not-fit"
            )
