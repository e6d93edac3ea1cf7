"""The example distribution of docs/: built, installed beside ours, and used by the commands of CONTRIBUTING.md."""

import json
import re
import zipfile
from pathlib import Path

import pytest

from tests.support.example import EXAMPLE
from tests.support.packaging import CHECKOUT, build, install, run

pytestmark = [pytest.mark.packaging, pytest.mark.process]

SHORT = {
    "sft": "eval_episodes=128",
    "train": "train.iterations=2 train.eval_episodes=32 train.final_episodes=32 logger=json",
    "eval": "episodes=32 video.episodes=0 video.best=0 video.worst=0",
}
"""What is added to each command, so that it ends within seconds."""


@pytest.fixture(scope="session")
def example_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", EXAMPLE, tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="session")
def both(wheel: Path, robot_wheel: Path, example_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has our wheels and the example's."""
    return install(tmp_path_factory.mktemp("both"), robot_wheel, wheel, example_wheel)


def read_commands() -> list[str]:
    """The commands under "Clone first, then reinforce" of CONTRIBUTING.md."""
    section = (CHECKOUT / "CONTRIBUTING.md").read_text().partition("\n## Clone first, then reinforce\n")[2]
    (block,) = re.findall(r"^```console\n(.*?)^```", section.partition("\n## ")[0], re.DOTALL | re.MULTILINE)
    return block.splitlines()


def test_its_wheel_holds_its_package_and_its_configurations(example_wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(example_wheel).namelist() if ".dist-info/" not in name}
    source = EXAMPLE / "src"
    wanted = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert names == {path.relative_to(source).as_posix() for path in wanted}
    assert "embodied_rl_example/conf/experiment/reacher.yaml" in names


def test_what_it_brings_is_listed(both: Path, elsewhere: Path) -> None:
    listed = run([both / "embodied-rl", "list"], elsewhere)
    for name in ("reacher", "small_flow", "reinforce", "hardest", "reacher_sft"):
        assert name in listed


def test_its_own_tests_pass_where_it_is_installed(both: Path, elsewhere: Path) -> None:
    out = run([both / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLE / "tests"], elsewhere)
    assert " passed" in out and "skipped" not in out


@pytest.mark.timeout(1200)  # a minute of one core's time, which may be shared by many
def test_the_commands_of_contributing_clone_train_and_evaluate(both: Path, elsewhere: Path) -> None:
    commands = [line.split(maxsplit=2)[1] for line in read_commands()]
    assert commands == ["sft", "train", "eval"]
    for command, line in zip(commands, read_commands(), strict=True):
        run(["bash", "-ec", f"{both}/{line} {SHORT[command]}"], elsewhere, timeout=600)
    cloned, trained = (next(elsewhere.glob(f"runs/{name}/*_s0")) for name in ("reacher_sft", "reacher"))
    before, after = (json.loads((each / "report.json").read_text())["success"] for each in (cloned, trained))
    assert before["episodes"] == 128 and before["rate"] > 0.5, "the clone reaches what it is told more often than not"
    assert after["episodes"] == 32 and after["rate"] > 0.5
    assert len((trained / "metrics.jsonl").read_text().splitlines()) == 2
