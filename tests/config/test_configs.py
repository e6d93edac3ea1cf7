"""Every YAML that ships composes, freezes, names plug-ins that exist, and stays short."""

from difflib import SequenceMatcher
from itertools import combinations
from pathlib import Path

import pytest

from embodied_rl.cli import execution
from embodied_rl.cli.table import COMMANDS
from embodied_rl.config import schema
from embodied_rl.config.compose import compose, experiments, root

FILES = sorted(root().rglob("*.yaml"))
EXPERIMENTS = {item.name: item for item in experiments()}
REQUIRED = {
    "eval": ["checkpoint=runs/x"],
    "compare": ["runs=[a,b]"],
    "export": ["checkpoint=runs/x"],
    "inspect": ["checkpoint=runs/x"],
}


def frozen(command: str, *overrides: str):
    """The configuration of a command, its plug-ins found and their keys checked."""
    known = COMMANDS[command]
    typed = [*REQUIRED.get(command, []), *overrides]
    config = execution.read(known, compose(known.config, typed, known.values), typed)
    return execution.find_plugins(config)[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_starts_from_a_sound_configuration(command: str) -> None:
    assert isinstance(frozen(command), getattr(schema, COMMANDS[command].schema))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment(name: str) -> None:
    config = frozen(EXPERIMENTS[name].command, f"experiment={name}")
    assert config.run.experiment == name
    assert EXPERIMENTS[name].summary


@pytest.mark.parametrize("choice", sorted(f"{path.parent.name}={path.stem}" for path in root().glob("*/*.yaml")))
def test_every_choice(choice: str) -> None:
    """Every file of every group can be chosen in some command."""
    group, _, name = choice.partition("=")
    known = {"sft": "sft", "benchmark": "eval"}
    command = EXPERIMENTS[name].command if group == "experiment" else known.get(name, known.get(group, "train"))
    assert frozen(command, choice)


@pytest.mark.parametrize("command", ["eval", "collect"])
def test_a_number_of_episodes_is_no_choice_of_a_file(command: str) -> None:
    """While training `episodes` names a curriculum; here it counts."""
    assert frozen(command, "episodes=12").episodes == 12


def test_how_tasks_are_drawn_is_chosen_by_name_and_set_by_key() -> None:
    assert frozen("train").episodes.name == "uniform"
    chosen = frozen("train", "episodes=weighted", "episodes.weights={push: 3, press: 0.5}").episodes
    assert (chosen.name, chosen.options) == ("weighted", {"weights": {"push": 3.0, "press": 0.5}})


def test_only_known_groups_and_commands_have_files() -> None:
    assert {path.stem for path in root().glob("*.yaml")} == {item.config for item in COMMANDS.values() if item.config}
    folders = {"sim", "policy", "algo", "episodes", "plan", "benchmark", "experiment"}
    assert {path.name for path in root().iterdir() if path.is_dir()} == folders


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_not_paths(path: Path) -> None:
    """No configuration can make us import what it likes, or run code."""
    text = path.read_text()
    assert "_target_" not in text and "${eval" not in text


@pytest.mark.parametrize("path", sorted(root().glob("experiment/*.yaml")), ids=lambda path: path.stem)
def test_experiments_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 15


def test_experiments_do_not_repeat_each_other() -> None:
    """Two experiments that share most of their lines should share a file."""
    for one, other in combinations(sorted(root().glob("experiment/*.yaml")), 2):
        lines = [[line for line in path.read_text().splitlines() if line[:1] != "#"] for path in (one, other)]
        assert SequenceMatcher(None, *lines).ratio() <= 0.8, (one.name, other.name)
