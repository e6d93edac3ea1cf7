"""From typed words to the frozen configuration that a command receives."""

import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from embodied_rl import schema
from embodied_rl.cli.command import list_commands
from embodied_rl.config.freeze import freeze_config
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.provenance import describe_command


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list:
    """Configurations that the commands' functions were called with."""
    calls: list = []
    monkeypatch.setitem(sys.modules, "recorder", SimpleNamespace(run=calls.append))
    for name, command in list(list_commands().items()):
        monkeypatch.setitem(list_commands(), name, replace(command, body="recorder:run"))
    return calls


def test_home_is_expanded(run, received, tmp_path, monkeypatch) -> None:
    """A shell leaves `key=~/path` as it was typed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert run("train", "experiment=toy_run", "run.root=~/runs")[0] == 0
    assert received[0].run.root == f"{tmp_path}/runs"


def test_the_body_gets_a_frozen_configuration(run, received) -> None:
    assert run("train", "experiment=toy_run", "seed=7", "algo.lr=1e-4")[0] == 0
    (config,) = received
    assert isinstance(config, schema.TrainConfig)
    assert (config.seed, config.train.iterations, config.sim.name) == (7, 3, "toy")
    assert config.algo.options["lr"] == 1e-4
    assert config.run.experiment == "toy_run"
    assert config.run.overrides == ("experiment=toy_run", "seed=7", "algo.lr=1e-4")


def test_defaults_of_plug_ins_are_filled_in(run, received) -> None:
    run("train", "experiment=toy_run", "sim.colour=blue")
    assert received[0].sim.options == {"gravity": 1.5, "size": [8, 8], "colour": "blue", "shade": None, "parts": {}}


@pytest.mark.thorough
def test_typed_algorithm_drops_keys_of_the_experiment(run, received) -> None:
    typed = ("train", "experiment=demo", "sim=toy", "policy=toy", "algo=toy")
    code, _, err = run(*typed, "algo.lr=1e-4")
    assert code == 0 and "epochs, auxiliary" in err and "experiment=demo" in err
    assert received[0].algo.options == {"lr": 1e-4, "steps": 3} and received[0].train.time_limit == "terminal"
    code, _, err = run(*typed, "algo.auxiliary=2")
    assert code == 2 and "'algo.auxiliary'" in err and "[key-unknown]" in err


@pytest.mark.thorough
def test_the_name_of_the_run_can_be_given(run, received) -> None:
    run("train", "experiment=toy_run", "run.experiment=mine")
    run("train", "sim=toy", "policy=toy", "algo=toy")
    assert [config.run.experiment for config in received] == ["mine", "train"]


@pytest.mark.thorough
def test_cfg_job_prints_everything_and_starts_nothing(run, received) -> None:
    code, out, _ = run("train", "experiment=toy_run", "--cfg", "job")
    assert (code, received) == (0, [])
    shown = OmegaConf.to_container(OmegaConf.create(out))
    assert shown["sim"] == {
        "name": "toy", "num_envs": 8, "python": None, "pythonpath": [],
        "gravity": 1.5, "size": [8, 8], "colour": "red", "shade": None, "parts": {}
    }  # fmt: skip
    run("train", "experiment=toy_run")
    assert freeze_config(schema.TrainConfig, shown) == received[0]


@pytest.mark.thorough
def test_dry_run_prints_the_plan(run, received) -> None:
    code, out, _ = run("train", "experiment=toy_run", "--dry-run", "plan=split", "plan.workers=4")
    assert (code, received) == (0, [])
    assert "toy_package:Toy" in out and "4 simulators of 2 environments" in out
    assert "3 iterations × 24 decisions × 8 environments = 576 decisions" in out and "reward" not in out
    assert (
        "embedded, mode=audit"
        in run("train", "experiment=toy_run", "--dry-run", "reward=embedded", "reward.mode=audit")[1]
    )


@pytest.mark.thorough
def test_dry_run_counts_whole_episodes_where_an_algorithm_collects_them(run, received) -> None:
    words = ("train", "experiment=demo", "sim.num_envs=16", "train.iterations=3", "train.decisions=7", "--dry-run")
    assert "3 iterations × 7 decisions × 16 environments = 336 decisions" in run(*words, "algo=recap")[1]
    for name in ("grpo", "nft"):
        assert "3 iterations × 16 whole episodes = 48 episodes" in run(*words, f"algo={name}")[1]


@pytest.mark.parametrize("flag", [["--dry-run"], ["--cfg", "job"], []])
def test_nothing_is_written(run, received, tmp_path, flag: list[str]) -> None:
    before = set(tmp_path.rglob("*"))
    run("train", "experiment=toy_run", *flag)
    assert {path for path in set(tmp_path.rglob("*")) - before if "__pycache__" not in path.parts} == set()


@pytest.mark.thorough
def test_policy_is_a_plain_value_for_collect_and_play(run, received) -> None:
    run("collect", "sim=toy", "policy=expert")
    run("play", "sim=toy", "policy=runs/demo/x_s0")
    run("collect", "sim=toy")
    assert [config.policy for config in received] == ["expert", "runs/demo/x_s0", "expert"]


@pytest.mark.thorough
def test_plain_words(run, received) -> None:
    run("compare", "runs/a b", "runs/it's", "out=there")
    run("bench", "delay", "sim=toy", "policy=toy")
    assert received[0] == schema.CompareConfig(runs=("runs/a b", "runs/it's"), out="there")
    assert received[1].what == "delay"


@pytest.mark.thorough
def test_eval_takes_the_simulator_of_the_checkpoint_unless_one_is_chosen(run, received) -> None:
    run("eval", "checkpoint=x")
    run("eval", "checkpoint=x", "sim=toy", "split=windy", "task=lift")
    run("eval", "checkpoint=x", "sim.num_envs=3")
    assert [config.sim.name for config in received] == [None, "toy", None]
    assert received[2].sim.options == {"num_envs": 3}


@pytest.mark.thorough
def test_config_dir(run, received, tmp_path) -> None:
    mine = tmp_path / "mine"
    (mine / "sim").mkdir(parents=True)
    (mine / "sim" / "own.yaml").write_text("name: toy\ngravity: 0.5\n")
    run("train", "experiment=toy_run", "sim=own", "--config-dir", str(mine))
    run("train", "experiment=toy_run", "sim=own", f"--config-dir={mine}", "-m")
    assert [config.sim.options["gravity"] for config in received] == [0.5, 0.5]


def test_the_exit_code_is_the_bodys(run, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "recorder", SimpleNamespace(run=lambda config: 1))
    monkeypatch.setitem(list_commands(), "doctor", replace(list_commands()["doctor"], body="recorder:run"))
    assert run("doctor")[0] == 1


@pytest.mark.thorough
def test_a_sweep_runs_every_combination(run, received, tmp_path) -> None:
    code, _, _ = run("train", "experiment=toy_run", "seed=0,1", "algo.lr=0.1,0.2", "-m")
    assert code == 0
    assert [(config.seed, config.algo.options["lr"]) for config in received] == [(0, 0.1), (0, 0.2), (1, 0.1), (1, 0.2)]
    assert received[0].run.experiment == "toy_run"
    assert received[3].run.overrides == ("experiment=toy_run", "seed=1", "algo.lr=0.2")
    assert len(list((tmp_path / "runs" / "sweeps").rglob("multirun.yaml"))) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("words", [(), ("-m",)])
def test_a_recipe_names_its_runs(run, received, toy_package, words) -> None:
    folder = toy_package / "toy_package_conf"
    (folder / "recipe").mkdir()
    (folder / "recipe" / "toy_recipe.yaml").write_text((folder / "experiment" / "toy_run.yaml").read_text())
    assert run("train", "recipe=toy_recipe", *words)[0] == 0
    assert received[0].run.experiment == "toy_recipe"


@pytest.mark.thorough
def test_a_sweep_ends_with_a_comparison_of_its_runs(run, monkeypatch, tmp_path) -> None:
    """The comparison gets the folders that these runs made and no others, and the sweep's own."""
    compared: list = []

    def body(config) -> None:
        RunFolder.create(config.run.root, config.run.experiment, config.seed)

    recorder = SimpleNamespace(run=body, compare=lambda *arguments: compared.append(arguments))
    monkeypatch.setitem(sys.modules, "recorder", recorder)
    command = replace(list_commands()["train"], body="recorder:run", compare="recorder:compare")
    monkeypatch.setitem(list_commands(), "train", command)
    run("train", "experiment=toy_run", "seed=7")
    assert compared == [], "one run is no sweep"
    assert run("train", "experiment=toy_run", "seed=0,1", "-m")[0] == 0
    ((folders, record),) = compared
    assert [RunFolder(folder).seed for folder in folders] == [0, 1]
    assert record.resolve().parent == (tmp_path / "runs" / "sweeps").resolve() and (record / "multirun.yaml").is_file()


@pytest.mark.thorough
def test_runs_of_a_sweep_record_the_typed_command(run, monkeypatch) -> None:
    """Hydra reads `sys.argv`, which is replaced while it runs."""
    seen: list = []
    monkeypatch.setitem(sys.modules, "recorder", SimpleNamespace(run=lambda config: seen.append(describe_command())))
    command = replace(list_commands()["train"], body="recorder:run", compare=None)
    monkeypatch.setitem(list_commands(), "train", command)
    monkeypatch.setattr(sys, "argv", ["/opt/bin/embodied-rl", "train", "experiment=toy_run", "seed=0,1", "-m"])
    run("train", "experiment=toy_run", "seed=0,1", "-m")
    assert seen == ["embodied-rl train experiment=toy_run seed=0,1 -m"] * 2
    assert sys.argv[0] == "/opt/bin/embodied-rl"


@pytest.mark.thorough
def test_a_sweep_restores_arguments_and_environment(run, received, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    before, words = dict(os.environ), list(sys.argv)
    run("train", "experiment=toy_run", "seed=0,1", "-m")
    assert len(received) == 2 and (dict(os.environ), sys.argv) == (before, words)


@pytest.mark.thorough
def test_a_sweep_over_words(run, received) -> None:
    run("play", "sim=toy", "policy=expert,random", "-m")
    assert [config.policy for config in received] == ["expert", "random"]


@pytest.mark.thorough
def test_mistake_in_a_sweep_is_found_before_its_first_run(run, received, tmp_path) -> None:
    code, _, err = run("train", "experiment=toy_run", "plan=colocated", "sim.num_envs=8,9", "-m")
    assert (code, received) == (2, [])
    assert "sim.num_envs=9" in err and "[environments-not-divisible]" in err
    assert not (tmp_path / "runs").exists()


@pytest.mark.thorough
@pytest.mark.process
def test_hydra_info(toy_package) -> None:
    """In another process: Hydra prints through logging, which it configures once per process."""
    done = subprocess.run(
        [sys.executable, "-m", "embodied_rl", "train", "--info", "searchpath"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(toy_package), os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    assert "pkg://toy_package_conf" in done.stdout


@pytest.mark.thorough
def test_command_of_two_words(run, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    monkeypatch.setitem(sys.modules, "recorder", SimpleNamespace(run=calls.append))
    two = replace(list_commands()["doctor"], name="judge probe", summary="Ask it.", body="recorder:run", check=None)
    monkeypatch.setitem(list_commands(), "judge probe", two)
    assert run("judge", "probe", "run.root=here")[0] == 0
    assert len(calls) == 1
    for words in (["judge"], ["judge", "--help"]):
        code, out, _ = run(*words)
        assert code == 0 and "judge probe  Ask it." in out
    code, out, _ = run("judge", "probe", "--help")
    assert code == 0 and "usage: embodied-rl judge probe" in out
    for words, named in ((["judge", "prob"], "judge prob"), (["judge", "run.root=x"], "judge run.root=x")):
        code, _, err = run(*words)
        assert code == 2 and f"'{named}'" in err and "[command-unknown]" in err and len(calls) == 1
    assert "Did you mean 'judge probe'?" in run("judge", "prob")[2]
