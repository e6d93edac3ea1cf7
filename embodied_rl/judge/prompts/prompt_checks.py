"""Whether a prompt's question, pictures and answers fit together."""

from collections.abc import Sequence

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScoreKind
from embodied_rl.judge.prompts.answer_parser import Reading
from embodied_rl.judge.prompts.prompt_parts import PromptPictures

MOST_LABELS = 20
"""Maximum of `top_logprobs` of common servers."""
MOST_FRAMES = 64
"""Frames of a request."""


def check_prompt(
    kind: ScoreKind, pictures: Sequence[PromptPictures], reading: Reading, frames: int, where: str
) -> None:
    """Check a prompt's parts against each other.

    Raises:
        UserError: they do not fit; the message names `where` and key.
    """
    _check_reading(kind, reading, f"reward.prompt: {where}")
    _check_pictures(kind, {part.shown for part in pictures}, frames, f"reward.prompt: {where}")


def _check_reading(kind: ScoreKind, reading: Reading, where: str) -> None:
    chosen = [reading.labels, reading.words, reading.pattern, reading.entries]
    if sum(bool(each) for each in chosen) != 1:
        raise UserError(
            f"{where} must have either labels or a pattern, or words, or entries; one of them alone.",
            code="prompt-invalid",
        )
    if len(reading.labels) > MOST_LABELS:
        raise UserError(
            f"{where} has {len(reading.labels)} labels; the maximum is {MOST_LABELS}.", code="prompt-invalid"
        )
    if reading.log_range is not None and (len(reading.labels) != 1 or not 0 < reading.log_range < float("inf")):
        raise UserError(f"{where}: log_range is a positive number, and goes with one label.", code="prompt-invalid")
    if reading.scale == 0:
        raise UserError(f"{where}: scale must not be 0.", code="prompt-invalid")
    if (kind == "trajectory") != (reading.entries is not None):
        raise UserError(
            f"{where}: kind=trajectory and entries go together: a number for each frame.", code="prompt-invalid"
        )


def _check_pictures(kind: ScoreKind, shown: set[str], frames: int, where: str) -> None:
    present = {"frame", "frames", "shuffled"} & shown
    if not present:
        raise UserError(f"{where} shows no picture of the present: 'frame' is missing in user.", code="prompt-invalid")
    if kind == "trajectory" and "frame" in present:
        raise UserError(f"{where}: kind=trajectory shows 'frames' or 'shuffled'.", code="prompt-invalid")
    if kind == "pair" and not {"before", "frames"} & shown:
        raise UserError(f"{where}: kind=pair compares: 'before' or 'frames' is missing in user.", code="prompt-invalid")
    if kind != "pair" and "before" in shown:
        raise UserError(f"{where}: 'before' is shown by prompts of kind=pair alone.", code="prompt-invalid")
    if "shuffled" in shown and kind != "trajectory":
        raise UserError(f"{where}: 'shuffled' frames are for kind=trajectory.", code="prompt-invalid")
    if not 1 <= frames <= MOST_FRAMES:
        raise UserError(f"{where}: frames={frames} must be within 1 … {MOST_FRAMES}.", code="prompt-invalid")
    if frames < 2 and ({"before", "frames", "shuffled"} & shown):
        raise UserError(f"{where}: frames={frames} is too few for a prompt that shows several.", code="prompt-invalid")
