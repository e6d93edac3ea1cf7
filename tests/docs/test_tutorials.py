"""The tutorials' files and commands, taken from their pages: what a reader types works, with fewer steps here."""

import re
import runpy
import shlex
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.cli.main import main
from embodied_rl.config import plugins
from embodied_rl.interfaces.scorer import ScoreRequest
from embodied_rl.interfaces.sim import Episode
from embodied_rl_example.reacher import Reacher, ReacherConfig
from tests.support.example import import_from, lay_out
from tests.support.running import started_apart
from tests.support.transports import borrow_domain

DOCS = Path(__file__).resolve().parents[2] / "docs"
MOST, LONGEST = 80, 135
"""Lines of a tutorial's files, together, and of its page."""
BLOCK = re.compile(r"(?:^`([^`\n]+)`[^\n]*:\n\n)?^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""A block, with the path of its file where the line before it begins with one."""
RUNS = ("train.iterations=1", "train.decisions=4", "train.eval_episodes=4", "train.final_episodes=4", "sim.num_envs=4")
CLONES = ("algo.demonstrations=4", "algo.finetune_steps=4", "eval_episodes=4")
EXTRAS = {"lerobot": "pyarrow", "view": "rerun", "serve": "websockets"}
"""Extra of embodied-rl → a package that it installs."""
READY = "domain"
"""What a command in the background says once it is ready."""
MAY_FIND = {"doctor"}
"""Commands that may exit with 1: on a busy machine the doctor finds topics slower than promised."""
STAGES = ("algo.frames=20", "algo.localise_steps=4", "algo.steps=4")


@dataclass(frozen=True)
class Tutorial:
    """What is particular about a page: command → settings with which its test replaces those of the page."""

    fewer: Mapping[str, tuple[str, ...]]


TUTORIALS = {
    "tutorial_simulator.md": Tutorial({"sft": (*CLONES, *STAGES), "train": RUNS}),
    "tutorial_algorithm.md": Tutorial({"sft": CLONES, "train": (*RUNS, "sim.num_envs=8"), "eval": ("episodes=4",)}),
    "tutorial_policy.md": Tutorial({"sft": CLONES, "train": RUNS, "eval": ("episodes=4",)}),
    "tutorial_reward.md": Tutorial({"sft": CLONES, "collect": ("episodes=4",), "train": RUNS}),
    "tutorial_dataset.md": Tutorial({"collect": ("episodes=4",), "sft": CLONES, "train": RUNS}),
    "tutorial_robot.md": Tutorial({"deploy": ("episodes=1",)}),
}


@dataclass(frozen=True)
class Block:
    """A block of a page; `file` is empty where it is none."""

    file: str
    language: str
    text: str


def read_blocks(page: str) -> list[Block]:
    return [Block(*found) for found in BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))]


def read_files(page: str) -> dict[str, str]:
    return {block.file: block.text for block in read_blocks(page) if block.file}


def install(site: Path, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a project's modules and plug-ins known, as `pip install -e` does; `project` is its pyproject.toml."""
    described = tomllib.loads(project)["project"]
    info = site / f"{described['name'].replace('-', '_')}-{described['version']}.dist-info"
    info.mkdir(parents=True)
    groups = described["entry-points"].items()
    lines = (f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in each.items()) for group, each in groups)
    (info / "entry_points.txt").write_text("".join(lines))
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {described['name']}\nVersion: {described['version']}\n"
    )
    import_from([str(site)], monkeypatch)


class Reader:
    """Does what pages say, in a folder: writes their files, runs their Python and their commands."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, ending: ExitStack) -> None:
        self.folder, self.monkeypatch, self.ending = folder, monkeypatch, ending
        self.commands: list[str] = []

    def write_files(self, page: str) -> None:
        for name, text in read_files(page).items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(text)

    def follow(self, page: str) -> None:
        """Do all of a page, from start to end."""
        self.write_files(page)
        for block in read_blocks(page):
            if block.language == "python" and not block.file:
                exec(block.text, {})
            elif block.language in ("", "console"):
                for line in block.text.splitlines():
                    self.type(line, TUTORIALS[page].fewer)

    def type(self, line: str, fewer: Mapping[str, tuple[str, ...]]) -> None:
        """Run a line of a terminal; its patterns of files stand for what they match."""
        program, *words = shlex.split(line, comments=True)
        match program:
            case "python":
                runpy.run_path(*words)
            case "pip":
                self._install(words)
            case "export":
                self._export(words)
            case "mv":
                (source,), (target,) = map(self._expand, words)
                shutil.move(source, target)
            case "kill":
                self.ending.close()
            case _:
                assert program == "embodied-rl", line
                self._run(words, fewer.get(words[0], ()))

    def _run(self, words: list[str], instead: tuple[str, ...]) -> None:
        keys = {word.partition("=")[0] for word in instead}
        words = [each for word in words for each in self._expand(word) if each.partition("=")[0] not in keys]
        self.commands.append(words[0])
        if words[-1] == "&":
            process = self.ending.enter_context(started_apart(self.folder, *words[:-1]))
            assert process.wait_until(lambda: READY in process.output()), process.output()
        else:
            assert main([*words, *instead]) in ((0, 1) if words[0] in MAY_FIND else (0,)), words

    def _export(self, words: list[str]) -> None:
        """Set variables; messages stay in a DDS domain of this test's own."""
        for name, _, value in (word.partition("=") for word in words):
            domain = self.ending.enter_context(borrow_domain()) if name == "ROS_DOMAIN_ID" else value
            self.monkeypatch.setenv(name, str(domain))

    def _install(self, words: list[str]) -> None:
        install_word, *words = words
        assert install_word == "install"
        if words == ["docs/example_plugin"]:
            import_from(lay_out(self.folder / "example"), self.monkeypatch)
        elif words[0].startswith("embodied-rl["):
            for package in [EXTRAS[extra] for extra in re.split(r"[],[]", words[0])[1:-1]]:
                pytest.importorskip(package, reason=f"{package} is not installed: pip install '{words[0]}'")
        else:
            assert words == ["-e", "."]
            install(self.folder, (self.folder / "pyproject.toml").read_text(), self.monkeypatch)

    def _expand(self, word: str) -> list[str]:
        found = sorted(map(str, self.folder.glob(word))) if "*" in word else [word]
        assert found, f"no file matches {word}, and a shell would pass it on as it is"
        return found


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    plugins.list_plugins.cache_clear()
    with ExitStack() as ending:
        yield Reader(tmp_path, monkeypatch, ending)
    plugins.list_plugins.cache_clear()


def test_every_tutorial_is_run() -> None:
    assert {page.name for page in DOCS.glob("tutorial_*.md")} == set(TUTORIALS)
    contents = (DOCS / "index.md").read_text(encoding="utf-8")
    assert all(f"({page})" in contents and f"\n{page.removesuffix('.md')}\n" in contents for page in TUTORIALS)


@pytest.mark.parametrize("page", TUTORIALS)
def test_it_is_short(page: str) -> None:
    assert sum(len(text.splitlines()) for text in read_files(page).values()) <= MOST
    assert len((DOCS / page).read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("page", TUTORIALS)
def test_it_runs_from_start_to_end(page: str, reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    """Its commands succeed, and it ends with a report and films."""
    reader.follow(page)
    assert "not checked" not in capsys.readouterr().out, "the doctor got messages of every topic"
    assert len(reader.commands) >= 2
    reports = [path for path in reader.folder.rglob("report.html") if list(path.parent.rglob("*.mp4"))]
    assert reports and all(path.stat().st_size > 10_000 for path in reports)


# -- a simulator --------------------------------------------------------------------------------------------------

SIMULATOR = "tutorial_simulator.md"


@pytest.mark.thorough
def test_a_simulator_that_ignores_the_seed_breaks_the_contract(reader: Reader) -> None:
    (check,) = [block.text for block in read_blocks(SIMULATOR) if block.language == "python" and not block.file]
    module = read_files(SIMULATOR)["my_simulator.py"].replace("episode.seed", "None")
    with pytest.raises(AssertionError):
        exec(module + check.replace("from my_simulator import Config, Simulator", ""), {})


def test_its_operator_succeeds() -> None:
    scope: dict[str, Any] = {}
    exec(read_files(SIMULATOR)["my_simulator.py"], scope)
    simulator = scope["Simulator"](scope["Config"](), 40)
    simulator.reset([Episode(row, task=row % 2, seed=row) for row in range(40)])
    operate, won = simulator.expert(), 0
    for _ in range(simulator.spec.horizon):
        won = won | simulator.step(operate()[:, None], [None] * 40).success[:, 0]
    assert won.mean() > 0.8, "straight to the right disc, unless the other one is in the way"


# -- an algorithm, a reward model ---------------------------------------------------------------------------------


def test_an_algorithm_that_forgets_its_optimiser_breaks_the_contract(reader: Reader) -> None:
    """And is said to; that of the page passes, where the page is run."""
    (check,) = [b.text for b in read_blocks("tutorial_algorithm.md") if b.language == "python" and not b.file]
    module = read_files("tutorial_algorithm.md")["my_algorithm/__init__.py"].replace("self.optimiser.state()", "{}")
    module = module.replace("self.optimiser.load(state)", "pass")
    with pytest.raises(AssertionError, match="a restored state continues with other bits"):
        exec(module + check.replace("from my_algorithm import Config, LeaveOneOut", ""), {})


def test_its_advantage_is_the_return_minus_the_mean_of_the_others() -> None:
    scope: dict[str, Any] = {}
    exec(read_files("tutorial_algorithm.md")["my_algorithm/__init__.py"], scope)
    returns, group = torch.tensor([1.0, 0, 1, 0, 1, 5]), torch.tensor([0, 0, 1, 0, 1, 2])
    assert scope["leave_one_out"](returns, group).tolist() == [1.0, -0.5, 0.0, -0.5, 0.0, 5.0]


def test_its_scores_are_the_way_that_is_done() -> None:
    """Of the distance to the disc at first, to a pixel of the picture: 2 m are 32 of them."""
    scope: dict[str, Any] = {}
    exec(read_files("tutorial_reward.md")["my_scorer.py"], scope)
    simulator = Reacher(ReacherConfig(), 8)
    first = simulator.reset([Episode(row, task=row % 2, seed=row) for row in range(8)])
    judge, operate = scope["DistanceScorer"](scope["Config"](), simulator.spec), simulator.expert()
    now = simulator.step(np.stack([operate()] * 2, axis=1), [None] * 8).observation
    assert first.privileged is not None and now.privileged is not None
    before, after = (np.linalg.norm(each.privileged[:, :2], axis=1) for each in (first, now))
    for row in range(8):
        pictures = first.images["top"][row], now.images["top"][row]
        request = ScoreRequest(
            row, 1, "absolute", now.instruction[row], {"top": pictures[1][None]}, {"top": pictures[0]}, now.state[row]
        )
        score = judge.judge(request)
        assert score.valid and abs(score.value - (1 - after[row] / before[row])) < 2 / 32 / before[row]
