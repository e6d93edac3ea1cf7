"""What tests of whole runs share: an installed plug-in, and runs that nothing disturbed."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from embodied_rl.cli.main import main
from embodied_rl.config import plugins
from tests.support.example import lay_out
from tests.support.running import FILMED, SMALL, TABLETOP, complete, with_plan

PLUGIN = """
[embodied_rl.sims]
reaching = tests.support.reaching:SIMS
[embodied_rl.algorithms]
reaching = tests.support.reaching:ALGORITHMS
"""
Result = tuple[int, str, str]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on two ranks, with films."""
    return complete(tmp_path_factory.mktemp("reference"), "train", *FILMED, *TABLETOP)


@pytest.fixture(scope="session")
def split_reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with simulators in separate processes."""
    return complete(tmp_path_factory.mktemp("split"), "train", *SMALL, *TABLETOP, "plan=split")


@pytest.fixture(scope="session")
def plugin_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH on which the simulator "reaching" is installed."""
    site = tmp_path_factory.mktemp("site")
    info = site / "reaching-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: reaching\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(PLUGIN)
    return os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def plugin(plugin_path: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The simulator "reaching", installed for this process and its children."""
    monkeypatch.setenv("PYTHONPATH", plugin_path)
    monkeypatch.syspath_prepend(plugin_path.split(os.pathsep)[0])
    plugins.list_plugins.cache_clear()
    yield
    plugins.list_plugins.cache_clear()


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example distribution of docs/, installed for this process."""
    for folder in lay_out(tmp_path / "site"):
        monkeypatch.syspath_prepend(folder)
    plugins.list_plugins.cache_clear()
    yield
    plugins.list_plugins.cache_clear()


@pytest.fixture
def typed(
    plugin: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    """Run a command line in a new folder; return exit code, output and error output."""
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)

    def run(*arguments: str) -> Result:
        code = main(with_plan(arguments))
        return code, *capfd.readouterr()

    return run
