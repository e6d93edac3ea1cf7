"""The measurement of a served policy runs and adds up."""

import asyncio
import re
import socket

import pytest

from embodied_rl.interfaces.errors import RunFailed
from tests.benchmarks.policy_server import CLIENTS, count_answers, measure_serving


@pytest.mark.thorough
@pytest.mark.process
def test_a_served_policy_is_measured() -> None:
    found = measure_serving("asset:tabletop_base.safetensors", seconds=0.2)
    assert set(found.per_second) == set(CLIENTS) and all(rate > 0 for rate in found.per_second.values())
    assert found.alone_ms >= found.infer_ms > 0 and found.overhead_ms > 0
    assert found.first_s > 0 and found.first_cpu_s > 0.1, "Python started, and loaded a policy"


def test_a_server_that_ends_does_not_hold_up_the_measurement() -> None:
    with socket.socket() as taken:  # bound and not listening: each connection is refused
        taken.bind(("127.0.0.1", 0))
        url = f"ws://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunFailed, match=re.escape(url)):
            asyncio.run(asyncio.wait_for(count_answers(url, clients=2, seconds=1.0), 60))
