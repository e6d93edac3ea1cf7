"""Interface of served models, their answers, and the format of these in the OpenAI API."""

import math
import time
import uuid
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from embodied_rl.serving.chat import ChatRequest

LEAST_LOGPROB = -9999.0
"""Replaces log 0, which JSON cannot represent; as in the OpenAI API."""


@dataclass(frozen=True)
class Token:
    """Token of an answer.

    Attributes:
        text: of the token.
        logprob: natural logarithm of the model's probability for it, before any restriction to choices.
        alternatives: the most probable tokens with their log-probabilities, most probable first.
    """

    text: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ChatReply:
    """Answer of a model.

    Attributes:
        text: of the answer.
        tokens: of the answer, including the end token.
        finish: "stop" if the model finished, "length" if max_tokens was reached.
        prompt_tokens: length of the prompt in tokens.
    """

    text: str
    tokens: tuple[Token, ...]
    finish: Literal["stop", "length"]
    prompt_tokens: int


@dataclass(frozen=True, eq=False)
class ModelInput:
    """Request prepared for a model.

    Attributes:
        shape: requests of equal shape can be batched.
        content: input of the model.
    """

    shape: Hashable
    content: Any


class ChatModel(Protocol):
    """Served model. `prepare` is called from several threads, `answer` from one."""

    name: str
    """model name in requests."""
    identity: str
    """one line: the model and its weights."""
    asked_with: Mapping[str, Any]
    """request format, for the list of models: "prompt", of `reward.prompt`; and "cameras", "state" and "words" if the
    model is limited to these."""

    def prepare(self, request: ChatRequest) -> ModelInput:
        """Validate a request and convert it to model input.

        Raises:
            Refusal: the model cannot answer it.
        """
        ...

    def answer(self, questions: Sequence[ModelInput]) -> Sequence[ChatReply]:
        """Answer requests of one shape, in order.

        Raises:
            UserError: one of them cannot be answered; the caller then retries each alone.
        """
        ...


def describe_reply(reply: ChatReply, request: ChatRequest) -> dict[str, Any]:
    """Return the reply body in the format of the OpenAI API."""

    def describe(text: str, logprob: float) -> dict[str, Any]:
        return {"token": text, "logprob": max(logprob, LEAST_LOGPROB), "bytes": list(text.encode())}

    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": reply.text, "refusal": None},
        "finish_reason": reply.finish,
        "logprobs": None,
    }
    if (most := request.top_logprobs) is not None:
        content = [
            describe(token.text, token.logprob)
            | {"top_logprobs": [describe(*alternative) for alternative in token.alternatives[:most]]}
            for token in reply.tokens
        ]
        choice["logprobs"] = {"content": content, "refusal": None}
    sizes = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": len(reply.tokens)}
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}", "object": "chat.completion", "created": int(time.time()),
        "model": request.model, "choices": [choice], "usage": {**sizes, "total_tokens": sum(sizes.values())},
    }  # fmt: skip


def find_logprob(probability: float) -> float:
    """Return the natural logarithm of a probability, with `LEAST_LOGPROB` for 0."""
    return math.log(probability) if probability > 0 else LEAST_LOGPROB
