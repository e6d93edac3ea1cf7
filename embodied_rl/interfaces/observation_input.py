"""Check and convert a policy's observation. Imports NumPy and the standard library only, so that a robot's computer can
check what it sends without torch.

Shapes: `n` rows, `h`, `w` pixels, `S` state entries.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE, UNITS, PolicyDescription
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Observation

_LAYOUT = ("C", "W")
"""Requirements of torch for arrays: contiguous, unlike mirrored pictures, and writeable."""
_HELP = "It says what to do, such as 'pick up the red cube'."


def read_observation(given: Mapping[str, Any], wanted: PolicyDescription) -> tuple[Observation, bool]:
    """Check the observation given to a policy, and convert it.

    Args:
        given: `images/<camera>` uint8 [h, w, 3] for each camera (or `images`, a mapping of them), `state` [S] or a
            mapping of its names, `prompt` a text; or all of them with n rows. `state_units` is optional.
        wanted: description of the policy.

    Returns:
        The observation, and whether it had no axis of rows.

    Raises:
        UserError: an entry is missing, unknown, or of another size, type or unit; the message names it.
    """
    plain = _flatten(given)
    known = (*wanted.keys, UNITS)
    if unknown := [key for key in plain if key not in known]:
        raise UserError(
            f"The observation has {unknown[0]!r}, which the policy does not take: {_list(wanted.keys)}.",
            code="observation-entry-unknown",
        )
    if missing := [key for key in wanted.keys if key not in plain]:
        raise UserError(
            f"The observation lacks {missing[0]!r}: the policy takes {_list(wanted.keys)}.",
            code="observation-entry-missing",
        )
    units = plain.get(UNITS, wanted.state_units)
    if not isinstance(units, str) or units != wanted.state_units:
        raise UserError(
            f"The state is in {ascii(units)[:40]}: convert it, the policy takes {wanted.state_units}.",
            code="state-units-differ",
        )
    state, single = _read_state(plain[STATE], wanted.state_names)
    prompts = _read_prompts(plain[PROMPT], len(state), single, wanted)
    images = {
        name: _read_image(plain[IMAGES + name], name, size, len(state), single) for name, size in wanted.cameras.items()
    }
    return Observation(images, state, prompts), single


def _flatten(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries with `images` expanded to `images/<camera>`."""
    if not hasattr(given, "keys"):
        raise UserError(
            f"An observation is a mapping of names, not {type(given).__name__}.", code="observation-invalid"
        )
    plain = dict(given)
    inner: Any = plain.pop(IMAGES.rstrip("/"), {})
    if not isinstance(inner, Mapping):
        raise UserError("images is a mapping of cameras, uint8 [height, width, 3] each.", code="observation-invalid")
    cameras = {f"{IMAGES}{name}": image for name, image in cast(Mapping[str, Any], inner).items()}
    if twice := [name for name in cameras if name in plain]:
        raise UserError(
            f"The observation has {twice[0]!r} twice, once within images: leave one out.",
            code="observation-entry-twice",
        )
    return plain | cameras


def _read_state(given: Any, names: tuple[str, ...]) -> tuple[NDArray[np.float32], bool]:
    """Return the state [n, S], and whether it had no axis of rows."""
    if isinstance(given, Mapping):
        given = _join_state(cast(Mapping[str, Any], given), names)
    state = as_array(given, STATE)
    if state.dtype.kind not in "fiu" or state.ndim not in (1, 2) or state.shape[-1] != len(names) or not state.size:
        found = f"{state.dtype} {list(state.shape)}"
        raise UserError(
            f"state is {found}; the policy takes {len(names)} numbers: {_list(names)}; or rows of them.",
            code="state-invalid",
        )
    single = state.ndim == 1
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinity
        rows: NDArray[np.float32] = np.require(state, np.float32, _LAYOUT)
    if not np.isfinite(rows).all():
        bad = names[int(np.argwhere(~np.isfinite(rows))[0][-1])]
        raise UserError(f"state has NaN or infinity in {bad!r}: wait for a measurement.", code="state-not-finite")
    return (rows[None] if single else rows), single


def _join_state(entries: Mapping[str, Any], names: tuple[str, ...]) -> NDArray[Any]:
    if set(entries) != set(names):
        raise UserError(
            f"state has the entries {_list(map(str, entries))}; the policy takes {_list(names)}.", code="state-invalid"
        )
    parts = {name: as_array(entries[name], f"state {name!r}") for name in names}
    for name, part in parts.items():
        if part.dtype.kind not in "fiu" or part.shape != parts[names[0]].shape:
            found = f"{part.dtype} {list(part.shape)}"
            raise UserError(
                f"state {name!r} is {found}; each entry is a number, or as many as there are rows.",
                code="state-invalid",
            )
    return np.stack(list(parts.values()), axis=-1)


def _read_prompts(given: Any, rows: int, single: bool, wanted: PolicyDescription) -> tuple[str, ...]:
    prompts = [given] if isinstance(given, str) else _list_texts(given)
    if prompts is None or len(prompts) != rows or (single and not isinstance(given, str)):
        raise UserError(
            "prompt is one text" + (". " if single else f" for each of {rows} rows, in a list. ") + _HELP,
            code="prompt-invalid",
        )
    for text in prompts:
        if not text.strip():
            raise UserError(f"prompt is empty. {_HELP}", code="prompt-invalid")
        words = text.lower().split()
        unknown = [word for word in words if word not in wanted.words]
        if wanted.words and unknown:
            listed = ", ".join(wanted.words)
            raise UserError(
                f"prompt: the policy does not know the word {unknown[0][:40]!r}; it knows {listed}.",
                code="prompt-word-unknown",
            )
        if wanted.words and len(words) > wanted.prompt_length:
            raise UserError(
                f"prompt has {len(words)} words; the policy reads at most {wanted.prompt_length}.",
                code="prompt-too-long",
            )
    return tuple(prompts)


def _list_texts(given: Any) -> list[str] | None:
    """Return a list of texts, or None for anything else."""
    listed = list(cast(Iterable[Any], given)) if isinstance(given, list | tuple) else []
    return [str(text) for text in listed] if listed and all(isinstance(text, str) for text in listed) else None


def _read_image(given: Any, name: str, size: tuple[int, int], rows: int, single: bool) -> NDArray[np.uint8]:
    image = as_array(given, f"{IMAGES}{name}")
    shape = (*size, 3) if single else (rows, *size, 3)
    if image.dtype != np.uint8:
        raise UserError(
            f"{IMAGES}{name} is {image.dtype}: the policy takes uint8, 0 … 255. Convert it.", code="image-invalid"
        )
    if image.shape != shape:
        raise UserError(
            f"{IMAGES}{name} is {list(image.shape)}; the policy takes {list(shape)}, RGB. Resize it.",
            code="image-invalid",
        )
    laid = np.require(image, np.uint8, _LAYOUT)
    return laid[None] if single else laid


def as_array(given: Any, name: str) -> NDArray[Any]:
    """Convert a value to an array.

    Raises:
        UserError: it cannot be converted, such as lists of several lengths, or a tensor on a GPU.
    """
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(
            f"{name} is not an array: {' '.join(str(error).split())[:200]}", code="observation-invalid"
        ) from None


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
