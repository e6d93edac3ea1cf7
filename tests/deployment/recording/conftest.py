"""Fixtures of recordings."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.deployment.recording.alignment import EpisodePart
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.transport.messages import Messages
from tests.support.recorded_robot import FakeRun, Truth, record_run

Played = tuple[list[list[Truth]], Conversion, list[EpisodePart]]


@pytest.fixture(scope="session")
def messages() -> Messages:
    return Messages("jazzy")


@pytest.fixture
def play(tmp_path: Path, messages: Messages) -> Callable[..., Played]:
    """Record a run into `tmp_path`/bag, and convert it; `aborted` as in `Conversion.open`."""

    def play(
        run: Callable[[FakeRun], object], observed: bool = True, robot: Any = None, aborted: bool = False
    ) -> Played:
        truth = record_run(tmp_path / "bag", messages, run, observed, robot).truth
        conversion = Conversion.open(tmp_path / "bag", messages, None, aborted)
        return truth, conversion, list(conversion.read_parts())

    return play
