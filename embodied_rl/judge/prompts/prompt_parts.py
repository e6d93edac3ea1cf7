"""The parts of a prompt: texts with placeholders, and pictures of a request or of a reference."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError

Shown = Literal["first", "before", "frame", "frames", "shuffled", "reference", "goal"]
"""Pictures: the episode's first one; the one before the present; the present one; all that the request has, oldest
first, or in an order of chance; those of the reference trajectory; its last one."""

_PLACEHOLDER = re.compile(r"\{([A-Za-z_]+)\}")
_EVERYWHERE = ("instruction", "count", "state", "cameras")
"""Placeholders of texts: the instruction, the number of frames that the request has, the numbers of its proprioception,
and the cameras whose pictures a prompt without numbered views shows, in their order."""


@dataclass(frozen=True)
class PromptText:
    """A text of a prompt."""

    text: str


@dataclass(frozen=True)
class PromptPictures:
    """Pictures of a prompt.

    Attributes:
        shown: which ones.
        view: number of the view; None shows all views of a frame, one after the other.
        before, after: texts around each frame, which may name its {number}, from 1 on; around each of a reference also
            its {percent}, from 0 to 100.
    """

    shown: Shown
    view: int | None = None
    before: str = ""
    after: str = ""


Part = PromptText | PromptPictures


def make_part(part: Any, where: str) -> Part:
    """Return a part of the list `user` of a prompt's file, or raise `UserError` with the fault."""
    if isinstance(part, str) and part in get_args(Shown):
        return PromptPictures(cast("Shown", part))
    if isinstance(part, Mapping) and list(part) == ["text"] and isinstance(part["text"], str):
        check_placeholders(part["text"], _EVERYWHERE, where)
        return PromptText(part["text"])
    if isinstance(part, Mapping) and "pictures" in part:
        return _make_pictures(part, where)
    raise UserError(
        f"reward.prompt: {where}: user holds {part!r}, neither a text nor one of {', '.join(get_args(Shown))}.",
        code="prompt-invalid",
    )


def _make_pictures(part: Mapping[Any, Any], where: str) -> PromptPictures:
    known = ("pictures", "view", "before", "after")
    if unknown := [str(key) for key in part if key not in known]:
        raise UserError(
            f"reward.prompt: {where}: user: unknown key '{unknown[0]}'.{suggest_name(unknown[0], known)}",
            code="prompt-invalid",
        )
    shown, view, around = part["pictures"], part.get("view"), [part.get("before", ""), part.get("after", "")]
    if shown not in get_args(Shown):
        raise UserError(
            f"reward.prompt: {where}: pictures={shown!r} is none of {', '.join(get_args(Shown))}.",
            code="prompt-invalid",
        )
    if view is not None and (not isinstance(view, int) or isinstance(view, bool) or view < 0):
        raise UserError(
            f"reward.prompt: {where}: view={view!r} must be a number of a view, from 0 on.", code="prompt-invalid"
        )
    for text in around:
        if not isinstance(text, str):
            raise UserError(f"reward.prompt: {where}: before and after are texts, not {text!r}.", code="prompt-invalid")
        extra = ("number", "percent") if shown == "reference" else ("number",)
        check_placeholders(text, (*_EVERYWHERE, *extra), where)
    return PromptPictures(shown, view, *around)


def check_placeholders(text: str, known: tuple[str, ...], where: str) -> None:
    """Check that a text has known placeholders only, or raise `UserError`."""
    for name in _PLACEHOLDER.findall(text):
        if name not in known:
            raise UserError(
                f"reward.prompt: {where}: {{{name}}} is not a placeholder here.{suggest_name(name, known)} "
                "A word in braces that is meant as it is cannot be written.",
                code="prompt-invalid",
            )


def fill(text: str, values: Mapping[str, object]) -> str:
    """Return a text with its placeholders replaced, once: what an instruction says is not read again."""
    return _PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), text)
