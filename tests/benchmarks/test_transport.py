"""Transport and recovery are measured of what they say."""

from io import StringIO

import pytest
from rich.console import Console

from embodied_rl.benchmarks import recovery, transport
from embodied_rl.benchmarks.transport import Load, StillSimulator, TransportTimes
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode


@pytest.mark.process
def test_pictures_of_the_size_that_is_told_are_carried() -> None:
    load = Load(envs=3, cameras=2, size=8)
    observation = StillSimulator(load, 3).reset([None] * 3)
    assert {image.shape for image in observation.images.values()} == {(3, 8, 8, 3)} and len(observation.images) == 2
    found = transport.measure_transport(load, steps=10)
    assert 0 < found.signal < found.whole and found.pickled > 0


def test_the_table_shows_milliseconds() -> None:
    text = StringIO()
    Console(file=text, width=120).print(
        transport.make_transport_table([TransportTimes(Load(32, 1, 64), 0.0001, 0.0002, 0.5)])
    )
    assert all(shown in text.getvalue() for shown in ("0.100", "0.200", "500.000"))


@pytest.mark.process
def test_a_killed_process_is_missed_and_replaced() -> None:
    kind = SimulatorKind.find(SimNode("tabletop", options={"image_size": 16}))
    found = recovery.measure_recovery(kind, envs=2, kills=2)
    assert 0 < found.noticed < found.recovered and found.kills == 2
    assert "lost 2 episodes" in str(found)
