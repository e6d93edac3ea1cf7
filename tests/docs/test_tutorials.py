"""The tutorials' files and commands, taken from their pages: what a reader types works, with fewer steps here."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli.main import main
from embodied_rl.config import plugins
from embodied_rl.interfaces.sim import Episode

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial_simulator.md"
MOST = 80
"""Lines of a tutorial's files, together."""
FEWER = (
    "algo.frames=20", "algo.localise_steps=4", "algo.demonstrations=4", "algo.steps=4", "eval_episodes=4",
    "train.iterations=1", "train.decisions=4", "train.final_episodes=4", "sim.num_envs=4",
)  # fmt: skip
"""What replaces the steps of its commands."""


def read_blocks(language: str) -> list[str]:
    """The page's blocks of a language, in order."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for found, text in blocks if found == language]


MODULE, CHECK = read_blocks("python")
(PROJECT,) = read_blocks("toml")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tutorial's files in a folder, with the metadata that an installation of its project writes."""
    site = tmp_path / "site"
    info = site / "my_simulator-1.0.dist-info"
    info.mkdir(parents=True)
    ((group, entries),) = tomllib.loads(PROJECT)["project"]["entry-points"].items()
    lines = "".join(f"{name} = {value}\n" for name, value in entries.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-simulator\nVersion: 1.0\n")
    (site / "my_simulator.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    plugins.list_plugins.cache_clear()
    yield site
    plugins.list_plugins.cache_clear()


def test_its_files_are_short() -> None:
    assert len(MODULE.splitlines()) + len(PROJECT.splitlines()) <= MOST


@pytest.mark.thorough
def test_the_simulator_keeps_the_contract(installed: Path) -> None:
    exec(CHECK, {})
    with pytest.raises(AssertionError):
        exec(
            MODULE.replace("episode.seed", "None") + CHECK.replace("from my_simulator import Config, Simulator", ""), {}
        )


def test_its_operator_succeeds(installed: Path) -> None:
    scope: dict[str, Any] = {}
    exec(MODULE, scope)
    simulator = scope["Simulator"](scope["Config"](), 40)
    simulator.reset([Episode(row, task=row % 2, seed=row) for row in range(40)])
    operate, won = simulator.expert(), 0
    for _ in range(simulator.spec.horizon):
        won = won | simulator.step(operate()[:, None], [None] * 40).success[:, 0]
    assert won.mean() > 0.8, "straight to the right disc, unless the other one is in the way"


@pytest.mark.thorough
@pytest.mark.process
def test_its_commands_run(
    installed: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in read_blocks("") for line in block.splitlines()]
    assert [line.split()[1] for line in lines] == ["sft", "train"]
    fewer = {word.partition("=")[0]: word for word in FEWER}
    for line in lines:
        found = tmp_path.glob("runs/clone/*")
        text = re.sub(r"<run>", lambda _: str(next(found)), line)  # noqa: B023
        words = [fewer.get(word.partition("=")[0], word) for word in shlex.split(text)[1:]]
        assert main(words) == 0, capsys.readouterr().err
    (report,) = tmp_path.glob("runs/learn/*/report.html")
    assert report.stat().st_size > 10_000 and list(report.parent.glob("videos/*.mp4"))
    assert main(["list", "sims", "my_simulator"]) == 0 and "sim.horizon" in capsys.readouterr().out
