"""Latency and throughput of an embedded critic behind `embodied-rl critic serve`.

The server runs in a separate process; the client is the scorer `vlm`. As in a run, each request has a new image and the
first one of its episode.
"""

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil

from embodied_rl.config.assets import find_asset
from embodied_rl.critic.critic_file import load_critic
from embodied_rl.interfaces.errors import RunFailed
from embodied_rl.interfaces.scorer import ScoreRequest
from embodied_rl.interfaces.sim import SimulatorSpec
from embodied_rl.judge.scorers.vlm import VlmConfig, VlmScorer
from embodied_rl.runtime.simulators.kind import SimulatorKind
from tests.benchmarks.settings import BenchmarkConfig
from tests.support.ready_line import start_until_ready

CRITIC = "tabletop_critic.safetensors"
ALONE = 100
"""Number of sequential requests."""
DECISIONS = 8
"""Requests about an episode, which share its first picture: the tabletop's episodes have 5 to 10 decisions."""


@dataclass(frozen=True)
class ServerFigures:
    """Results of the measurement.

    Attributes:
        alone_ms, alone_p95_ms: median and 95th percentile of one request without others.
        per_second: requests answered per second, with `at_once` of them in flight.
        at_once: requests in flight.
        batch: mean size of the batches that the server made of them.
        server_ms, client_ms: processor time of the server and of the client for one of them, in all their threads.
        load: of the machine before and after (one minute), which these figures depend on.
    """

    alone_ms: float
    alone_p95_ms: float
    per_second: float
    at_once: int
    batch: float
    server_ms: float
    client_ms: float
    load: tuple[float, float]


def measure_server(critic: Path, spec: SimulatorSpec, seconds: float = 10.0, at_once: int = 64) -> ServerFigures:
    """Measure a critic behind a server that this starts, and ends.

    Args:
        critic: its file.
        spec: of the simulator that it was trained for.
        seconds: length of the measurement with many requests.
        at_once: requests in flight.

    Raises:
        RunFailed: the server does not start, or an answer is not valid; the message says which.
    """
    words = load_critic(critic).vocabulary
    before = os.getloadavg()[0]
    words_of_server = ["critic", "serve", f"model={critic}", "port=0"]
    with start_until_ready(words_of_server, r"http://\S+/v1") as (pid, url):
        server = psutil.Process(pid)
        alone = asyncio.run(_ask_alone(url, spec, words))
        start = np.array([sum(server.cpu_times()[:2]), time.process_time()])
        count, batch = asyncio.run(_ask_at_once(url, spec, words, seconds, at_once))
        used = np.array([sum(server.cpu_times()[:2]), time.process_time()]) - start
    server_ms, client_ms = (1e3 * used / max(1, count)).tolist()
    quantiles = [1e3 * each for each in statistics.quantiles(alone, n=20)]
    load = (before, os.getloadavg()[0])
    return ServerFigures(quantiles[9], quantiles[18], count / seconds, at_once, batch, server_ms, client_ms, load)


@asynccontextmanager
async def _open(url: str, spec: SimulatorSpec) -> AsyncIterator[VlmScorer]:
    scorer = VlmScorer(VlmConfig(url=url, prompt="embedded"), spec)
    await scorer.open()
    try:
        await scorer.check()
        yield scorer
    finally:
        await scorer.close()


async def _ask_alone(url: str, spec: SimulatorSpec, words: Sequence[str]) -> list[float]:
    """Return the seconds of each request."""
    async with _open(url, spec) as scorer:
        return [await _time(scorer, _make_request(*divmod(number, DECISIONS), spec, words)) for number in range(ALONE)]


async def _ask_at_once(
    url: str, spec: SimulatorSpec, words: Sequence[str], seconds: float, at_once: int
) -> tuple[int, float]:
    """Return how many requests were answered in the time, and the mean size of the server's batches."""
    async with _open(url, spec) as scorer:
        size, calls = await _read_batches(url)
        until = time.monotonic() + seconds

        async def go_on(place: int) -> int:
            done = 0
            while time.monotonic() < until:
                episode = ALONE + place + at_once * (done // DECISIONS)
                await _time(scorer, _make_request(episode, done % DECISIONS, spec, words))
                done += time.monotonic() < until
            return done

        count = sum(await asyncio.gather(*(go_on(place) for place in range(at_once))))
        later_size, later_calls = await _read_batches(url)
        return count, (later_size - size) / max(1.0, later_calls - calls)


async def _time(scorer: VlmScorer, request: ScoreRequest) -> float:
    began = time.monotonic()
    (score,) = await scorer.score([request])
    if not score.valid:
        raise RunFailed(f"an answer was not valid: {score.reason}, {score.detail}")
    return time.monotonic() - began


async def _read_batches(url: str) -> tuple[float, float]:
    """Return the sum of the sizes of all batches, and their number, from the server's own counts."""
    async with httpx2.AsyncClient() as client:
        text = (await client.get(url.removesuffix("/v1") + "/metrics")).text
    found = dict(line.split(" ") for line in text.splitlines() if line.startswith("embodied_rl_batch_size_"))
    return float(found["embodied_rl_batch_size_sum"]), float(found["embodied_rl_batch_size_count"])


def _make_request(episode: int, decision: int, spec: SimulatorSpec, words: Sequence[str]) -> ScoreRequest:
    """Return a request about noise, which no cache has but for the episode's first picture."""
    random, begun = np.random.default_rng([episode, 1 + decision]), np.random.default_rng(episode)
    shapes = {camera.name: (camera.height, camera.width, 3) for camera in spec.cameras}
    frames = {name: random.integers(0, 256, (1, *shape), np.uint8) for name, shape in shapes.items()}
    first = {name: begun.integers(0, 256, shape, np.uint8) for name, shape in shapes.items()}
    state = random.normal(size=len(spec.state_names)).astype(np.float32)
    return ScoreRequest(episode, decision, "absolute", words[episode % len(words)], frames, first, state)


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure the shipped critic behind `critic serve`."""
    return asdict(measure_server(find_asset(CRITIC), SimulatorKind.find(config.sim).spec, config.seconds))
