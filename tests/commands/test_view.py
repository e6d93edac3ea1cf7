"""`embodied-rl view` refuses by name, before anything is written; a stand-in takes the place of rerun-sdk."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_rl.commands.view import check_start, open_source, run
from embodied_rl.schema import ViewConfig
from tests.support.making_datasets import NUMBERS, made
from tests.support.refusals import refuses


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eighteen episodes without pictures."""
    return made(tmp_path_factory.mktemp("view") / "data", 18, NUMBERS)


@pytest.fixture(autouse=True)
def sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerun", SimpleNamespace(StateChange=None))


@pytest.fixture
def config(folder: Path, tmp_path: Path) -> ViewConfig:
    return ViewConfig(str(folder), str(tmp_path / "new" / "out.rrd"))


@pytest.mark.parametrize("found", [None, SimpleNamespace()], ids=["missing", "too old"])
def test_a_missing_package_is_named_with_its_extra(config, monkeypatch, found) -> None:
    monkeypatch.setitem(sys.modules, "rerun", found)
    with refuses("package-missing", "rerun-sdk", "pip install 'embodied-rl[view]'"):
        run(config)
    assert not Path(config.out).parent.exists()


def test_a_file_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "out.rrd").write_text("mine")
    with refuses("output-exists", tmp_path / "out.rrd"):
        run(ViewConfig(str(folder), str(tmp_path / "out.rrd")))
    assert (tmp_path / "out.rrd").read_text() == "mine"


def test_the_file_has_the_viewers_suffix(folder: Path, tmp_path: Path) -> None:
    with refuses("output-name-invalid", tmp_path / "out.mp4", ".rrd"):
        run(ViewConfig(str(folder), str(tmp_path / "out.mp4")))


@pytest.mark.parametrize("number", [18, -19])
def test_an_episode_that_does_not_exist_is_refused(config, number: int) -> None:
    with refuses("episode-unknown", number, "0 to 17"):
        run(ViewConfig(config.source, config.out, (0, number)))
    assert not Path(config.out).parent.exists()


def test_no_episode_at_all_is_refused(config) -> None:
    with refuses("episodes-missing", "episodes=[]"):
        check_start(ViewConfig(config.source, config.out, ()))


def test_a_source_without_episodes_is_refused(config, tmp_path: Path) -> None:
    empty = made(tmp_path / "empty", 0, NUMBERS)
    with refuses("episodes-missing", empty):
        run(ViewConfig(str(empty), config.out))


@pytest.mark.parametrize(
    ("asked", "chosen"), [(None, list(range(2, 18))), ((3, 0), [3, 0]), ((-1, 0, 17), [17, 0])], ids=str
)
def test_episodes_are_counted_from_either_end(config, asked, chosen: list[int]) -> None:
    source = open_source(ViewConfig(config.source, config.out, asked))
    episodes = source.read(source.numbers)
    assert (list(episodes), source.count) == (chosen, 18)
    assert [each.title.split(":")[0] for each in episodes.values()] == [f"episode {number}" for number in chosen]


def test_a_dry_run_says_what_would_be_written(config) -> None:
    assert check_start(ViewConfig(config.source, config.out, (4, -1))) == [
        ("out", config.out),
        ("episodes", "4, 17 of 18"),
    ]
    assert not Path(config.out).parent.exists()
