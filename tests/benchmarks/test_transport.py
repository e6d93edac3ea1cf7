"""Transport and recovery are measured of what they say."""

import pytest

from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode
from tests.benchmarks import recovery, transport
from tests.benchmarks.transport import Load, StillSimulator

pytestmark = pytest.mark.thorough


@pytest.mark.process
def test_pictures_of_the_size_that_is_told_are_carried() -> None:
    load = Load(envs=3, cameras=2, size=8)
    observation = StillSimulator(load, 3).reset([None] * 3)
    assert {image.shape for image in observation.images.values()} == {(3, 8, 8, 3)} and len(observation.images) == 2
    found = transport.measure_transport(load, steps=10)
    assert 0 < found.signal < found.whole and found.pickled > 0


@pytest.mark.process
def test_a_killed_process_is_missed_and_replaced() -> None:
    kind = SimulatorKind.find(SimNode("tabletop", options={"image_size": 16}))
    found = recovery.measure_recovery(kind, envs=2, kills=2)
    assert 0 < found.noticed < found.recovered and found.kills == 2
