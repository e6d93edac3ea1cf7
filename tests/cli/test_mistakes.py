"""Every mistake in what was typed ends with exit code 2, a remedy, and no traceback."""

import os
import runpy
import subprocess
import sys
from dataclasses import replace

import pytest

from embodied_rl.cli import run_command, table
from embodied_rl.cli.main import CLOSED_PIPE, main
from embodied_rl.interfaces.errors import TransportError, UserError
from embodied_rl.runtime.processes.handle import RunFailed

TOY = ("train", "experiment=toy_run", "--dry-run")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["trian"], "unknown command 'trian'. Did you mean 'train'?"),
        (["xyzzy"], "unknown command 'xyzzy'. `embodied-rl --help` lists all."),
        (["collect", "from"], "policy=from: there is no such checkpoint"),
        ([*TOY, "run.root="], "run.root= is empty: give a path, or leave run.root out."),
        (["collect", "expert", "sim=toy", "out=", "--dry-run"], "out= is empty"),
        (["sft", "export=", "--dry-run"], "export= is empty"),
        (["list", "episodes"], "unknown list 'episodes'. Did you mean 'curricula'?"),
        (["list", "sim"], "unknown list 'sim'. Did you mean 'sims'?"),
        (["list", "sims", "tyo"], "unknown simulator 'tyo'. Did you mean 'toy'?"),
        (["list", "robots", "tabletop"], "list robots cannot show 'tabletop': leave it out."),
        (["list", "sims", "toy", "tabletop"], "list sims cannot show 'tabletop': leave it out."),
        (["train", "sim=tyo"], "unknown sim 'tyo'. Did you mean 'toy'?"),
        (["train", "policy=poket"], "unknown policy 'poket'. Did you mean 'pocket'?"),
        (["train", "algo=grop"], "unknown algo 'grop'. Did you mean 'grpo'?"),
        (["train", "experiment=dmo"], "unknown experiment 'dmo'. Did you mean 'demo'?"),
        (["train", "plan=spilt"], "unknown plan 'spilt'. Did you mean 'split'?"),
        ([*TOY, "sim.name=tyo"], "unknown simulator 'tyo'. Did you mean 'toy'?"),
        ([*TOY, "algo.name=tyo"], "unknown algorithm 'tyo'. Did you mean 'toy'?"),
        ([*TOY, "trian.iterations=3"], "unknown key 'trian'. Did you mean 'train'?"),
        ([*TOY, "train.iteration=3"], "unknown key 'train.iteration'. Did you mean 'train.iterations'?"),
        ([*TOY, "num_envs=3"], "unknown key 'num_envs'. Did you mean 'sim.num_envs'?"),
        ([*TOY, "sim.num_env=3"], "unknown key 'sim.num_env'. Did you mean 'sim.num_envs'?"),
        ([*TOY, "sim.gravty=3"], "unknown key 'sim.gravty'. Did you mean 'sim.gravity'?"),
        ([*TOY, "algo.sampler.noise=1"], "unknown key 'algo.sampler.noise'. Did you mean 'algo.sampler.noise_level'?"),
        ([*TOY, "train.iterations=many"], "train.iterations: expected a whole number, got 'many' (str)"),
        ([*TOY, "sim.gravity=strong"], "sim.gravity: expected a number, got 'strong' (str)"),
        ([*TOY, "logger.live=1"], "logger.live: expected true or false, got 1 (int)"),
        ([*TOY, "train.iterations=0"], "train.iterations must be at least 1, not 0"),
        ([*TOY, "algo.sampler.name=flow_sd"], "algo.sampler.name: unknown value 'flow_sd'. Did you mean 'flow_sde'?"),
        ([*TOY, "algo.sampler.step_weights=[1,2]"], "algo.sampler.step_weights has 2 entries"),
        (
            [*TOY, "plan=colocated", "sim.num_envs=9"],
            "cannot be divided evenly over plan.ranks × plan.slices = 2",
        ),
        ([*TOY, "plan.start_timeout=0"], "plan.start_timeout must be at least 1.0, not 0"),
        ([*TOY, "reward=oracle", "reward.weight=inf"], "reward.weight must be at most 1000000.0, not inf"),
        ([*TOY, "plan.call_timeout=inf"], "plan.call_timeout must be at most 86400 seconds, a day, not inf"),
        ([*TOY, "plan=split", "plan.workers=3"], "cannot be divided evenly over plan.ranks × plan.workers"),
        ([*TOY, "policy.checkpoint=nowhere.safetensors"], "policy.checkpoint: nowhere.safetensors is not there"),
        ([*TOY, "policy.checkpoint=asset:nothing"], "policy.checkpoint: there is no asset 'nothing'"),
        (["train", "policy=[toy]"], "policy is chosen by name, such as policy=<name>"),
        (["train", "foo"], "'foo' is not a setting: train takes key=value"),
        (["train", "seed=(1"], "seed: expected a whole number, got '(1'"),
        (["train", "--seed", "3"], "unknown option '--seed'. Settings are written without dashes, such as seed=3"),
        ([*TOY, "seed=0,1,2"], "seed=0,1,2 has several values: add -m"),
        ([*TOY, "~curriculum"], "~curriculum: no key can be removed"),
        ([*TOY, "hydra.run.dir=x"], "hydra.run.dir=x has no effect"),
        (["train", "--seed=3"], "Settings are written without dashes, such as seed=3"),
        (["train", "--resolve"], "add --cfg job, or leave it out"),
        (["train", "--cfg", "jbo"], "invalid choice: 'jbo' (choose from"),
        ([*TOY, "seed=range(0)", "-m"], "-m finds nothing to run: a range is empty"),
        ([*TOY, "algo=glob(zzz*)", "-m"], "-m finds nothing to run: a range is empty"),
        (["train", "--dryrun"], "Did you mean '--dry-run'?"),
        (["train", "--config-dir", "nowhere"], "--config-dir nowhere: there is no such folder"),
        (["sft", "experiment=demo"], "Type: embodied-rl train experiment=demo"),
        (["critic", "serve", "x", "megapixels=inf"], "megapixels must be at most 1000, not inf"),
        (["eval", "--dry-run"], "Who acts? Give policy=<a run folder"),
        (["compare"], "runs is missing"),
        (["bench", "tabletop", "overlap"], "bench takes one measurement at a time"),
        (["collect", "sim=toy", "task=lift_i", "--dry-run"], "unknown task 'lift_i'. Did you mean 'lift_it'?"),
        (["collect", "sim=toy", "split=widny", "--dry-run"], "unknown split 'widny'. Did you mean 'windy'?"),
        (["collect", "sim.name=hungry", "--dry-run"], "needs the package 'a_simulator_nobody_has'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_message(run, arguments: list[str], expected: str) -> None:
    code, _, err = run(*arguments)
    assert expected in err
    assert code == 2
    assert err.startswith("embodied-rl: ") and "Traceback" not in err


@pytest.mark.parametrize("part", ["job", "all"])
def test_references_may_be_resolved_where_they_are_printed(run, part: str) -> None:
    code, out, err = run(*TOY, "seed=${train.iterations}", "--cfg", part, "--resolve")
    assert code == 0 and "seed: 3\n" in out, err


def test_run_root_may_not_be_a_file(run, tmp_path) -> None:
    (tmp_path / "occupied").write_text("")
    code, _, err = run(*TOY, "run.root=occupied/runs")
    assert code == 2
    assert "run.root=occupied/runs" in err and "is a file, not a folder" in err


def test_run_root_must_be_writable(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("embodied_rl.config.checks.os.access", lambda path, mode: False)
    code, _, err = run(*TOY)
    assert code == 2
    assert "run.root=runs" in err and "cannot be written" in err


def test_two_packages_may_not_offer_the_same_name(run, toy_package) -> None:
    other = toy_package / "rival-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: rival\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text("[embodied_rl.sims]\nrival = rival_package:SIMS\n")
    (toy_package / "rival_package.py").write_text('SIMS = {"toy": "rival_package:Toy"}\n')
    code, _, err = run("list", "sims")
    assert code == 2
    assert "rival_package:Toy" in err and "toy_package:Toy" in err


@pytest.mark.parametrize("group", ["sims", "algorithms", "configs"])
def test_a_package_that_is_there_in_name_alone_is_named(run, toy_package, group: str) -> None:
    """As an editable install is, once its folder was moved: each command would end in a traceback about a module."""
    other = toy_package / "moved-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: moved\nVersion: 1.0\n")
    table = "moved_package" if group == "configs" else "moved_package:TABLE"
    (other / "entry_points.txt").write_text(f"[embodied_rl.{group}]\nmoved = {table}\n")
    code, _, err = run(*TOY)
    assert code == 2 and err.startswith(f"embodied-rl: the package 'moved' is installed, but {table}, which it offers")
    assert "there is no 'moved_package'" in err and "pip uninstall moved" in err


USER = "from embodied_rl.interfaces.errors import UserError"


def _command_that(run, toy_package, monkeypatch, statement: str) -> None:
    (toy_package / "embodied_rl_body.py").write_text(
        f"import numpy as np\ndef run(config):\n    {statement}\n", encoding="utf-8"
    )
    monkeypatch.delitem(sys.modules, "embodied_rl_body", raising=False)
    body = replace(table.COMMANDS["play"], body="embodied_rl_body:run")
    monkeypatch.setitem(table.COMMANDS, "play", body)


def test_an_error_for_the_user_has_no_traceback(run, toy_package, monkeypatch) -> None:
    _command_that(run, toy_package, monkeypatch, f"{USER}; raise UserError('of another network')")
    code, _, err = run("play", "sim=toy")
    assert (code, err) == (2, "embodied-rl: of another network\n")


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("raise RuntimeError('a bug')", RuntimeError),
        ("raise ValueError('a bug')", ValueError),
        ("np.zeros(2) + np.zeros(3)", ValueError),
        ("int('x')", ValueError),
    ],
)
def test_an_unexpected_error_keeps_its_traceback(
    run, toy_package, monkeypatch, statement: str, kind: type[Exception]
) -> None:
    _command_that(run, toy_package, monkeypatch, statement)
    with pytest.raises(kind):
        main(["play", "sim=toy"])


def test_an_interrupt_leaves_quietly(run, toy_package, monkeypatch) -> None:
    _command_that(run, toy_package, monkeypatch, "raise KeyboardInterrupt")
    assert run("play", "sim=toy")[0] == 130


@pytest.mark.parametrize("value", ["ünï/x.safetensors", "x=1.safetensors", "a b (1)/x.safetensors", "it's.safetensors"])
def test_a_path_may_hold_any_character(run, value: str) -> None:
    code, _, err = run("train", "experiment=toy_run", "--dry-run", f"policy.checkpoint={value}")
    assert code == 2 and f"policy.checkpoint: {value} is not there" in err


def test_where_results_cannot_go_is_found_before_anything_runs(run) -> None:
    for command in ("eval checkpoint=asset:tabletop_base.safetensors", "play policy=expert", "collect policy=expert"):
        code, _, err = run(*command.split(), "out=/etc/passwd/x", "--dry-run")
        assert code == 2 and "out=/etc/passwd/x: /etc/passwd is a file" in err and "run.root" not in err


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("train algo.learning_rate=1e-4", "unknown key 'algo.learning_rate'. Did you mean 'algo.lr'?"),
        ("train algo.batch_size=64", "unknown key 'algo.batch_size'. Did you mean 'algo.minibatch'?"),
        ("train n_envs=4", "unknown key 'n_envs'. Did you mean 'sim.num_envs'?"),
        ("train algo=ppo", "unknown algo 'ppo'. Did you mean 'flow_sde'?"),
        ("train algo.lr_finla=0", "unknown key 'algo.lr_finla'. Did you mean 'algo.lr_final'?"),
    ],
)
def test_the_words_of_other_libraries_are_understood(run, typed: str, expected: str) -> None:
    code, _, err = run(*typed.split(), "--dry-run")
    assert code == 2 and expected in err


@pytest.mark.parametrize("command", ["eval", "play", "collect"])
def test_a_policy_may_be_typed_as_a_plain_word(run, command: str) -> None:
    code, out, err = run(command, "expert", "sim=tabletop", "--dry-run")
    assert code == 0 and "sound" in out, err
    code, _, err = run(command, "expert", "policy=random", "--dry-run")
    assert code == 2 and "'expert' and policy=random both say policy" in err


@pytest.mark.process
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_seen_enough_is_no_error(unbuffered: str) -> None:
    """Whether it is found out at the end or in the middle of a table."""
    command = [sys.executable, "-m", "embodied_rl", "train", "--help"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    process.stdout.close()
    _, complaint = process.communicate(timeout=200)
    assert (process.returncode, complaint) == (CLOSED_PIPE, "")


@pytest.mark.parametrize("kind", [TransportError, RunFailed, UserError])
def test_what_was_noted_beside_an_error_is_told(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        error = kind("/command: a message was not published")
        error.add_note("The robot was not commanded to rest. See to it.")
        raise error

    monkeypatch.setattr(run_command, "run_command", fail)
    assert main(["bridge"]) in (1, 2)
    assert capsys.readouterr().err == (
        "embodied-rl: /command: a message was not published\n"
        "embodied-rl: The robot was not commanded to rest. See to it.\n"
    )


@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")
@pytest.mark.parametrize("words", [["list"], ["--help"], ["doctor", "--help"]])
def test_a_full_disk_behind_the_output_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "embodied_rl", *words], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.process
def test_output_in_ascii_loses_characters_but_ends_well() -> None:
    told = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "embodied_rl", "eval", "--help"], capture_output=True, env=told)
    assert done.returncode == 0 and done.stdout.isascii() and not done.stderr


def test_an_older_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"3\.11 or later"):
        runpy.run_module("embodied_rl", run_name="__main__")
