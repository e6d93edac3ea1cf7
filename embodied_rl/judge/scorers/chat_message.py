"""A request in the words of a prompt: the messages of a chat, with pictures inside."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from embodied_rl.interfaces.scorer import ScoreRequest
from embodied_rl.interfaces.sim import Array
from embodied_rl.judge.prompts.prompt import Prompt
from embodied_rl.judge.prompts.prompt_parts import PromptPictures, PromptText, fill
from embodied_rl.judge.scorers.image_encoder import ImageEncoder
from embodied_rl.judge.scorers.shared_images import Picture, list_pictures


class MessageWriter:
    """Writes the messages of requests.

    Args:
        prompt: what is asked.
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
        """Return the messages that ask about a request. What repeats comes first, so that a server can keep it."""
        words = {
            "instruction": request.instruction,
            "count": _count_frames(request),
            "state": " ".join(f"{number:.9g}" for number in request.state),  # nine digits are exact for float32
            "cameras": ", ".join(self._views or sorted(request.frames)),
        }
        parts: list[dict[str, Any]] = []
        for part in self._prompt.parts:
            if isinstance(part, PromptText):
                parts.append(_say(fill(part.text, words)))
            else:
                parts += self._show(part, request, words)
        system = [{"role": "system", "content": self._prompt.system}] if self._prompt.system else []
        return [*system, {"role": "user", "content": parts}]

    def _show(
        self, part: PromptPictures, request: ScoreRequest, words: Mapping[str, object]
    ) -> Iterator[dict[str, Any]]:
        frames = self._choose(part, request)
        views = self._views or sorted(frames)
        count = len(frames[views[0]])
        for index in range(count):
            more = {"number": index + 1, "percent": int(100 * index / max(1, count - 1))}
            if part.before:
                yield _say(fill(part.before, {**words, **more}))
            for view in views if part.view is None else [views[part.view]]:
                yield {
                    "type": "image_url",
                    "image_url": {"url": self._encoder.encode(frames[view][index], self._prompt.lossless)},
                }
            if part.after:
                yield _say(fill(part.after, {**words, **more}))

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


def _say(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}
