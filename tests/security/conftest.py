"""A machine with a stranger's files, and a way to type commands there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from embodied_rl.cli.main import main
from tests.support.planting import Plant

Typed = Callable[..., tuple[int, str]]


@pytest.fixture
def plant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """What a stranger has sent, with this process beside it."""
    made = Plant(tmp_path)
    monkeypatch.chdir(made.work)
    monkeypatch.syspath_prepend("")
    return made


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str]) -> Typed:
    """Types a command; returns exit code and what was said."""

    def run(*arguments: str) -> tuple[int, str]:
        code = main([*arguments])
        said = capfd.readouterr()
        return code, said.out + said.err

    return run
