"""`--help` and `list` print the documentation in the dataclasses and tables."""

import re

import pytest

from embodied_rl.cli.command import Command, find_command_name, list_commands
from embodied_rl.cli.documentation import list_plugin_keys, list_schema_keys
from embodied_rl.cli.run_command import import_name
from embodied_rl.config.freeze import list_key_paths
from embodied_rl.judge.prompts.prompt import FOLDER


def test_every_key_is_documented() -> None:
    """The keys read from the source are those of the classes, and each has a line of documentation."""
    for command in list_commands().values():
        if command.schema is None:  # list takes words
            continue
        kind = import_name(command.schema)
        nodes = {path.rpartition(".")[0] for path in list_key_paths(kind)}
        documented = {key.name: key.doc for key in list_schema_keys(str(command.schema))}
        assert documented.keys() - nodes == set(list_key_paths(kind)) - nodes
        assert all(documented.values()), command.name


def test_plugin_keys_are_read_without_importing_it(toy_package) -> None:
    """An alias, an inner class and a base class; a text of two lines; defaults in calls."""
    keys = {key.name: (key.default, key.doc) for key in list_plugin_keys("toy_package:Toy", "sim")}
    assert keys == {
        "sim.gravity": ("9.81", "metres per second squared, downwards."),
        "sim.size": ("[8,8]", "(height, width)."),
        "sim.colour": ("red", "of the toy."),
        "sim.shade": ("null", "of the toy."),
        "sim.parts": ("{}", "by name."),
    }
    assert {key.name: key.doc for key in list_plugin_keys("toy_package:Learner", "algo")} == {
        "algo.lr": "Learning rate.",
        "algo.steps": "Steps.",
    }


def test_config_of_a_base_class_is_read(toy_package) -> None:
    (toy_package / "toy_heavy.py").write_text("from toy_package import Toy\n\n\nclass Heavy(Toy):\n    pass\n")
    assert list_plugin_keys("toy_heavy:Heavy", "sim") == list_plugin_keys("toy_package:Toy", "sim")


def test_overview_names_every_command(run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert all(name in out for name in (*list_commands(), "list"))


def test_list_shows_plug_ins_of_other_packages(run) -> None:
    assert "toy_package:Toy" in run("list", "sims")[1]
    assert "three steps" in run("list", "experiments")[1]
    assert "lift_it" in run("list", "tasks", "toy")[1]
    assert "sim.gravity" in run("list", "sims", "toy")[1]


def test_version(run) -> None:
    from embodied_rl import __version__

    assert run("--version")[1] == f"embodied-rl {__version__}\n"


@pytest.mark.parametrize("command", list_commands().values(), ids=list_commands())
def test_common_keys_exist(command: Command) -> None:
    keys = set() if command.schema is None else {key.name for key in list_schema_keys(command.schema)}
    assert set(command.common) <= keys


@pytest.mark.thorough
def test_common_keys_come_alone_and_all_keys_on_demand(run) -> None:
    _, short, _ = run("train", "--help")
    _, long, _ = run("train", "--help-all")
    assert "train.iterations=100" in short and "plan.call_timeout" not in short and "--help-all" in short
    assert "embodied-rl train experiment=demo" in short
    for default in (
        "plan.allocation=auto",
        "policy.checkpoint=asset:tabletop_base.safetensors",
    ):  # of the command's YAML
        assert default in short
    listed = set(re.findall(r"^  ([a-z0-9_.]+)(?==| \(required\))", long, re.MULTILINE))
    assert {key.name for key in list_schema_keys("embodied_rl.schema:TrainConfig")} <= listed


@pytest.mark.thorough
def test_chosen_plugins_show_their_keys_and_values(run) -> None:
    _, out, _ = run("train", "sim=toy", "algo=toy", "sim.num_envs=3", "--help")
    assert "keys of sim.name=toy" in out and "keys of algo.name=toy" in out and "keys of policy" not in out
    assert "sim.gravity=1.5 " in out, "of the file that was chosen, not of the class"
    assert "sim.num_envs=3 " in out
    assert "algo.lr=" in out and "Learning rate." in out and "sim=toy " in out and "toy_run" in out
    assert "keys of" not in run("train", "--help")[1]


def test_help_reports_an_unknown_choice(run) -> None:
    code, out, err = run("train", "algo=grp", "--help")
    assert code == 2 and not out and "'grpo'" in err and "[choice-unknown]" in err


@pytest.mark.thorough
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "words", [["--help"], ["list"], *([*name.split(), "--help-all"] for name in list_commands())], ids=" ".join
)
def test_help_is_wrapped_once_to_the_width(run, monkeypatch: pytest.MonkeyPatch, words: list[str], width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run(*words)
    lines = out.splitlines()
    name, _ = find_command_name(words)
    examples = [f"  embodied-rl {name} {each}" for each in getattr(list_commands().get(name), "examples", ())]
    assert not [line for line in lines if len(line) > width and line not in examples]
    assert not [line for line in lines if line != line.rstrip()]


@pytest.mark.parametrize("name", ["curricula uniform", "rewards off"])
def test_choice_without_keys(run, name: str) -> None:
    code, out, _ = run("list", *name.split())
    assert code == 0 and out.endswith("has no keys.\n")


def test_prompts_and_robots_are_listed(run) -> None:
    _, out, _ = run("list", "prompts")
    assert all(path.stem in out for path in FOLDER.glob("*.yaml"))
    assert run("list", "prompts", "vlac_pair")[:2] == (0, (FOLDER / "vlac_pair.yaml").read_text())
    code, _, err = run("list", "prompts", "vlac_pear")
    assert code == 2 and "vlac_pair" in err
    lines = run("list", "robots")[1].splitlines()
    assert any(line.startswith("tabletop ") and "sim=tabletop" in line for line in lines)
