"""What `--help` and `list` say comes from the dataclasses and the tables themselves."""

from embodied_rl.cli.documentation import list_plugin_keys, list_schema_keys
from embodied_rl.cli.table import COMMANDS
from embodied_rl.config import schema
from embodied_rl.config.freeze import list_key_paths


def test_every_key_is_documented() -> None:
    """The keys read from the source are those of the classes, and each has a line of documentation."""
    for command in COMMANDS.values():
        kind = getattr(schema, command.schema)
        nodes = {path.rpartition(".")[0] for path in list_key_paths(kind)}
        documented = {key.name: key.doc for key in list_schema_keys(command.schema)}
        assert documented.keys() - nodes == set(list_key_paths(kind)) - nodes
        assert all(documented.values()), command.name


def test_defaults_are_shown_as_they_are_typed() -> None:
    defaults = {key.name: key.default for key in list_schema_keys("TrainConfig")}
    assert defaults["sim.name"] == "required"
    assert defaults["sim.num_envs"] == "64"
    assert defaults["policy.checkpoint"] == "null"
    assert defaults["logger.live"] == "true"
    assert defaults["run.overrides"] == "[]"


def test_keys_of_a_plug_in_are_read_without_importing_it(toy_package) -> None:
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


def test_overview_names_every_command(run) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert all(name in out for name in (*COMMANDS, "list"))


def test_command_help_shows_keys_and_examples(run) -> None:
    _, out, _ = run("train", "--help")
    assert "sim.num_envs" in out and "checkpoint.every" in out and "embodied-rl train experiment=demo" in out


def test_list_shows_plug_ins_of_other_packages(run) -> None:
    assert "toy_package:Toy" in run("list", "sims")[1]
    assert "three steps" in run("list", "experiments")[1]
    assert "lift_it" in run("list", "tasks", "toy")[1]
    assert "sim.gravity" in run("list", "sims", "toy")[1]


def test_version(run) -> None:
    from embodied_rl import __version__

    assert run("--version")[1] == f"embodied-rl {__version__}\n"
