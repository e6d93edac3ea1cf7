"""Find out what a server of a vision-language model can do, and which settings it should be asked with.

Everything is asked through the scorer of training runs, whose requests and answers are watched on their way. Each
failure is one line with its remedy.
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

from embodied_rl.critic.examination.stand_in import choose_words, read_prompt, read_stand_in
from embodied_rl.critic.examination.watch import Watch
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.scorer import Score, ScoreRequest, ScorerError
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.prompts.prompt import list_prompts, load_prompt
from embodied_rl.judge.scorers.http_json import shorten
from embodied_rl.judge.scorers.remedies import explain_failure
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer

ALONE = 5
"""Requests, one after the other, that tell the latency."""
RISE = 1.1
"""A higher concurrency is worth it where it answers so many times as much."""
TIMEOUT_SHARE = 4
"""The timeout is so many times the slowest answer: servers are slower when others use them, too."""

Tell = Callable[[str, str], None]
"""Takes what was looked at, and what was found."""


@dataclass(frozen=True)
class LoadResult:
    """What happened with so many requests at once.

    Attributes:
        at_once: how many.
        rate: answers a second.
        slowest: seconds of the slowest answer.
        failure: what went wrong; empty if nothing did.
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
    tell: Tell,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> list[str]:
    """Ask a server what it can do, and return the settings to type, such as `reward.in_flight=8`.

    Args:
        config: of the scorer.
        spec: of a simulator, whose cameras the pictures stand for.
        limits: of the probe.
        tell: gets each finding as soon as it is known.
        transport: instead of the network, for tests.

    Raises:
        UserError: it cannot be used; the message says why and what to do.
    """
    watch = Watch(transport)
    try:
        config, spec = await _adapt(config, spec, watch, limits)
        pictures = _draw_pictures(spec)
        model = await _check(config, spec, watch, limits, tell)
        config = replace(config, model=config.model or model)
        usable = await _compare_prompts(config, spec, watch, limits, tell, pictures)
        config = replace(config, prompt=choose_prompt(config.prompt, usable))
        scorer = VlmScorer(config, spec, watch)
        await scorer.open()
        tell("asked with", f"reward.prompt={config.prompt}")
        alone = [await _time(scorer, next(pictures), limits) for _ in range(ALONE)]
        tell("latency", f"{np.median(alone):.3f} s alone, {max(alone):.3f} s at most")
        loads = await _raise_load(scorer, pictures, limits, tell)
    except ScorerError as error:
        raise UserError(explain_failure(config.url, config.key_variable, error)) from None
    finally:
        await watch.aclose()
    useful = choose_load(loads)
    tell("useful", f"{useful.at_once} at once, {useful.rate:.1f} answers a second")
    timeout = max(1, math.ceil(TIMEOUT_SHARE * max(useful.slowest, *alone)))
    return [
        f"reward.in_flight={useful.at_once}", f"reward.timeout={timeout}", f"reward.model={config.model}",
        f"reward.prompt={config.prompt}",
    ]  # fmt: skip


def choose_load(loads: Sequence[LoadResult]) -> LoadResult:
    """Return the lowest concurrency that is nearly as good as the best, of those at which nothing failed.

    Raises:
        UserError: something failed even with one request at a time.
    """
    whole = [load for load in loads if not load.failure]
    if not whole:
        raise UserError(f"the server fails even with one request at a time: {loads[0].failure}.")
    best = max(load.rate for load in whole)
    return next(load for load in whole if load.rate * RISE >= best)


def choose_prompt(prompt: str, usable: Sequence[str]) -> str:
    """Return a prompt that is usable: the given one, or else another one with the same question.

    Raises:
        UserError: there is none.
    """
    if prompt in usable:
        return prompt
    kind = load_prompt(prompt).kind
    others = [name for name in usable if load_prompt(name).kind == kind and not name.startswith("embedded")]
    if not others:
        raise UserError(f"reward.prompt={prompt} is not usable with this model, nor is another one for '{kind}'.")
    return next((name for name in others if name.startswith("progress")), others[0])


# -- what it can do ---------------------------------------------------------------------------------------------------


async def _adapt(
    config: VlmConfig, spec: SimulatorSpec, watch: Watch, limits: ProbeLimits
) -> tuple[VlmConfig, SimulatorSpec]:
    """Return the settings and the stand-in by what the server tells of its model, where it tells anything."""
    scorer = VlmScorer(config, spec, watch)
    await scorer.open()
    try:
        await asyncio.wait_for(scorer.choose_model(), limits.timeout)
    except (TimeoutError, ScorerError):
        return config, spec  # the check says it better
    told = watch.find_asked_with(config.model)
    prompt = read_prompt(told) if config.prompt == VlmConfig.prompt else None
    return replace(config, prompt=prompt or config.prompt), read_stand_in(told) or spec


async def _check(config: VlmConfig, spec: SimulatorSpec, watch: Watch, limits: ProbeLimits, tell: Tell) -> str | None:
    """Check that the server answers about pictures, and tell what it has; return its only model."""
    scorer = VlmScorer(config, spec, watch)
    await scorer.open()
    try:
        await asyncio.wait_for(scorer.check(), limits.timeout)
    except TimeoutError:
        raise ScorerError("timeout", f"no answer within {limits.timeout:g} s") from None
    except UserError:
        if (models := watch.models) and config.model in (None, *models):
            tell("models", shorten(", ".join(models).encode()))
        raise
    tell("models", shorten(", ".join(watch.models).encode()) or "not listed")
    tell("pictures", "accepted")
    tokens = watch.tokens
    told = "none: scores are read from text, which is coarser" if tokens is None else f"{len(tokens)} a token"
    tell("log-probs", told)
    return watch.models[0] if len(watch.models) == 1 else None


async def _compare_prompts(
    config: VlmConfig, spec: SimulatorSpec, watch: Watch, limits: ProbeLimits, tell: Tell, pictures: "Iterator[Frame]"
) -> list[str]:
    """Tell of each built-in prompt, and of the given one, what the model makes of it; return the usable ones."""
    usable: list[str] = []
    for name in dict.fromkeys((*list_prompts(), config.prompt)):
        views = (spec.cameras[0].name,) * load_prompt(name).views
        own = replace(config, prompt=name, done_prompt=None, least_mass=0.0)
        own = own if name == config.prompt else replace(own, views=views, reference=None)
        try:
            scorer = VlmScorer(own, spec, watch)
        except UserError as error:
            tell(f"prompt {name}", f"not asked: {error}")
            continue
        await scorer.open()
        try:
            score = await _ask(scorer, next(pictures), limits)
            found, is_usable = _describe_prompt(name, score, watch, config.least_mass)
        except ScorerError as error:
            found, is_usable = f"not usable: {error}", False
        usable += [name] if is_usable else []
        tell(f"prompt {name}", found)
    return usable


def _describe_prompt(name: str, score: Score, watch: Watch, least_mass: float) -> tuple[str, bool]:
    """Return what a model makes of a prompt, and whether it is usable."""
    labels, tokens = load_prompt(name).reading.labels, watch.tokens
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
    """A moment that is asked about: camera → uint8 [1, h, w, 3], known words, and the length of the state."""

    number: int
    shown: dict[str, Any]
    words: str
    state: int


def _draw_pictures(spec: SimulatorSpec) -> Iterator[Frame]:
    """Yield pictures that all differ, so that no server answers from its memory."""
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


async def _raise_load(
    scorer: VlmScorer, pictures: Iterator[Frame], limits: ProbeLimits, tell: Tell
) -> list[LoadResult]:
    """Double the concurrency until more brings no more, something fails, or the highest is reached."""
    loads: list[LoadResult] = []
    at_once = 1
    while at_once <= limits.most:
        load = await _measure_load(scorer, at_once, pictures, limits)
        end = f", then {load.failure}" if load.failure else ""
        tell(f"{at_once} at once", f"{load.rate:.1f} answers a second, {load.slowest:.3f} s at most{end}")
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
