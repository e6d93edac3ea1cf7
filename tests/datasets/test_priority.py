"""An encoder does not change the priority of the process; as root, SVT-AV1 sets real-time priority."""

import os
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.datasets.lerobot.info import Feature
from embodied_rl.datasets.lerobot.video_files import CODECS, Encoder


def policies() -> set[tuple[int, int]]:
    """Scheduling policy and priority of every thread of this process."""
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    return {(os.sched_getscheduler(thread), os.sched_getparam(thread).sched_priority) for thread in threads}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are listed by Linux alone")
@pytest.mark.parametrize("codec", CODECS)
def test_the_priority_of_all_threads_stays(tmp_path: Path, codec: str) -> None:
    before = policies()
    encoder = Encoder(tmp_path / "video.mp4", codec, Fraction(10), Feature("video", (64, 64, 3), ()))
    try:
        for frame in range(3):
            encoder.add(np.full((64, 64, 3), 40 * frame, np.uint8))
            assert policies() == before
    finally:
        encoder.close()
    assert policies() == before
