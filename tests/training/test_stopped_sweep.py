"""Sweeps end where the user ends them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.training.trainer import Trainer
from tests.support.running import REACHING, SMALL

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stopped_run_is_the_last_of_its_sweep(
    number: signal.Signals, typed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is saved, and says how to continue; the other seeds are not started."""
    step = Trainer.step

    def interrupted(trainer: Trainer) -> dict[str, float]:
        os.kill(os.getpid(), number)
        return step(trainer)

    monkeypatch.setattr(Trainer, "step", interrupted)
    code, out, err = typed("train", *SMALL, *REACHING, "plan=colocated", "plan.ranks=1", "seed=0,1,2", "-m")
    assert code == 128 + number, out + err
    assert "Continue with: embodied-rl train resume=" in out + err and "no other one is started" in err
    assert len(list((tmp_path / "runs" / "train").iterdir())) == 1
