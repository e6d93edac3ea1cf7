"""Embedded critic behind the chat protocol, for the prompts `embedded` and `embedded_done`.

A request is one user message: lines `key: value`, then the first picture of each camera, then the current picture of
each. The answer is one token: a digit of 0 … 9 for progress, yes or no for done.

n questions, S state dimensions.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.serving.chat import ChatRequest
from embodied_rl.serving.model import ChatReply, ModelInput, Token, find_logprob
from embodied_rl.serving.refusal import Refusal, quote

KEYS = ("question", "instruction", "cameras", "state")
KEPT_STARTS = 4096
"""Size of the cache of first-frame encodings: about one per concurrent episode."""
DIGITS = tuple("0123456789")
LABELS: Mapping[str, tuple[str, ...]] = {"progress": DIGITS, "done": ("yes", "no")}
"""Question → the answers to it."""
PROMPTS = "this model is asked with reward.prompt=embedded or reward.prompt=embedded_done"


class CriticJudgement(Protocol):
    """Output of a critic for n observations.

    Attributes:
        bins: float32 [n, 21], probabilities of the progress 0, 0.05 … 1.
        done: float32 [n], probability that the task is done.
    """

    @property
    def bins(self) -> Any: ...
    @property
    def done(self) -> Any: ...


class CriticNetwork(Protocol):
    """Network that estimates progress, such as `embodied_rl.critic.network.ProgressCritic`."""

    @property
    def cameras(self) -> Sequence[str]: ...
    @property
    def identity(self) -> str: ...

    def describe_input(self) -> dict[str, Any]:
        """Return what a request must contain."""
        ...

    def localise(self, first: Mapping[str, Array], instructions: Sequence[str], state: Array) -> Array:
        """Encode n first frames as float [n, K]: camera → uint8 [n, h, w, 3]; words; float32 [n, S], not read."""
        ...

    def compare(
        self, frames: Mapping[str, Array], start: Array, instructions: Sequence[str], state: Array
    ) -> CriticJudgement:
        """Judge n observations, given the encodings of their episodes' first frames from `localise`."""
        ...


@dataclass(frozen=True, eq=False)
class Observed:
    """Observation of one request."""

    question: str
    instruction: str
    first: Mapping[str, Array]
    frames: Mapping[str, Array]
    state: Array
    choices: tuple[str, ...]
    words: int


class EmbeddedCritic:
    """Critic behind the chat protocol; implements `embodied_rl.serving.model.ChatModel`."""

    def __init__(self, critic: CriticNetwork, name: str) -> None:
        self.name, self.identity = name, critic.identity
        self.asked_with: Mapping[str, Any] = {"prompt": "embedded", **critic.describe_input()}
        self._critic = critic
        self._starts: OrderedDict[bytes, Array] = OrderedDict()  # digest → encoding, least recently used first

    def prepare(self, request: ChatRequest) -> ModelInput:
        """Read an observation from the one message of a request.

        Raises:
            Refusal: the message does not follow the prompts.
        """
        if [message.role for message in request.messages] != ["user"]:
            raise Refusal(400, f"messages must be one message of the user: {PROMPTS}.", "messages")
        parts = request.messages[0].parts
        pictures = [part for part in parts if not isinstance(part, str)]
        lines: dict[str, str] = {}
        for line in (line for part in parts if isinstance(part, str) for line in part.split("\n")):
            key, colon, value = line.partition(":")
            if not colon or key not in KEYS or key in lines:
                raise Refusal(
                    400, f"{quote(line)} is not a line with one of {', '.join(KEYS)}, once each: {PROMPTS}.", "messages"
                )
            lines[key] = value.strip()
        if missing := [key for key in KEYS if key not in lines]:
            raise Refusal(400, f"messages lack the line '{missing[0]}: …': {PROMPTS}.", "messages")
        observed = _read_observation(lines, pictures, self._critic.cameras, request.choices)
        sizes = tuple(observed.frames[camera].shape for camera in self._critic.cameras)
        return ModelInput((sizes, observed.state.shape), observed)

    def answer(self, questions: Sequence[ModelInput]) -> Sequence[ChatReply]:
        """Judge observations with pictures and states of equal size.

        Raises:
            UserError: an instruction has unknown words, or a size does not fit the critic.
        """
        asked: list[Observed] = [question.content for question in questions]
        judged = self._critic.compare(
            self._stack([each.frames for each in asked]),
            self._locate(asked),
            [each.instruction for each in asked],
            np.stack([each.state for each in asked]),
        )
        all_bins, dones = np.asarray(judged.bins, np.float64), np.asarray(judged.done, np.float64)
        replies: list[ChatReply] = []
        for each, bins, done in zip(asked, all_bins, dones.tolist(), strict=True):
            if not np.isfinite(bins).all() or not np.isfinite(done):
                raise UserError("the critic returned NaN for this observation.", code="not-finite")
            masses = split_bins(bins).tolist() if each.question == "progress" else (done, 1 - done)
            answers = list(zip(LABELS[each.question], masses, strict=True))
            answers = [(label, mass) for label, mass in answers if not each.choices or label in each.choices]
            answers.sort(key=lambda answer: -answer[1])
            alternatives = tuple((label, find_logprob(mass)) for label, mass in answers)
            text, logprob = alternatives[0]
            replies.append(ChatReply(text, (Token(text, logprob, alternatives),), "stop", each.words))
        return replies

    def _locate(self, asked: Sequence[Observed]) -> Array:
        """Encode the first frame of each observation, [n, K]; encodings are cached across requests of an episode."""
        keys: list[bytes] = []
        for each in asked:
            digest = hashlib.blake2b(each.instruction.encode(), digest_size=32)
            for camera in self._critic.cameras:
                digest.update(repr(each.first[camera].shape).encode())
                digest.update(each.first[camera].tobytes())
            keys.append(digest.digest())
        new = {key: each for key, each in zip(keys, asked, strict=True) if key not in self._starts}
        if new:
            chosen = list(new.values())
            first, state = self._stack([each.first for each in chosen]), np.stack([each.state for each in chosen])
            found = self._critic.localise(first, [each.instruction for each in chosen], state)
            self._starts |= {key: row.copy() for key, row in zip(new, found, strict=True)}  # copies free the batch
        for key in keys:
            self._starts.move_to_end(key)
        start = np.stack([self._starts[key] for key in keys])
        while len(self._starts) > KEPT_STARTS:
            self._starts.popitem(last=False)
        return start

    def _stack(self, shown: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        return {camera: np.stack([each[camera] for each in shown]) for camera in self._critic.cameras}


def split_bins(bins: Array) -> Array:
    """Convert probabilities [b] of equidistant progress 0 … 1 to those of the digits 0 … 9, which stand for ninths.

    Each bin's mass is split between the two nearest digits such that the expectation is preserved.
    """
    places = np.linspace(0, 9, len(bins))
    lower = np.minimum(places.astype(int), 8)
    share = places - lower
    digits = np.zeros(10)
    np.add.at(digits, lower, bins * (1 - share))
    np.add.at(digits, lower + 1, bins * share)
    return digits


def _read_observation(
    lines: Mapping[str, str], pictures: Sequence[Array], cameras: Sequence[str], choices: tuple[str, ...]
) -> Observed:
    if lines["question"] not in LABELS:
        raise Refusal(400, f"the question {quote(lines['question'])} is none of {', '.join(LABELS)}.", "messages")
    labels = LABELS[lines["question"]]
    if any(choice not in labels for choice in choices):
        raise Refusal(400, f"the answers to {lines['question']} are {', '.join(labels)}.", "structured_outputs")
    shown = [name.strip() for name in lines["cameras"].split(",")]
    if len(set(shown)) < len(shown) or len(pictures) != 2 * len(shown):
        raise Refusal(
            400, f"of {len(shown)} cameras {2 * len(shown)} pictures are needed, not {len(pictures)}.", "messages"
        )
    if absent := [camera for camera in cameras if camera not in shown]:
        raise Refusal(400, f"the critic looks at {', '.join(cameras)}; the request shows no '{absent[0]}'.", "messages")
    first, frames = (dict(zip(shown, half, strict=True)) for half in (pictures[: len(shown)], pictures[len(shown) :]))
    for camera in cameras:
        if first[camera].shape != frames[camera].shape:
            raise Refusal(400, f"the two pictures of {camera} differ in size.", "messages")
    try:
        state = np.array([float(number) for number in lines["state"].split()], np.float32)
    except ValueError:
        raise Refusal(400, f"the state {quote(lines['state'])} is not made of numbers.", "messages") from None
    if not np.isfinite(state).all():
        raise Refusal(400, f"the state {quote(lines['state'])} is not finite.", "messages")
    words = sum(len(line.split()) for line in lines.values())
    return Observed(lines["question"], lines["instruction"], first, frames, state, choices, words)
