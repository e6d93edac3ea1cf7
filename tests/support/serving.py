"""Servers of a test, in a thread of its process, and models that behave as a test tells them."""

import asyncio
import base64
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import numpy as np
import uvicorn
from PIL import Image

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl.serving.application import ChatServer
from embodied_rl.serving.batcher import MicroBatcher
from embodied_rl.serving.chat import ChatRequest
from embodied_rl.serving.embedded_critic import EmbeddedCritic
from embodied_rl.serving.limits import ServerSettings
from embodied_rl.serving.listening import find_token, open_socket
from embodied_rl.serving.model import ChatModel, ChatReply, ModelInput, Token
from tests.support.ended import wait_for

DEADLINE = 60.0
CHAT = "/v1/chat/completions"


@dataclass(frozen=True)
class Judged:
    """What `FakeCritic` says."""

    progress: Array
    bins: Array
    done: Array


@dataclass
class FakeCritic:
    """A judge with the interface of `ProgressCritic`, whose answer depends on every part of the question."""

    cameras: tuple[str, ...] = ("top",)
    words: tuple[str, ...] = ("pick", "red", "cube", "go", "left", "right")
    identity: str = "fake"
    calls: list[int] = field(default_factory=list)
    located: int = 0

    def describe_input(self) -> dict[str, Any]:
        return {"cameras": {name: [8, 8] for name in self.cameras}, "state": ["x", "y", "z"], "words": list(self.words)}

    def judge(
        self, frames: Mapping[str, Array], first: Mapping[str, Array], instructions: Sequence[str], state: Array
    ) -> Judged:
        return self.compare(frames, self.localise(first, instructions, state), instructions, state)

    def localise(self, first: Mapping[str, Array], instructions: Sequence[str], state: Array) -> Array:
        self.located += len(instructions)
        spoken = np.array([sum(map(ord, text)) for text in instructions])
        return np.stack([7 * sum(first[name].sum((1, 2, 3), np.float64) for name in first), spoken], 1)

    def compare(self, frames: Mapping[str, Array], start: Array, instructions: Sequence[str], state: Array) -> Judged:
        self.calls.append(len(instructions))
        for text in instructions:
            for word in text.split():
                if word not in self.words:
                    raise UserError(f"the critic does not know the word '{word}'.")
        seen = sum(frames[name].sum((1, 2, 3), np.float64) for name in frames) + start[:, 0]
        spoken = start[:, 1] + 1e3 * state.sum(1, np.float64)
        scores = np.sin(np.outer(seen + spoken, np.linspace(0.1, 2, 21)))
        bins = np.exp(4 * scores) / np.exp(4 * scores).sum(1, keepdims=True)
        return Judged(
            bins @ np.linspace(0, 1, 21), bins.astype(np.float32), (0.5 + 0.5 * np.sin(seen)).astype(np.float32)
        )


class ToldModel:
    """Says the last text of a request; waits for a gate, where there is one, and fails on the word "fail"."""

    name, identity, asked_with = "told", "told", {"prompt": "told"}

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate, self.batches = gate, list[list[str]]()

    def prepare(self, request: ChatRequest) -> ModelInput:
        text = request.messages[-1].parts[-1]
        assert isinstance(text, str)
        return ModelInput(text.partition(" ")[0] if text.startswith("shape") else "", text)

    def answer(self, questions: Sequence[ModelInput]) -> Sequence[ChatReply]:
        self.batches.append([question.content for question in questions])
        if self.gate is not None:
            assert self.gate.wait(DEADLINE)
        if any(question.content == "fail" for question in questions):
            raise RuntimeError("told to fail")
        return [ChatReply(each.content, (Token(each.content, -0.5),), "stop", 1) for each in questions]


@dataclass
class Running:
    """A server that runs.

    Attributes:
        url: up to and with /v1.
        model: who answers.
        batcher: its queue.
    """

    url: str
    model: Any
    batcher: MicroBatcher[ModelInput, ChatReply]

    def client(self, token: str | None = None, **options: Any) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx2.Client(base_url=self.url.removesuffix("/v1"), headers=headers, timeout=DEADLINE, **options)

    def meter(self, name: str) -> float:
        """Return a number of /metrics."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"embodied_rl_{name}"))


@contextmanager
def running(model: ChatModel, host: str = "127.0.0.1", **options: Any) -> Iterator[Running]:
    """Serve a model on a free port while the context lasts."""
    settings = ServerSettings(host=host, **options)
    server = ChatServer(model, settings)
    application = server.make_application(find_token(host, settings.token_variable))
    listening = open_socket(host, 0)
    config = uvicorn.Config(application, ws="none", lifespan="on", log_config=None, access_log=False,
                            timeout_graceful_shutdown=1)  # fmt: skip
    serving = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(serving.serve([listening])))
    thread.start()
    try:
        wait_for(lambda: serving.started)
        yield Running(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", model, server.batcher)
    finally:
        serving.should_exit = True
        thread.join(DEADLINE)
        assert not thread.is_alive()


def make_critic(**options: Any) -> EmbeddedCritic:
    """The fake behind the chat protocol."""
    return EmbeddedCritic(FakeCritic(**options), "critic")


def make_picture(seed: int, size: tuple[int, int] = (12, 16)) -> Array:
    """uint8 [h, w, 3], noise, which no lossy format keeps."""
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def encode(picture: Array, kind: str = "PNG") -> str:
    """A picture as a data URL."""
    with io.BytesIO() as buffer:
        Image.fromarray(picture).save(buffer, kind)
        return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def say(text: str, **fields: Any) -> dict[str, Any]:
    """The body of a request for `ToldModel`."""
    return {"model": "told", "messages": [{"role": "user", "content": text}], **fields}


def ask_critic(
    first: Array, frame: Array, words: str = "pick red cube", state: str = "0.5 1", **fields: Any
) -> dict[str, Any]:
    """The body of a request for an embedded critic with one camera, "top"."""
    lines = ("question: progress", f"instruction: {words}", "cameras: top", f"state: {state}")
    parts: list[dict[str, Any]] = [{"type": "text", "text": line} for line in lines]
    parts += [{"type": "image_url", "image_url": {"url": encode(each)}} for each in (first, frame)]
    return {"model": "critic", "messages": [{"role": "user", "content": parts}], **fields}


def refused(response: httpx2.Response) -> tuple[int, str]:
    """Status and message of an error in the form of the OpenAI API."""
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return response.status_code, error["message"]
