"""Measure pictures per second with both renderings, and the gain from a second process.

In the root of the repository, `PYTHONPATH=.:sims <python> -m tests.benchmarks.libero_speed <assets> [suite] [renderer]`
with the Python of LIBERO's environment prints medians over interleaved rounds: two cameras of 128 × 128 pixels, chunks
of eight control steps.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Episode
from embodied_rl_sims.libero.settings import CAMERAS, LiberoConfig
from embodied_rl_sims.libero.simulator import Libero

SIZE, CHUNK, ROUNDS, PICTURES = 128, 8, 7, 8
_EPISODE = [Episode(0, 0, 3, initial_state=0)]


def make_simulator(assets: str, suite: Any, renderer: Any, rendering: Any) -> Libero:
    """Build a simulator with one environment that never ends, and run a first chunk."""
    config = LiberoConfig(
        suite=suite,
        image_size=SIZE,
        renderer=renderer,
        assets=assets,
        rendering=rendering,
        horizon=10**6,
        terminate_on_success=False,
    )
    made = Libero(config, 1)
    made.reset(_EPISODE)
    step_chunk(made)
    return made


def step_chunk(made: Libero) -> None:
    """Run eight control steps, and draw both cameras' pictures."""
    actions = np.random.default_rng(0).uniform(-0.5, 0.5, (1, CHUNK, 7)).astype(np.float32)
    made.step(actions, _EPISODE)


def step_chunks(made: Libero) -> None:
    """Run four chunks."""
    for _ in range(4):
        step_chunk(made)


def draw_frames(made: Libero) -> None:
    """Draw pictures without simulating."""
    for _ in range(PICTURES // len(CAMERAS)):
        made.environment(0).observe(pictures=True)


def measure_rate(work: Callable[[], None], count: int) -> float:
    """Measure how many of `count` items `work` completes per second."""
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def compare_renderers(names: tuple[str, str, str]) -> None:
    """Measure pictures per second, official and light in turns, in this process."""
    made = {rendering: make_simulator(*names, rendering) for rendering in ("official", "light")}
    found: dict[str, list[float]] = {rendering: [] for rendering in made}
    for _ in range(ROUNDS):
        for rendering, each in made.items():
            found[rendering].append(measure_rate(partial(draw_frames, each), PICTURES))
    ratio = statistics.median(b / a for a, b in zip(*found.values(), strict=True))
    middle = {rendering: round(statistics.median(rates), 1) for rendering, rates in found.items()}
    print(f"pictures/s {middle}, light over official {ratio:.2f}")


def serve_measurements(names: tuple[str, str, str]) -> None:
    """Measure control steps per second of light chunks, once for each line of standard input."""
    made = make_simulator(*names, "light")
    print("ready", flush=True)
    for _ in sys.stdin:
        print(measure_rate(partial(step_chunks, made), 4 * CHUNK), flush=True)


def compare_processes(names: tuple[str, str, str]) -> None:
    """Compare one process with two at once, in turns."""
    command = [sys.executable, "-m", __spec__.name, *names, "serve"]
    pair = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    lines = [(each.stdin, each.stdout) for each in pair]
    assert all(answers is not None and answers.readline() == "ready\n" for _, answers in lines)
    found: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(ROUNDS):
        for count, rates in found.items():
            for asked, _ in lines[:count]:
                print(file=asked, flush=True)
            rates.append(sum(float(answers.readline()) for _, answers in lines[:count] if answers is not None))
    ratio = statistics.median(b / a for a, b in zip(found[1], found[2], strict=True))
    print(
        f"control steps/s {[round(statistics.median(rates), 1) for rates in found.values()]}, two over one {ratio:.2f}"
    )
    for each in pair:
        each.kill()
        each.wait()


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[-1:] == ["serve"]:
        serve_measurements((given[0], given[1], given[2]))
    else:
        where, suite_name, opengl = [*given, *("libero_spatial", "egl")[len(given) - 1 :]]
        compare_renderers((where, suite_name, opengl))
        compare_processes((where, suite_name, opengl))
