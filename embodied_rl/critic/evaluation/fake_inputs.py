"""Simulator specification for probing a server without a simulator: cameras, state and words.

`critic serve` advertises the inputs of its model in the model list (`asked_with`); other servers do not.
"""

from collections.abc import Mapping
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from embodied_rl.judge.prompts.prompt import list_prompts

WORDS = "pick up the red cube"
MOST_CAMERAS, MOST_PIXELS, MOST_NAMES, LONGEST_NAME = 8, 4096, 1000, 100
"""Limits of what a server may ask for."""


def make_fake_spec(cameras: int, size: int) -> SimulatorSpec:
    """Return a specification with a number of cameras with images of `size` × `size` pixels."""
    return _make(tuple(Camera(f"camera {number}", size, size) for number in range(cameras)), (), tuple(WORDS.split()))


def read_advertised_spec(told: Mapping[str, Any]) -> SimulatorSpec | None:
    """Return the specification that a server advertises for its model; None if it advertises no cameras.

    Raises:
        UserError: the advertised inputs are invalid.
    """
    if "cameras" not in told:
        return None
    cameras, state, words = told["cameras"], told.get("state", []), told.get("words", [])
    if not (_is_sizes(cameras) and _is_names(state) and _is_names(words)):
        raise UserError(
            "the server's model list has an invalid `asked_with`; `critic serve` defines its format.",
            code="server-inputs-invalid",
        )
    seen = tuple(Camera(name, height, width) for name, (height, width) in cameras.items())
    return _make(seen, tuple(state), tuple(words) or tuple(WORDS.split()))


def read_prompt(told: Mapping[str, Any]) -> str | None:
    """Return the built-in prompt that a server advertises; None if it names none."""
    prompt = told.get("prompt")
    return prompt if prompt in list_prompts() else None


def choose_words(spec: SimulatorSpec) -> str:
    """Return an instruction of known words."""
    known = set(spec.words)
    return WORDS if known.issuperset(WORDS.split()) else spec.words[0]


def _make(cameras: tuple[Camera, ...], state: tuple[str, ...], words: tuple[str, ...]) -> SimulatorSpec:
    return SimulatorSpec(cameras, state, (), (), (), 1.0, 1, (Task("examined", "examined"),), words=words)


def _is_sizes(told: object) -> bool:
    if not isinstance(told, dict) or not 0 < len(told) <= MOST_CAMERAS or not _is_names(list(told)):
        return False
    return all(isinstance(size, list) and len(size) == 2 and all(map(_is_side, size)) for size in told.values())


def _is_side(told: object) -> bool:
    return type(told) is int and 0 < told <= MOST_PIXELS


def _is_names(told: object) -> bool:
    return (
        isinstance(told, list)
        and len(told) <= MOST_NAMES
        and all(isinstance(name, str) and 0 < len(name) <= LONGEST_NAME for name in told)
    )
