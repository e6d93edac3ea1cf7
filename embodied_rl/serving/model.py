"""What a model must do to be served."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from embodied_rl.serving.chat import ChatRequest
from embodied_rl.serving.reply import ChatReply


@dataclass(frozen=True, eq=False)
class ModelInput:
    """A request as a model wants it.

    Attributes:
        shape: questions of one shape can be answered together.
        content: what the model reads.
    """

    shape: Hashable
    content: Any


class ChatModel(Protocol):
    """Answers requests. `prepare` is called from several threads, `answer` from one."""

    name: str
    """by which requests call it."""
    identity: str
    """one line: what it is, and which weights."""
    asked_with: Mapping[str, Any]
    """how to ask it, for the list of models: "prompt", of `reward.prompt`; and "cameras", "state" and "words" where it
    answers about these alone."""

    def prepare(self, request: ChatRequest) -> ModelInput:
        """Check a request and make a question of it.

        Raises:
            Refusal: the model cannot answer it.
        """
        ...

    def answer(self, questions: Sequence[ModelInput]) -> Sequence[ChatReply]:
        """Answer questions of one shape, in their order.

        Raises:
            UserError: one of them cannot be answered; each is then asked alone.
        """
        ...
