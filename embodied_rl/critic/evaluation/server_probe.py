"""Probe a server of a vision-language model: find its capabilities and suitable settings.

All requests are sent by the scorer of training runs; a transport captures the responses. Each failure is one line with
its remedy.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import httpx2
import numpy as np

from embodied_rl.critic.evaluation.fake_inputs import choose_words, read_advertised_spec, read_prompt
from embodied_rl.critic.evaluation.response_capture import ResponseCapture
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.prompts.prompt import list_prompts, load_prompt
from embodied_rl.judge.scorers.http_json import explain_failure, shorten
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer

ALONE = 5
"""Number of sequential requests that measure the latency."""
RISE = 1.1
"""A higher concurrency must raise the rate by this factor."""
TIMEOUT_SHARE = 4
"""Timeout as a multiple of the slowest answer: servers are slower with other clients."""

Tell = Callable[[str, str], None]
"""Called with the name of a check and its result."""


@dataclass(frozen=True)
class LoadResult:
    """Result with a number of concurrent requests.

    Attributes:
        at_once: number of concurrent requests.
        rate: answers per second.
        slowest: seconds of the slowest answer.
        failure: error message; empty if none.
    """

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
    report: Tell,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> list[str]:
    """Probe a server, and return suitable settings, such as `reward.in_flight=8`.

    Args:
        config: of the scorer.
        spec: of a simulator; the random images have the sizes of its cameras.
        limits: of the probe.
        report: called with each result.
        transport: replaces the network in tests.

    Raises:
        UserError: it cannot be used; the message says why and what to do.
    """
    capture = ResponseCapture(transport)
    try:
        config, spec = await _adapt(config, spec, capture, limits)
        pictures = _draw_pictures(spec)
        model = await _check(config, spec, capture, limits, report)
        config = replace(config, model=config.model or model)
        usable = await _compare_prompts(config, spec, capture, limits, report, pictures)
        config = replace(config, prompt=choose_prompt(config.prompt, usable))
        scorer = VlmScorer(config, spec, capture)
        await scorer.open()
        report("asked with", f"reward.prompt={config.prompt}")
        alone = [await _time(scorer, next(pictures), limits) for _ in range(ALONE)]
        report("latency", f"{np.median(alone):.3f} s alone, {max(alone):.3f} s at most")
        loads = await _increase_concurrency(scorer, pictures, limits, report)
    except ScorerError as error:
        raise explain_failure(config.url, config.key_variable, error) from None
    finally:
        await capture.aclose()
    useful = choose_load(loads)
    report("useful", f"{useful.at_once} at once, {useful.rate:.1f} answers a second")
    timeout = max(1, math.ceil(TIMEOUT_SHARE * max(useful.slowest, *alone)))
    return [
        f"reward.in_flight={useful.at_once}", f"reward.timeout={timeout}", f"reward.model={config.model}",
        f"reward.prompt={config.prompt}",
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


# -- what it can do ---------------------------------------------------------------------------------------------------


async def _adapt(
    config: VlmConfig, spec: SimulatorSpec, capture: ResponseCapture, limits: ProbeLimits
) -> tuple[VlmConfig, SimulatorSpec]:
    """Return the settings and the specification that the server's model list advertises, if any."""
    scorer = VlmScorer(config, spec, capture)
    await scorer.open()
    try:
        await asyncio.wait_for(scorer.choose_model(), limits.timeout)
    except (TimeoutError, ScorerError):
        return config, spec  # `check` explains this failure
    told = capture.find_request_hints(config.model)
    prompt = read_prompt(told) if config.prompt == VlmConfig.prompt else None
    return replace(config, prompt=prompt or config.prompt), read_advertised_spec(told) or spec


async def _check(
    config: VlmConfig, spec: SimulatorSpec, capture: ResponseCapture, limits: ProbeLimits, report: Tell
) -> str | None:
    """Check that the server accepts images, report its capabilities, and return its only model."""
    scorer = VlmScorer(config, spec, capture)
    await scorer.open()
    try:
        await asyncio.wait_for(scorer.check(), limits.timeout)
    except TimeoutError:
        raise ScorerError("timeout", f"no answer within {limits.timeout:g} s") from None
    except UserError:
        if (models := capture.models) and config.model in (None, *models):
            report("models", shorten(", ".join(models).encode()))
        raise
    report("models", shorten(", ".join(capture.models).encode()) or "not listed")
    report("pictures", "accepted")
    tokens = capture.tokens
    told = "none: scores are read from text, which is coarser" if tokens is None else f"{len(tokens)} a token"
    report("log-probs", told)
    return capture.models[0] if len(capture.models) == 1 else None


async def _compare_prompts(
    config: VlmConfig,
    spec: SimulatorSpec,
    capture: ResponseCapture,
    limits: ProbeLimits,
    report: Tell,
    pictures: "Iterator[Frame]",
) -> list[str]:
    """Test each built-in prompt and the given one, report the results, and return the usable ones."""
    usable: list[str] = []
    for name in dict.fromkeys((*list_prompts(), config.prompt)):
        views = (spec.cameras[0].name,) * load_prompt(name).views
        own = replace(config, prompt=name, done_prompt=None, least_mass=0.0)
        own = own if name == config.prompt else replace(own, views=views, reference=None)
        try:
            scorer = VlmScorer(own, spec, capture)
        except UserError as error:
            report(f"prompt {name}", f"not asked: {error}")
            continue
        await scorer.open()
        try:
            score = await _ask(scorer, next(pictures), limits)
            found, is_usable = _describe_prompt(name, score, capture, config.least_mass)
        except ScorerError as error:
            found, is_usable = f"not usable: {error}", False
        usable += [name] if is_usable else []
        report(f"prompt {name}", found)
    return usable


def _describe_prompt(name: str, score: Score, capture: ResponseCapture, least_mass: float) -> tuple[str, bool]:
    """Return a description of the model's answer to a prompt, and whether the prompt is usable."""
    labels, tokens = load_prompt(name).reading.labels, capture.tokens
    if labels and tokens is not None:
        mass = sum(math.exp(value) for token, value in tokens if token.strip().casefold() in labels)
        weak = "" if mass >= least_mass else f": below reward.least_mass={least_mass}, not usable"
        return f"its answers have a probability of {mass:.2f} together{weak}", not weak
    if not score.valid:
        return f"not usable: {score.reason}, {score.detail}", False
    return f"answered, {score.value:.2f}", True


# -- how fast ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Frame:
    """An observation to score: camera → uint8 [1, h, w, 3], instruction, and length of the state."""

    number: int
    shown: dict[str, Any]
    words: str
    state: int


def _draw_pictures(spec: SimulatorSpec) -> Iterator[Frame]:
    """Yield different random images, so that no server answers from its cache."""
    random = np.random.default_rng(0)
    for number in count():
        shown = {each.name: (each.height, each.width) for each in spec.cameras}
        pictures = {name: random.integers(0, 255, (1, *size, 3), np.uint8) for name, size in shown.items()}
        yield Frame(number, pictures, choose_words(spec), len(spec.state_names))


async def _ask(scorer: VlmScorer, frame: Frame, limits: ProbeLimits) -> Score:
    kind = scorer.traits.kinds[0]
    first = {name: each[0] for name, each in frame.shown.items()}
    count = 2 if kind == "pair" else scorer.traits.frames
    frames = {name: np.repeat(each, count, axis=0) for name, each in frame.shown.items()}
    asked = ScoreRequest(frame.number, 0, kind, frame.words, frames, first, np.zeros(frame.state, np.float32))
    try:
        return (await asyncio.wait_for(scorer.score([asked]), limits.timeout))[0]
    except TimeoutError:
        raise ScorerError("timeout", f"no answer within {limits.timeout:g} s") from None


async def _time(scorer: VlmScorer, frame: Frame, limits: ProbeLimits) -> float:
    began = time.perf_counter()
    await _ask(scorer, frame, limits)
    return time.perf_counter() - began


async def _increase_concurrency(
    scorer: VlmScorer, pictures: Iterator[Frame], limits: ProbeLimits, report: Tell
) -> list[LoadResult]:
    """Double the concurrency until the rate stops rising, a request fails, or the maximum is reached."""
    loads: list[LoadResult] = []
    at_once = 1
    while at_once <= limits.most:
        load = await _measure_load(scorer, at_once, pictures, limits)
        end = f", then {load.failure}" if load.failure else ""
        report(f"{at_once} at once", f"{load.rate:.1f} answers a second, {load.slowest:.3f} s at most{end}")
        loads.append(load)
        if load.failure or (len(loads) > 1 and load.rate < RISE * loads[-2].rate):
            break
        at_once *= 2
    return loads


async def _measure_load(scorer: VlmScorer, at_once: int, pictures: Iterator[Frame], limits: ProbeLimits) -> LoadResult:
    began, taken, failures = time.perf_counter(), list[float](), list[str]()

    async def work() -> None:
        while not failures:
            try:
                taken.append(await _time(scorer, next(pictures), limits))
            except ScorerError as error:
                failures.append(str(error))
            if time.perf_counter() - began >= limits.seconds:
                return

    await asyncio.gather(*(work() for _ in range(at_once)))
    failure = failures[0] if failures else ""
    return LoadResult(at_once, len(taken) / (time.perf_counter() - began), max(taken, default=0.0), failure)
