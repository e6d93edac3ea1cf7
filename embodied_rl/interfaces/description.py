"""What a policy expects and returns, for whoever uses it outside of this library. NumPy and the standard library alone,
so that a robot's computer reads it without torch.

Shapes: `n` rows, `h`, `w` pixels, `S` state entries, `A` action entries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.robot import Body
from embodied_rl.interfaces.sim import Observation

IMAGES, STATE, PROMPT, UNITS = "images/", "state", "prompt", "state_units"
"""The keys of an observation: `images/<camera>`, `state`, `prompt`; and the state's units, where somebody says so."""

SI = "SI"
"""Metres, radians, seconds, newtons, and 0 … 1 for what has no unit."""


@dataclass(frozen=True)
class PolicyDescription:
    """What a policy expects of an observation, and what its actions mean.

    Attributes:
        cameras: name → (height, width) of its images, which are uint8 RGB.
        state_names: names of the S entries of the state, in order.
        state_units: of the state: SI.
        action_names: names of the A entries of an action, in order.
        action_low, action_high: limits of an action in the robot's units, length A.
        control_hz: actions per second; None if the policy's file does not say.
        horizon: actions that the policy predicts at once.
        executed: how many of them one call returns, and are executed before the next call.
        words: all words that a prompt may have; empty for policies with a tokenizer, which take any text.
        prompt_length: most words of a prompt, or most tokens.
        prefix_trained_to: how many actions that are already committed the policy was trained to continue; 0: none.
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
    def from_dict(said: Mapping[str, Any]) -> "PolicyDescription":
        """Create a description from what a server said of itself.

        Raises:
            UserError: an entry is missing, or has another type.
        """
        try:
            given = {item.name: said[item.name] for item in fields(PolicyDescription)}
            given["cameras"] = {str(name): (int(size[0]), int(size[1])) for name, size in given["cameras"].items()}
            for name in ("state_names", "action_names", "words"):
                given[name] = tuple(map(str, given[name]))
            for name in ("action_low", "action_high"):
                given[name] = tuple(map(float, given[name]))
            for name in ("horizon", "executed", "prompt_length", "prefix_trained_to"):
                given[name] = int(given[name])
            given["control_hz"] = None if given["control_hz"] is None else float(given["control_hz"])
            return PolicyDescription(**given)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise UserError(f"What is said of the policy is incomplete: {type(error).__name__}: {error}.") from None

    def check_body(self, body: Body, words: Sequence[str] = ()) -> None:
        """Check that the policy was made for a robot.

        Raises:
            UserError: cameras, state, actions, limits, rate or words differ; the message names them.
        """
        for name, size in self.cameras.items():
            if body.cameras.get(name) != size:
                raise UserError(f"The policy sees camera {name!r} at {size}; the robot has {dict(body.cameras)}.")
        for entry in ("state_names", "action_names", "action_low", "action_high"):
            mine, other = getattr(self, entry), tuple(getattr(body, entry))
            if mine != other:
                raise UserError(f"The policy was made for another robot: its {entry} are {mine}, here {other}.")
        if self.control_hz not in (None, body.control_hz):
            raise UserError(f"The policy acts {self.control_hz:g} times a second, the robot {body.control_hz:g} times.")
        unknown = sorted({word.lower() for word in words} - set(self.words))
        if unknown and self.words:
            raise UserError(f"The policy was trained without the words {', '.join(unknown)}.")


def read_observation(given: Mapping[str, Any], wanted: PolicyDescription) -> tuple[Observation, bool]:
    """Check an observation that somebody hands to a policy, and convert it.

    Args:
        given: `images/<camera>` uint8 [h, w, 3] for each camera (or `images`, a mapping of them), `state` [S] or a
            mapping of its names, `prompt` a text; or all of them with n rows before that. `state_units` may be said.
        wanted: of the policy.

    Returns:
        The observation, and whether it had no axis of rows.

    Raises:
        UserError: an entry is missing, unknown, or of another size, type or unit; the message says which.
    """
    plain = _flatten(given)
    known = (*wanted.keys, UNITS)
    if unknown := [key for key in plain if key not in known]:
        raise UserError(f"The observation has {unknown[0]!r}, which the policy does not take: {_list(wanted.keys)}.")
    if missing := [key for key in wanted.keys if key not in plain]:
        raise UserError(f"The observation lacks {missing[0]!r}: the policy takes {_list(wanted.keys)}.")
    if plain.get(UNITS, wanted.state_units) != wanted.state_units:
        raise UserError(f"The state is in {plain[UNITS]!r}: convert it, the policy takes {wanted.state_units}.")
    state, single = _read_state(plain[STATE], wanted.state_names)
    prompts = _read_prompts(plain[PROMPT], len(state), single, wanted)
    images = {
        name: _read_image(plain[IMAGES + name], name, size, len(state), single) for name, size in wanted.cameras.items()
    }
    return Observation(images, state, prompts), single


def _flatten(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries with `images` spread to `images/<camera>`."""
    if not isinstance(given, Mapping):
        raise UserError(f"An observation is a mapping of names, not {type(given).__name__}.")
    plain = dict(given)
    inner = plain.pop(IMAGES.rstrip("/"), {})
    if not isinstance(inner, Mapping):
        raise UserError("images is a mapping of cameras, uint8 [height, width, 3] each.")
    return plain | {f"{IMAGES}{name}": image for name, image in inner.items()}


def _read_state(given: Any, names: tuple[str, ...]) -> tuple[NDArray[np.float32], bool]:
    """Return the state [n, S], and whether it had no axis of rows."""
    if isinstance(given, Mapping):
        if sorted(map(str, given)) != sorted(names):
            raise UserError(f"state has the entries {_list(map(str, given))}; the policy takes {_list(names)}.")
        given = np.stack([np.asarray(given[name]) for name in names], axis=-1)
    state = np.asarray(given)
    if state.dtype.kind not in "fiu" or state.ndim not in (1, 2) or state.shape[-1] != len(names) or not state.size:
        found = f"{state.dtype} {list(state.shape)}"
        raise UserError(f"state is {found}; the policy takes {len(names)} numbers: {_list(names)}; or rows of them.")
    if not np.isfinite(state).all():
        bad = names[int(np.argwhere(~np.isfinite(state))[0][-1])]
        raise UserError(f"state has NaN or infinity in {bad!r}: wait for a measurement.")
    single = state.ndim == 1
    return np.ascontiguousarray(state.reshape(-1, len(names)), np.float32), single


def _read_prompts(given: Any, rows: int, single: bool, wanted: PolicyDescription) -> tuple[str, ...]:
    prompts = (given,) if isinstance(given, str) else given
    fits = isinstance(prompts, list | tuple) and all(isinstance(text, str) for text in prompts)
    if not fits or len(prompts) != rows or (single and not isinstance(given, str)):
        raise UserError("prompt is one text" + (". " if single else f" for each of {rows} rows, in a list. ") + _HELP)
    for text in prompts:
        if not text.strip():
            raise UserError(f"prompt is empty. {_HELP}")
        words = text.lower().split()
        if wanted.words and (unknown := [word for word in words if word not in wanted.words]):
            listed = ", ".join(wanted.words)
            raise UserError(f"prompt: the policy does not know the word {unknown[0][:40]!r}; it knows {listed}.")
        if wanted.words and len(words) > wanted.prompt_length:
            raise UserError(f"prompt has {len(words)} words; the policy reads at most {wanted.prompt_length}.")
    return tuple(prompts)


_HELP = "It says what to do, such as 'pick up the red cube'."


def _read_image(given: Any, name: str, size: tuple[int, int], rows: int, single: bool) -> NDArray[np.uint8]:
    image = np.asarray(given)
    shape = (*size, 3) if single else (rows, *size, 3)
    if image.dtype != np.uint8:
        raise UserError(f"{IMAGES}{name} is {image.dtype}: the policy takes uint8, 0 … 255. Convert it.")
    if image.shape != shape:
        raise UserError(f"{IMAGES}{name} is {list(image.shape)}; the policy takes {list(shape)}, RGB. Resize it.")
    return image[None] if single else image


def _list(names: Any) -> str:
    return ", ".join(names)
