"""How fast a policy answers behind `embodied-rl serve`: one client, several, and what the way there and back costs.

The server is a process of its own; clients share this one. All figures depend on what else the machine does.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.interfaces.description import IMAGES, PROMPT, STATE, PolicyDescription
from embodied_rl.interfaces.errors import RunFailed
from tests.benchmarks.settings import BenchmarkConfig
from tests.support.ready_line import start_until_ready

POLICY = "asset:tabletop_base.safetensors"
CLIENTS = (1, 8)
ROUNDS = 3
WARM = 10
"""Questions before anything is measured."""
ANSWER_S = 60.0
"""Seconds that all questions before the measurement, and the last ones, may take."""
FIRST = """
import numpy as np, embodied_rl
policy = embodied_rl.load_policy({policy!r})
policy.act({{name: np.zeros(*shape) for name, shape in {shapes!r}.items()}} | {{"prompt": {words!r}}})
"""


@dataclass(frozen=True)
class ServedSpeed:
    """What was measured.

    Attributes:
        per_second: clients → answers a second, of all of them together; median of the rounds.
        alone_ms: the question of a client that is connected alone, from its call to its actions; median.
        infer_ms: how much of it is the policy's.
        overhead_ms: the rest: checks, messages, both ways.
        first_s, first_cpu_s: seconds from the start of Python to the first action, on the clock and of the processor.
        load: of the machine before and after (one minute).
    """

    per_second: Mapping[int, float]
    alone_ms: float
    infer_ms: float
    overhead_ms: float
    first_s: float
    first_cpu_s: float
    load: tuple[float, float]


def measure_serving(policy: str, seconds: float = 10.0) -> ServedSpeed:
    """Measure a policy behind a server that this starts, and ends.

    Args:
        policy: a run, a file or asset:<name>.
        seconds: length of each measurement.

    Raises:
        RunFailed: the server does not start, or does not answer.
    """
    before = os.getloadavg()[0]
    with start_until_ready(["serve", policy, "port=0"], r"ws://[^;\s]+") as (_, url):
        rates = [{count: asyncio.run(count_answers(url, count, seconds)) for count in CLIENTS} for _ in range(ROUNDS)]
        with PolicyClient(url, deadline=ANSWER_S) as client:
            assert client.spec is not None, "our server says what it expects"
            spec = client.spec
            alone = _time_alone(client, seconds)
    first = _time_first(policy, spec)
    per_second = {count: statistics.median(rate[count] for rate in rates) for count in CLIENTS}
    return ServedSpeed(per_second, *alone, *first, load=(before, os.getloadavg()[0]))


async def count_answers(url: str, clients: int, seconds: float) -> float:
    """Return how many answers a second clients get that ask again at once.

    Raises:
        RunFailed: a client is refused or cut off, or `ANSWER_S` more than `seconds` were not enough.
    """
    from websockets.asyncio.client import connect

    from embodied_rl.deployment.policy_client.wire import pack, unpack

    until = 0.0

    async def go_on(seed: int, ready: asyncio.Barrier) -> int:
        async with connect(url, compression=None, max_size=None, proxy=None) as connection:
            question = pack(_observe(PolicyDescription.from_dict(unpack(await connection.recv())), seed))
            done = -WARM
            await ready.wait()
            while time.perf_counter() < until or done < 0:
                await connection.send(question)
                if isinstance(answer := await connection.recv(), str):
                    raise RunFailed(f"{url} refused: {answer}")
                done += 1
            return done

    ready = asyncio.Barrier(clients + 1)
    try:
        async with asyncio.timeout(seconds + ANSWER_S), asyncio.TaskGroup() as group:  # one that fails ends the others
            tasks = [group.create_task(go_on(seed, ready)) for seed in range(clients)]
            await ready.wait()
            began = time.perf_counter()
            until = began + seconds
    except TimeoutError:
        raise RunFailed(f"{url} did not answer {clients} clients within {seconds + ANSWER_S:g} s") from None
    except ExceptionGroup as failed:
        raise RunFailed(f"{url}: {failed.exceptions[0]}") from failed
    total = sum(task.result() for task in tasks) + WARM * clients
    return total / (time.perf_counter() - began)


def _time_alone(client: PolicyClient, seconds: float) -> tuple[float, float, float]:
    """Return the medians of milliseconds of a question, of the policy in it, and of the rest."""
    assert client.spec is not None, "our server says what it expects"
    observation, found = _observe(client.spec, 0), list[tuple[float, float]]()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(found) <= WARM:
        client.act(observation)
        found.append((client.timing["total_ms"], client.timing["infer_ms"]))
    kept = found[WARM:]
    median: Callable[[Any], float] = statistics.median
    return (
        median([total for total, _ in kept]),
        median([infer for _, infer in kept]),
        median([total - infer for total, infer in kept]),
    )


def _time_first(policy: str, spec: PolicyDescription) -> tuple[float, float]:
    """Return the least seconds, of three tries, that a new Python takes to its first action: clock and processor."""
    shapes = {f"{IMAGES}{name}": ((*size, 3), "uint8") for name, size in spec.cameras.items()}
    shapes |= {STATE: ((len(spec.state_names),), "float32")}
    words = " ".join(spec.words[:1]) or "go"
    code, tries = FIRST.format(policy=policy, shapes=shapes, words=words), list[tuple[float, float]]()
    for _ in range(ROUNDS):
        used, began = os.times(), time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
        now = os.times()
        processor = now.children_user + now.children_system - used.children_user - used.children_system
        tries.append((time.perf_counter() - began, processor))
    return min(clock for clock, _ in tries), min(processor for _, processor in tries)


def _observe(spec: PolicyDescription, seed: int) -> dict[str, Any]:
    """Return an observation of noise that fits."""
    random = np.random.default_rng(seed)
    images = {f"{IMAGES}{name}": random.integers(0, 256, (*size, 3), np.uint8) for name, size in spec.cameras.items()}
    state = random.normal(0, 0.1, len(spec.state_names)).astype(np.float32)
    return {**images, STATE: state, PROMPT: " ".join(spec.words[:1]) or "go"}


def run(config: BenchmarkConfig) -> dict[str, Any]:
    """Measure `policy_file`, by default a pocket policy, behind `serve`."""
    policy = config.policy_file or POLICY
    return {"policy": policy, **asdict(measure_serving(policy, config.seconds))}
