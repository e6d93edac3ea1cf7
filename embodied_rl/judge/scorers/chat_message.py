"""Prompts of a scorer, and a request as the messages of a chat, with pictures inside."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import ScoreRequest, list_scored_cameras
from embodied_rl.interfaces.sim import Array, SimulatorSpec
from embodied_rl.judge.prompts.prompt import Prompt, load_prompt
from embodied_rl.judge.prompts.prompt_parts import PromptPictures, PromptText, fill
from embodied_rl.judge.scorers.reference import load_reference
from embodied_rl.judge.scorers.shared_images import ImageEncoder, Picture, list_pictures

GREY = 128


class MessageWriter:
    """Writes the messages of requests.

    Args:
        prompt: of the scorer.
        encoder: of pictures.
        views: cameras in the order of the prompt's views; empty takes all, by name.
        reference: camera → uint8 [r, h, w, 3], for prompts that show one.
    """

    def __init__(
        self, prompt: Prompt, encoder: ImageEncoder, views: Sequence[str] = (), reference: Mapping[str, Array] = {}
    ) -> None:
        self._prompt, self._encoder, self._views = prompt, encoder, list(views)
        self._reference = list_pictures(reference)

    def write(self, request: ScoreRequest) -> list[dict[str, Any]]:
        """Return the messages that ask about a request. Equal parts come first, so that a server can cache them."""
        words = {
            "instruction": request.instruction,
            "count": _count_frames(request),
            "state": " ".join(f"{number:.9g}" for number in request.state),  # nine digits are exact for float32
            "cameras": ", ".join(self._views or sorted(request.frames)),
        }
        parts: list[dict[str, Any]] = []

        def add(text: str, values: Mapping[str, object]) -> None:
            parts.append({"type": "text", "text": fill(text, values)})

        for part in self._prompt.parts:
            if isinstance(part, PromptText):
                add(part.text, words)
                continue
            frames = self._choose(part, request)
            views = self._views or sorted(frames)
            count = len(frames[views[0]])
            for index in range(count):
                numbered = {**words, "number": index + 1, "percent": int(100 * index / max(1, count - 1))}
                if part.before:
                    add(part.before, numbered)
                for view in views if part.view is None else [views[part.view]]:
                    url = self._encoder.encode(frames[view][index], self._prompt.lossless)
                    parts.append({"type": "image_url", "image_url": {"url": url}})
                if part.after:
                    add(part.after, numbered)
        system = [{"role": "system", "content": self._prompt.system}] if self._prompt.system else []
        return [*system, {"role": "user", "content": parts}]

    def _choose(self, part: PromptPictures, request: ScoreRequest) -> Mapping[str, Sequence[Picture]]:
        """Return camera → the pictures that a part shows."""
        frames = list_pictures(request.first if part.shown == "first" else request.frames)
        match part.shown:
            case "first" | "frames":
                return frames
            case "before":
                return {name: each[-2:-1] for name, each in frames.items()}
            case "frame":
                return {name: each[-1:] for name, each in frames.items()}
            case "shuffled":
                order = shuffle_frames(request)
                return {name: [each[place] for place in order] for name, each in frames.items()}
            case "reference":
                return self._reference
            case "goal":
                return {name: each[-1:] for name, each in self._reference.items()}


def order_frames(prompt: Prompt, request: ScoreRequest) -> list[int]:
    """Return the index of the frame at each place of what a prompt shows of a trajectory."""
    if any(part.shown == "shuffled" for part in prompt.pictures):
        return shuffle_frames(request)
    return list(range(_count_frames(request)))


def shuffle_frames(request: ScoreRequest) -> list[int]:
    """Return the order in which a prompt shows `shuffled` frames: one of chance, the same for the same request."""
    order = list(range(_count_frames(request)))
    random.Random(f"{request.episode} {request.decision}").shuffle(order)
    return order


def _count_frames(request: ScoreRequest) -> int:
    return len(next(iter(request.frames.values())))


def load_prompts(name: str, done_name: str | None) -> list[Prompt]:
    """Return the prompt and, if named, the second prompt that asks whether the task is done.

    Raises:
        UserError: a prompt is unknown, or the second one does not fit the first.
    """
    prompt = load_prompt(name)
    if done_name is None:
        return [prompt]
    done = load_prompt(done_name, "done_prompt")
    if done.kind != "done":
        raise UserError(
            f"reward.done_prompt={done_name} asks for '{done.kind}', not whether the task is done.",
            code="prompts-contradict",
        )
    if done.frames > 1 and (done.frames, done.span) != (prompt.frames, prompt.span):
        raise UserError(
            f"reward.done_prompt={done_name} needs other frames than reward.prompt={name}.", code="prompts-contradict"
        )
    return [prompt, done]


def make_writers(
    prompts: Sequence[Prompt],
    spec: SimulatorSpec,
    encoder: ImageEncoder,
    views: Sequence[str],
    reference: str | None,
    references: int,
) -> list[MessageWriter]:
    """Return the writer of each prompt's messages; views, reference and references: see `VlmConfig`.

    Raises:
        UserError: views or reference do not fit a prompt.
    """
    needed = [prompt.name for prompt in prompts if prompt.needs_reference]
    if needed and reference is None:
        raise UserError(
            f"reward.reference is missing: the prompt {needed[0]} shows how the task is done. Give an episode's .npz "
            "file or a folder of pictures.",
            code="reference-missing",
        )
    if reference is not None and not needed:
        raise UserError(
            f"reward.reference={reference} has no meaning: the prompt shows no reference.", code="key-unused"
        )
    chosen = {prompt.name: choose_views(prompt, views, spec) for prompt in prompts}
    cameras = sorted({camera for each in chosen.values() for camera in each}) or list_scored_cameras(spec)
    shown = load_reference(Path(reference), cameras, references) if reference is not None else {}
    return [MessageWriter(prompt, encoder, chosen[prompt.name], shown) for prompt in prompts]


def choose_views(prompt: Prompt, views: Sequence[str], spec: SimulatorSpec) -> list[str]:
    """Return the cameras in the order of a prompt's views; nothing where it shows all, in the order of their names.

    Raises:
        UserError: a camera is unknown, or there are more or fewer of them than views.
    """
    known = list_scored_cameras(spec)
    for name in views:
        if name not in known:
            raise UserError(
                f"reward.views: no scored camera is called '{name}'.{suggest_name(name, known)}", code="camera-unknown"
            )
    if not prompt.views:
        return list(views)
    chosen = list(views) or known
    if len(chosen) != prompt.views:
        raise UserError(
            f"the prompt {prompt.name} shows {prompt.views} views, not {len(chosen)}: name a camera for each of them, "
            f"the same one several times if need be: reward.views=[{','.join([known[0]] * prompt.views)}]. "
            f"Cameras: {', '.join(known)}.",
            code="views-do-not-fit",
        )
    return chosen


def check_lossless(prompts: Sequence[Prompt], resized: bool) -> None:
    """Check that pictures are not resized where a prompt sends them as they are, or raise `UserError`."""
    if resized and (found := next((prompt for prompt in prompts if prompt.lossless), None)):
        raise UserError(
            f"reward.picture_size, reward.picture_fit: the prompt {found.name} sends pictures as they are. "
            "Leave both out.",
            code="key-unused",
        )


def make_grey_request(prompt: Prompt, spec: SimulatorSpec) -> ScoreRequest:
    """Return a request that shows nothing, with a word that the simulator knows, to see whether a server answers."""
    scored, count = list_scored_cameras(spec), max(2, prompt.frames)
    sizes = {each.name: (each.height, each.width) for each in spec.cameras}
    frames = {name: np.full((count, *sizes[name], 3), GREY, np.uint8) for name in scored}
    first = {name: each[0] for name, each in frames.items()}
    words = spec.words[-1] if spec.words else "nothing"
    return ScoreRequest(0, 0, prompt.kind, words, frames, first, np.zeros(len(spec.state_names), np.float32))
