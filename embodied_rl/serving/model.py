"""Interface of served models."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from embodied_rl.serving.chat import ChatRequest
from embodied_rl.serving.reply import ChatReply


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
