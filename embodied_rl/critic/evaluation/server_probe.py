"""Probe a server of a vision-language model: find its capabilities and suitable settings.

All requests are sent by the scorer of training runs; a transport captures the responses. Each failure is one line with
its remedy. `critic serve` advertises the inputs of its model in the model list (`asked_with`); for other servers
cameras, state and words are made up.
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from embodied_rl.judge.prompts.answer_parser import read_log_probabilities
from embodied_rl.judge.prompts.prompt import list_prompts, load_prompt
from embodied_rl.judge.scorers.http_json import LONGEST_ANSWER, explain_failure, shorten
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer
from embodied_rl.system.untrusted_files import SecretFilter

ALONE = 5
"""Number of sequential requests that measure the latency."""
RISE = 1.1
"""A higher concurrency must raise the rate by this factor."""
TIMEOUT_SHARE = 4
"""Timeout as a multiple of the slowest answer: servers are slower with other clients."""
WORDS = "pick up the red cube"
MOST_CAMERAS, MOST_PIXELS, MOST_NAMES, LONGEST_NAME = 8, 4096, 1000, 100
"""Limits of advertised inputs."""


@dataclass(frozen=True)
class LoadResult:
    """Result with a number of concurrent requests: answers per second, seconds of the slowest, and error message."""

    at_once: int
    rate: float
    slowest: float
    failure: str = ""


@dataclass(frozen=True)
class ProbeLimits:
    """Limits of a probe: seconds of one answer, seconds that each concurrency is tried, and the highest of these."""

    timeout: float
    seconds: float
    most: int


async def probe_server(
    config: VlmConfig,
    spec: SimulatorSpec,
    limits: ProbeLimits,
    report: Callable[[str, str], None],
    transport: httpx2.AsyncBaseTransport | None = None,
) -> list[str]:
    """Probe a server, and return suitable settings, such as `reward.in_flight=8`.

    The random images have the sizes of the cameras in `spec`. `report` is called with the name of each check and its
    result; `transport` replaces the network in tests.

    Raises:
        UserError: it cannot be used; the message says why and what to do.
    """
    probe = _Probe(config, spec, limits, report, ResponseCapture(transport))
    try:
        await probe.adapt()
        await probe.check()
        usable = await probe.compare_prompts()
        probe.config = replace(probe.config, prompt=choose_prompt(probe.config.prompt, usable))
        scorer = await probe.open_scorer()
        report("asked with", f"reward.prompt={probe.config.prompt}")
        alone: list[float] = []
        for _ in range(ALONE):
            began = time.perf_counter()
            await probe.ask(scorer)
            alone.append(time.perf_counter() - began)
        report("latency", f"{np.median(alone):.3f} s alone, {max(alone):.3f} s at most")
        loads = await probe.increase_concurrency(scorer)
    except ScorerError as error:
        raise explain_failure(config.url, config.key_variable, error) from None
    finally:
        await probe.capture.aclose()
    useful = choose_load(loads)
    report("useful", f"{useful.at_once} at once, {useful.rate:.1f} answers a second")
    timeout = max(1, math.ceil(TIMEOUT_SHARE * max(useful.slowest, *alone)))
    return [
        f"reward.in_flight={useful.at_once}", f"reward.timeout={timeout}", f"reward.model={probe.config.model}",
        f"reward.prompt={probe.config.prompt}",
    ]  # fmt: skip


def choose_load(loads: Sequence[LoadResult]) -> LoadResult:
    """Return the lowest concurrency without failures whose rate is close to the best.

    Raises:
        UserError: something failed even with one request at a time.
    """
    whole = [load for load in loads if not load.failure]
    if not whole:
        raise UserError(f"the server fails even with one request at a time: {loads[0].failure}.", code="scorer-failed")
    best = max(load.rate for load in whole)
    return next(load for load in whole if load.rate * RISE >= best)


def choose_prompt(prompt: str, usable: Sequence[str]) -> str:
    """Return the given prompt if it is usable, else another one of the same kind.

    Raises:
        UserError: there is none.
    """
    if prompt in usable:
        return prompt
    kind = load_prompt(prompt).kind
    others = [name for name in usable if load_prompt(name).kind == kind and not name.startswith("embedded")]
    if not others:
        raise UserError(
            f"reward.prompt={prompt} is not usable with this model, nor is another one for '{kind}'.",
            code="prompt-not-usable",
        )
    return next((name for name in others if name.startswith("progress")), others[0])


class _Probe:
    """A running probe; `config` and `spec` are refined by what the server returns."""

    def __init__(
        self,
        config: VlmConfig,
        spec: SimulatorSpec,
        limits: ProbeLimits,
        report: Callable[[str, str], None],
        capture: "ResponseCapture",
    ) -> None:
        self.config, self.spec, self.limits, self.report, self.capture = config, spec, limits, report, capture
        self._random, self._asked = np.random.default_rng(0), 0

    async def open_scorer(self, config: VlmConfig | None = None) -> VlmScorer:
        scorer = VlmScorer(config or self.config, self.spec, self.capture)
        await scorer.open()
        return scorer

    async def adapt(self) -> None:
        """Take prompt and inputs from the server's model list, if it advertises them."""
        scorer = await self.open_scorer()
        try:
            await asyncio.wait_for(scorer.choose_model(), self.limits.timeout)
        except (TimeoutError, ScorerError):
            return  # `check` explains this failure
        hints = self.capture.find_request_hints(self.config.model)
        if self.config.prompt == VlmConfig.prompt and hints.get("prompt") in list_prompts():
            self.config = replace(self.config, prompt=hints["prompt"])
        self.spec = read_advertised_spec(hints) or self.spec

    async def check(self) -> None:
        """Check that the server accepts images, report its capabilities, and choose its only model."""
        scorer, capture = await self.open_scorer(), self.capture
        try:
            await asyncio.wait_for(scorer.check(), self.limits.timeout)
        except TimeoutError:
            raise ScorerError("timeout", f"no answer within {self.limits.timeout:g} s") from None
        except UserError:
            if (models := capture.models) and self.config.model in (None, *models):
                self.report("models", shorten(", ".join(models).encode()))
            raise
        self.report("models", shorten(", ".join(capture.models).encode()) or "not listed")
        self.report("pictures", "accepted")
        tokens = capture.tokens
        coarse = "none: scores are read from text, which is coarser"
        self.report("log-probs", coarse if tokens is None else f"{len(tokens)} a token")
        if len(capture.models) == 1:
            self.config = replace(self.config, model=self.config.model or capture.models[0])

    async def compare_prompts(self) -> list[str]:
        """Test each built-in prompt and the given one, report the results, and return the usable ones."""
        usable: list[str] = []
        for name in dict.fromkeys((*list_prompts(), self.config.prompt)):
            prompt = load_prompt(name)
            config = replace(self.config, prompt=name, done_prompt=None, least_mass=0.0)
            if name != self.config.prompt:
                config = replace(config, views=(self.spec.cameras[0].name,) * prompt.views, reference=None)
            try:
                scorer = await self.open_scorer(config)
            except UserError as error:
                self.report(f"prompt {name}", f"not asked: {error}")
                continue
            try:
                score, is_usable = await self.ask(scorer), True
            except ScorerError as error:
                self.report(f"prompt {name}", f"not usable: {error}")
                continue
            labels, tokens = prompt.reading.labels, self.capture.tokens
            if labels and tokens is not None:
                mass = sum(math.exp(value) for token, value in tokens if token.strip().casefold() in labels)
                is_usable = mass >= self.config.least_mass
                weak = "" if is_usable else f": below reward.least_mass={self.config.least_mass}, not usable"
                found = f"its answers have a probability of {mass:.2f} together{weak}"
            elif not score.valid:
                found, is_usable = f"not usable: {score.reason}, {score.detail}", False
            else:
                found = f"answered, {score.value:.2f}"
            usable += [name] if is_usable else []
            self.report(f"prompt {name}", found)
        return usable

    async def ask(self, scorer: VlmScorer) -> Score:
        """Request a score of new random images, so that no server answers from its cache."""
        sizes = {each.name: (1, each.height, each.width, 3) for each in self.spec.cameras}
        shown = {name: self._random.integers(0, 255, size, np.uint8) for name, size in sizes.items()}
        number, kind = self._asked, scorer.traits.kinds[0]
        self._asked += 1
        first = {name: each[0] for name, each in shown.items()}
        count = 2 if kind == "pair" else scorer.traits.frames
        frames = {name: np.repeat(each, count, axis=0) for name, each in shown.items()}
        state = np.zeros(len(self.spec.state_names), np.float32)
        request = ScoreRequest(number, 0, kind, choose_words(self.spec), frames, first, state)
        try:
            return (await asyncio.wait_for(scorer.score([request]), self.limits.timeout))[0]
        except TimeoutError:
            raise ScorerError("timeout", f"no answer within {self.limits.timeout:g} s") from None

    async def increase_concurrency(self, scorer: VlmScorer) -> list[LoadResult]:
        """Double the concurrency until the rate stops rising, a request fails, or the maximum is reached."""
        loads: list[LoadResult] = []
        at_once = 1
        while at_once <= self.limits.most:
            load = await self._measure_load(scorer, at_once)
            end = f", then {load.failure}" if load.failure else ""
            self.report(f"{at_once} at once", f"{load.rate:.1f} answers a second, {load.slowest:.3f} s at most{end}")
            loads.append(load)
            if load.failure or (len(loads) > 1 and load.rate < RISE * loads[-2].rate):
                break
            at_once *= 2
        return loads

    async def _measure_load(self, scorer: VlmScorer, at_once: int) -> LoadResult:
        began, taken, failures = time.perf_counter(), list[float](), list[str]()

        async def work() -> None:
            while not failures:
                asked = time.perf_counter()
                try:
                    await self.ask(scorer)
                    taken.append(time.perf_counter() - asked)
                except ScorerError as error:
                    failures.append(str(error))
                if time.perf_counter() - began >= self.limits.seconds:
                    return

        await asyncio.gather(*(work() for _ in range(at_once)))
        failure = failures[0] if failures else ""
        return LoadResult(at_once, len(taken) / (time.perf_counter() - began), max(taken, default=0.0), failure)


class ResponseCapture(httpx2.AsyncBaseTransport):
    """HTTP transport that keeps the last JSON object of each path, without the key that was sent.

    `answers` maps the last part of the path to it. Without a `transport`, requests go to the network.
    """

    def __init__(self, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
        self._client = httpx2.AsyncClient(transport=transport, limits=limits)
        self.answers: dict[str, dict[str, Any]] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and read its response."""
        answer = await self._client.send(request, stream=True)
        text = b""
        async for chunk in answer.aiter_bytes():
            text += chunk
            if len(text) > LONGEST_ANSWER:
                break  # the scorer refuses longer answers
        await answer.aclose()
        text = SecretFilter(request.headers.get("Authorization", "").removeprefix("Bearer ")).clean(text)
        if answer.status_code == 200:
            try:
                content = json.loads(text)
            except (ValueError, RecursionError):
                content = None
            name = request.url.path.rpartition("/")[2]
            self.answers[name] = content if isinstance(content, dict) else {}
        kept = {name: value for name, value in answer.headers.items() if name.casefold() == "retry-after"}
        return httpx2.Response(answer.status_code, headers=kept, content=text, request=request)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    def _list_models(self) -> list[dict[str, Any]]:
        listed = self.answers.get("models", {}).get("data")
        return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []

    @property
    def models(self) -> list[str]:
        """Return the names of the server's models; empty if it lists none."""
        return [str(entry["id"])[:100] for entry in self._list_models() if "id" in entry]

    def find_request_hints(self, model: str | None) -> Mapping[str, Any]:
        """Return the entry `asked_with` of a model, or of the only one, in the model list; empty if there is none."""
        mine = [entry for entry in self._list_models() if model in (None, entry.get("id"))]
        hints = mine[0].get("asked_with") if len(mine) == 1 else None
        return hints if isinstance(hints, dict) else {}

    @property
    def tokens(self) -> list[tuple[str, float]] | None:
        """Return the tokens and log-probabilities of the last answer; None if it has none."""
        try:
            content = self.answers["completions"]["choices"][0]["logprobs"]["content"]
            return read_log_probabilities(content[0]["top_logprobs"])
        except (KeyError, IndexError, TypeError, ValueError):
            return None


def make_fake_spec(cameras: int, size: int) -> SimulatorSpec:
    """Return a specification with a number of cameras with images of `size` × `size` pixels."""
    return _make_spec(tuple(Camera(f"camera {number}", size, size) for number in range(cameras)), (), WORDS.split())


def read_advertised_spec(hints: Mapping[str, Any]) -> SimulatorSpec | None:
    """Return the specification that a server advertises for its model; None if it advertises no cameras.

    Raises:
        UserError: the advertised inputs are invalid.
    """
    if "cameras" not in hints:
        return None
    cameras, state, words = hints["cameras"], hints.get("state", []), hints.get("words", [])
    valid = isinstance(cameras, dict) and 0 < len(cameras) <= MOST_CAMERAS and _is_names(list(cameras))
    for size in cameras.values() if valid else ():
        sides = size if isinstance(size, list) else []
        valid &= len(sides) == 2 and all(type(side) is int and 0 < side <= MOST_PIXELS for side in sides)
    if not (valid and _is_names(state) and _is_names(words)):
        raise UserError(
            "the server's model list has an invalid `asked_with`; `critic serve` defines its format.",
            code="server-inputs-invalid",
        )
    seen = tuple(Camera(name, height, width) for name, (height, width) in cameras.items())
    return _make_spec(seen, state, words or WORDS.split())


def choose_words(spec: SimulatorSpec) -> str:
    """Return an instruction of known words."""
    return WORDS if set(spec.words).issuperset(WORDS.split()) else spec.words[0]


def _make_spec(cameras: tuple[Camera, ...], state: Sequence[str], words: Sequence[str]) -> SimulatorSpec:
    task = Task("examined", "examined")
    return SimulatorSpec(cameras, tuple(state), (), (), (), 1.0, 1, (task,), words=tuple(words))


def _is_names(names: object) -> bool:
    return (
        isinstance(names, list)
        and len(names) <= MOST_NAMES
        and all(isinstance(name, str) and 0 < len(name) <= LONGEST_NAME for name in names)
    )
