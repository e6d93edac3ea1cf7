"""Every YAML file of the package composes, freezes, names existing plug-ins, and stays short."""

import re
from pathlib import Path

import pytest

from embodied_rl.cli import run_command
from embodied_rl.cli.command import Options, list_commands
from embodied_rl.commands.preparation import compose_config
from embodied_rl.commands.train import list_sources
from embodied_rl.config.option_files import GroupOption, find_config_folder, list_experiments, list_options
from tests.support.refusals import refuses

FILES = sorted(find_config_folder().rglob("*.yaml"))
EXPERIMENTS = {item.name: item for item in list_experiments()}
REQUIRED = {
    "eval": ["checkpoint=runs/x"],
    "compare": ["runs=[a,b]"],
    "export": ["checkpoint=runs/x"],
    "inspect": ["checkpoint=runs/x"],
    "view": ["source=runs/x"],
    "convert": ["recording=recordings/monday"],
    "deploy": ["policy=asset:tabletop_careful.safetensors"],
    "bridge": ["robot=tabletop", "policy=ws://127.0.0.1:8000"],
    "serve": ["policy=asset:tabletop_base.safetensors"],
    "critic serve": ["model=asset:tabletop_critic.safetensors"],
}


def frozen(command: str, *overrides: str):
    """The configuration of a command, its plug-ins found and their keys checked."""
    known = list_commands()[command]
    typed = [*REQUIRED.get(command, []), *overrides]
    preparation = run_command.load_preparation(known)
    mapping = preparation.compose(known, Options(tuple(typed)))
    return preparation.find_plugins(run_command.freeze_command_config(known, mapping, typed))[0]


@pytest.mark.parametrize("command", [name for name, command in list_commands().items() if command.schema is not None])
def test_every_command_starts_from_a_sound_configuration(command: str) -> None:
    assert isinstance(frozen(command), run_command.import_name(str(list_commands()[command].schema)))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment(name: str) -> None:
    config = frozen(EXPERIMENTS[name].command, f"experiment={name}")
    assert config.run.experiment == name
    assert EXPERIMENTS[name].summary


@pytest.mark.parametrize("option", list_options("algo"), ids=lambda option: option.name)
def test_every_algorithm_says_what_it_does_what_it_needs_and_when_to_take_it(option: GroupOption) -> None:
    does, needs, when = option.summary.split("; ")
    assert does and needs.startswith("needs ") and when.startswith("for ") and when.endswith(".")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "choice",
    sorted(
        f"{path.parent.name}={path.stem}"
        for path in find_config_folder().glob("*/*.yaml")
        if path.parent.name != "robot"  # read as data by `load_robot`: tests/deployment/robots
    ),
)
def test_every_choice(choice: str) -> None:
    """Every file of every group can be chosen in some command."""
    group, _, name = choice.partition("=")
    known = {"sft": "sft", "benchmark": "eval"}
    command = EXPERIMENTS[name].command if group == "experiment" else known.get(name, known.get(group, "train"))
    assert frozen(command, choice)


@pytest.mark.parametrize("typed", ["episodes=weighted", "episodes.floor=0.1", "episodes.name=uniform"])
def test_old_name_of_the_curriculum_is_refused_with_the_new_one(typed: str) -> None:
    with refuses("key-unknown", "'episodes'", "'curriculum'"):
        frozen("train", typed)


def test_old_name_of_a_group_is_refused_with_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    text = "# @package _global_\ndefaults:\n  - override /episodes: weighted\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(text)
    with refuses("choice-not-of-command", "'episodes'", "'curriculum'"):
        compose_config("train", ["experiment=mine"], config_dir=tmp_path)


def test_old_name_of_the_curriculum_is_free_in_other_commands() -> None:
    assert frozen("eval", "episodes=12").episodes == 12
    with refuses("key-unknown", "'episodes'") as raised:
        frozen("sft", "episodes=3")
    assert "curriculum" not in str(raised.value)


def test_curriculum_is_chosen_by_name_and_set_by_key() -> None:
    assert frozen("train").curriculum.name == "uniform"
    chosen = frozen("train", "curriculum=weighted", "curriculum.weights={push: 3, press: 0.5}").curriculum
    assert (chosen.name, chosen.options) == ("weighted", {"weights": {"push": 3.0, "press": 0.5}})


def test_only_known_groups_and_commands_have_files() -> None:
    assert {path.stem for path in find_config_folder().glob("*.yaml")} == {
        item.config for item in list_commands().values() if item.config
    }
    folders = {"sim", "policy", "algo", "curriculum", "reward", "logger", "plan", "benchmark", "experiment", "robot"}
    assert {path.name for path in find_config_folder().iterdir() if path.is_dir()} == folders | {"recipe"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_names_not_paths(path: Path) -> None:
    """No configuration file can import classes or run code."""
    text = path.read_text()
    assert not re.search(r"\b_target_\b", text) and "${eval" not in text


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent.name in ("experiment", "recipe")], ids=lambda path: path.stem
)
def test_experiments_and_recipes_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 15


RECIPES = [path for path in FILES if path.parent.name == "recipe" or path.stem.endswith("_pi_rl")]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_number_of_a_recipe_has_its_source(path: Path) -> None:
    """A comment on its line names a source that the head of the file explains."""
    lines = path.read_text().splitlines()
    known = set(re.findall(r"\b([A-Z]): (?:arXiv|RLinf)", " ".join(line for line in lines if line.startswith("#"))))
    assert known
    for line in lines:
        setting, _, source = line.partition(" #")
        if not line.startswith("#") and re.search(r": *[\d.]", setting):
            assert re.match(r" ([A-Z])\b", source) and source[1] in known, line


@pytest.mark.parametrize("path", [path for path in RECIPES if path.parent.name == "recipe"], ids=lambda path: path.stem)
def test_a_dry_run_prints_the_sources_of_a_recipe(path: Path) -> None:
    printed = [text for _, text in list_sources(("seed=1", f"recipe={path.stem}"))]
    assert re.match(r"# [PR]: (arXiv|RLinf)", printed[0])
    numbers = [line for line in path.read_text().splitlines() if re.search(r": *[\d.]", line.partition(" #")[0])]
    assert {line.strip() for line in numbers if not line.startswith("#")} <= {*printed}


def test_a_recipe_names_its_run_and_sets_the_published_settings() -> None:
    config = frozen("train", "recipe=pi05_libero_10")
    assert config.run.experiment == "pi05_libero_10"
    assert (config.sim.options["suite"], config.policy.name, config.policy.executed) == ("libero_10", "pi05", 10)
    assert config.algo.sampler.denoise_steps == 5 and config.algo.options["lr"] == 5e-6
    rows = config.sim.num_envs * config.train.decisions
    assert rows == 64 * 8 * 480 // 10, "environments × rollout epochs × steps / executed actions"
    other = frozen("train", "recipe=pi0_libero_spatial_lora", "algo=grpo")
    assert other.algo.name == "grpo" and other.run.experiment == "pi0_libero_spatial_lora"
