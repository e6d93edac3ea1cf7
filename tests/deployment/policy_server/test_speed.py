"""The measurement of a served policy runs and adds up."""

import pytest

from embodied_rl.deployment.policy_server.speed import CLIENTS, measure_serving


@pytest.mark.process
def test_a_served_policy_is_measured() -> None:
    found = measure_serving("asset:tabletop_base.safetensors", seconds=0.2)
    assert set(found.per_second) == set(CLIENTS) and all(rate > 0 for rate in found.per_second.values())
    assert found.alone_ms >= found.infer_ms > 0 and found.overhead_ms > 0
    assert found.first_s > 0 and found.first_cpu_s > 0.1, "Python started, and loaded a policy"
    assert "answers a second for one client" in found.describe()
