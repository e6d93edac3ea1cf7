"""A run that is stopped between two iterations, and continued."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli.main import main
from embodied_rl.training.trainer import Trainer
from tests.support.running import assert_same, with_plan


def assert_stopped_goes_on_alike(
    settings: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    again: tuple[str, ...] = (),
    alike: Callable[[Path, Path], None] = assert_same,
) -> Path:
    """A run that is stopped and continued, typing `again`, equals one that is not, to the bit; returns that one."""
    step = Trainer.step

    def interrupted(trainer: Trainer) -> dict[str, Any]:
        if trainer.iteration == 3:
            raise KeyboardInterrupt
        return step(trainer)

    assert main(with_plan(["train", *settings, "run.root=straight"])) == 0
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        assert main(with_plan(["train", *settings, "run.root=halted"])) == 130
    assert main(["train", "resume=last", "run.root=halted", *again]) == 0
    (straight,), (halted,) = ((folder / root).glob("*/*") for root in ("straight", "halted"))
    alike(halted, straight)
    return straight
