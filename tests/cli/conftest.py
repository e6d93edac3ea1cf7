"""A third-party distribution: a simulator, a policy, an algorithm and their YAML, as another package offers them."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.cli.command import list_commands
from embodied_rl.cli.main import main
from embodied_rl.config import plugins

MODULE = '''
"""Plug-ins that do nothing."""

from dataclasses import dataclass, field

from embodied_rl.interfaces.algorithm import Needs
from embodied_rl.interfaces.sim import SimulatorSpec, Task
from embodied_rl.interfaces.trust import Code, Text

SIMS = {"toy": "toy_package:Toy", "broken": "toy_missing:Toy", "hungry": "toy_hungry:Toy"}
POLICIES = {"toy": "toy_package:Toy"}
ALGORITHMS = {"toy": "toy_package:Learner"}


@dataclass(frozen=True)
class ToyConfig:
    gravity: float = 9.81
    """metres per second squared,
    downwards."""
    size: tuple[int, int] = (8, 8)
    """(height, width)."""
    colour: Text = "red"
    """of the toy."""
    shade: Code | None = None
    """of the toy."""
    parts: dict[str, float] = field(default_factory=dict)
    """by name."""


class Toy:
    """A toy."""

    Config = ToyConfig

    @staticmethod
    def spec_of(config):
        tasks = (Task("lift_it", "lift"), Task("drop_it", "drop"))
        return SimulatorSpec((), (), (), (), (), 10.0, 5, tasks, splits=("windy",))


@dataclass(frozen=True)
class Base:
    lr: float = 1e-3
    """Learning rate."""


class Learner:
    """It learns."""

    @dataclass(frozen=True)
    class Config(Base):
        steps: int = 3
        """Steps."""

    @staticmethod
    def needs(config):
        return Needs()
'''
ENTRY_POINTS = """
[embodied_rl.sims]
toy = toy_package:SIMS
[embodied_rl.policies]
toy = toy_package:POLICIES
[embodied_rl.algorithms]
toy = toy_package:ALGORITHMS
[embodied_rl.configs]
toy = toy_package_conf
"""
CONFIGS = {
    "sim/toy.yaml": "name: toy\nnum_envs: 8\ngravity: 1.5\n",
    "policy/toy.yaml": "name: toy\n",
    "algo/toy.yaml": "name: toy\n",
    "experiment/toy_run.yaml": "# @package _global_\n# train: three steps\n"
    "defaults:\n  - override /sim: toy\n  - override /policy: toy\n  - override /algo: toy\ntrain: {iterations: 3}\n",
}

Result = tuple[int, str, str]
Run = Callable[..., Result]


@pytest.fixture
def toy_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an installed distribution "toy"."""
    site = tmp_path / "site"
    (site / "toy-1.0.dist-info").mkdir(parents=True)
    (site / "toy-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n")
    (site / "toy-1.0.dist-info" / "entry_points.txt").write_text(ENTRY_POINTS)
    (site / "toy_package.py").write_text(MODULE)
    (site / "toy_hungry.py").write_text("import a_simulator_nobody_has\n")
    for name, text in {"__init__.py": "", **CONFIGS}.items():
        path = site / "toy_package_conf" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.delitem(sys.modules, "toy_package_conf", raising=False)  # of another test's folder
    plugins.list_plugins.cache_clear()
    yield site
    plugins.list_plugins.cache_clear()


@pytest.fixture
def run(toy_package: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Types a command line; returns exit code, output and error output.

    The toys can do nothing, so that what is found by asking them plays no part here.
    """
    monkeypatch.chdir(tmp_path)
    for name, command in list(list_commands().items()):
        monkeypatch.setitem(list_commands(), name, replace(command, check=None))

    def typed(*arguments: str) -> Result:
        code = main(arguments)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return typed
