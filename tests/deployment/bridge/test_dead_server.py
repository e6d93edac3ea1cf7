"""A policy server whose process is killed while the robot executes a long chunk: the robot stops in time."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.execution.safety_filter import measure_longest_ramp
from embodied_rl.deployment.policy_client.client import PolicyClient
from embodied_rl.deployment.robots.reading import load_robot
from tests.support.bridging import RealTimeBench
from tests.support.policy_serving import DEADLINE, running_policy
from tests.support.robots import describe_policy

pytestmark = pytest.mark.thorough
ROBOT = load_robot("tabletop")
SPEC = replace(describe_policy(ROBOT), horizon=50, executed=50)
RAMP_S = measure_longest_ramp(ROBOT.limits, 1 / ROBOT.command_hz)


class Leftwards:
    """Moves the tool to the left."""

    def infer(self, observation: Any, *others: Any, **more: Any) -> Any:
        return np.tile(np.array([0.0, 0.004, 0.0, -1.0], np.float32), (len(observation), SPEC.horizon, 1))


def serve() -> None:
    """Serve until the standard input ends."""
    with running_policy(Leftwards(), SPEC) as running:
        print(running.url, flush=True)
        sys.stdin.read()


@contextmanager
def start_server() -> Iterator[tuple["subprocess.Popen[str]", str]]:
    program = f"from {__name__} import serve; serve()"
    root = Path(__file__).parents[3]
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["naive", "stop"])
def test_a_robot_whose_policy_server_is_killed_stops_within_the_open_loop_budget(strategy: str) -> None:
    with start_server() as (process, url), closing(PolicyClient(url, deadline=DEADLINE)) as client:
        bench = RealTimeBench(client, {"strategy": strategy, "requests": 2})
        bench.prepare()
        bench.run(0.5)
        assert bench.speeds.any()
        process.send_signal(signal.SIGKILL)
        process.wait(DEADLINE)
        killed = bench.now_ns
        while bench.speeds.any():
            bench.run(0.01)
            assert bench.now_ns - killed < 4e9, "the chunk was executed to its end"
    stopped = (bench.now_ns - killed) / 1e9
    print(f"{strategy}: still after {stopped:.2f} s")
    assert stopped <= ROBOT.open_loop_s + 1 / ROBOT.control_hz + RAMP_S
