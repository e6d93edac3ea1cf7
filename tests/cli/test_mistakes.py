"""Mistakes in typed commands end with exit code 2 and one line, without a traceback."""

import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from embodied_rl.cli import run_command
from embodied_rl.cli.command import list_commands, load_commands
from embodied_rl.cli.main import CLOSED_PIPE, main
from embodied_rl.interfaces.errors import RunFailed, TransportError, UserError
from tests.support.refusals import refuses

TOY = ("train", "experiment=toy_run", "--dry-run")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("typed", "code", "data"),
    [
        ("trian", "command-unknown", "'trian' 'train'"),
        ("collect from", "checkpoint-missing", "policy=from"),
        ("collect expert sim=toy out= --dry-run", "path-empty", "out="),
        ("sft export= --dry-run", "path-empty", "export="),
        ("list episodes", "list-unknown", "'episodes' 'curricula'"),
        ("list sims tyo", "plugin-unknown", "'tyo' 'toy'"),
        ("list robots tabletop", "too-many-words", "robots 'tabletop'"),
        ("train sim=tyo", "choice-unknown", "sim 'tyo' 'toy'"),
        ("TOY sim.name=tyo", "plugin-unknown", "simulator 'tyo' 'toy'"),
        ("TOY trian.iterations=3", "key-unknown", "'trian' 'train'"),
        ("TOY train.iteration=3", "key-unknown", "'train.iteration' 'train.iterations'"),
        ("TOY num_envs=3", "key-unknown", "'num_envs' 'sim.num_envs'"),
        ("TOY sim.gravty=3", "key-unknown", "'sim.gravty' 'sim.gravity'"),
        ("TOY algo.sampler.noise=1", "key-unknown", "'algo.sampler.noise' 'algo.sampler.noise_level'"),
        ("TOY train.iterations=many", "value-wrong-type", "train.iterations: 'many' (str)"),
        ("TOY logger.live=1", "value-wrong-type", "logger.live: 1 (int)"),
        ("TOY train.iterations=0", "value-out-of-range", "train.iterations 1, 0"),
        ("TOY algo.sampler.name=flow_sd", "value-unknown", "algo.sampler.name: 'flow_sd' 'flow_sde'"),
        ("TOY algo.sampler.step_weights=[1,2]", "sampler-invalid", "algo.sampler.step_weights 2"),
        ("TOY plan=colocated sim.num_envs=9", "environments-not-divisible", "plan.ranks × plan.slices = 2"),
        ("TOY plan=split plan.workers=3", "environments-not-divisible", "plan.ranks × plan.workers"),
        ("TOY reward=oracle reward.weight=inf", "value-out-of-range", "reward.weight 1000000.0, inf"),
        ("TOY plan.call_timeout=inf", "value-not-finite", "plan.call_timeout"),
        ("TOY policy.checkpoint=nowhere.safetensors", "checkpoint-missing", "policy.checkpoint: nowhere.safetensors"),
        ("TOY policy.checkpoint=asset:nothing", "asset-unknown", "policy.checkpoint: 'nothing'"),
        ("train policy=[toy]", "choice-not-a-name", "policy=<name>"),
        ("train foo", "setting-invalid", "'foo' train"),
        ("train seed=(1", "value-wrong-type", "seed: '(1'"),
        ("train --seed 3", "option-unknown", "'--seed' seed=3"),
        ("TOY seed=0,1,2", "override-several-values", "seed=0,1,2 -m"),
        ("TOY ~curriculum", "override-removes-key", "~curriculum"),
        ("TOY hydra.run.dir=x", "override-no-effect", "hydra.run.dir=x run.root"),
        ("train --resolve", "option-without-effect", "--resolve --cfg"),
        ("train --cfg jbo", "option-invalid", "'jbo'"),
        ("TOY seed=range(0) -m", "sweep-empty", "-m"),
        ("train --dryrun", "option-unknown", "'--dry-run'"),
        ("train --config-dir nowhere", "folder-missing", "--config-dir nowhere"),
        ("sft experiment=demo", "experiment-of-another-command", "train experiment=demo"),
        ("train experiment=demo recipe=x", "keys-contradict", "experiment=demo recipe=x"),
        ("critic serve x megapixels=inf", "value-out-of-range", "megapixels 1000, inf"),
        ("eval --dry-run", "policy-not-given-once", "policy=<"),
        ("compare", "key-missing", "runs"),
        ("bench tabletop delay", "too-many-words", "bench tabletop delay"),
        ("collect sim=toy task=lift_i --dry-run", "task-unknown", "'lift_i' 'lift_it'"),
        ("collect sim=toy split=widny --dry-run", "split-unknown", "'widny' 'windy'"),
        ("collect sim.name=hungry --dry-run", "package-missing", "'a_simulator_nobody_has'"),
        ("train algo.learning_rate=1e-4 --dry-run", "key-unknown", "'algo.learning_rate' 'algo.lr'"),  # others' names
        ("train algo=gppo --dry-run", "choice-unknown", "algo 'gppo' 'ppo'"),
        ("train algo.lr_finla=0 --dry-run", "key-unknown", "'algo.lr_finla' 'algo.lr_final'"),
    ],
)
def test_mistakes_have_a_code_and_name_the_data(run, typed: str, code: str, data: str) -> None:
    exit_code, _, err = run(*typed.replace("TOY", " ".join(TOY)).split())
    assert exit_code == 2 and err.startswith(f"embodied-rl: [{code}] "), err
    assert all(word in err for word in data.split()), err


@pytest.mark.parametrize("part", ["job", "all"])
def test_cfg_resolves_references(run, part: str) -> None:
    code, out, err = run(*TOY, "seed=${train.iterations}", "--cfg", part, "--resolve")
    assert code == 0 and "seed: 3\n" in out, err


@pytest.mark.thorough
def test_run_root_must_be_a_writable_folder(run, tmp_path, monkeypatch) -> None:
    (tmp_path / "occupied").write_text("")
    code, _, err = run(*TOY, "run.root=occupied/runs")
    assert code == 2 and "run.root=occupied/runs" in err and "[folder-is-a-file]" in err
    monkeypatch.setattr("embodied_rl.system.atomic_write.os.access", lambda path, mode: False)
    code, _, err = run(*TOY)
    assert code == 2 and "run.root=runs" in err and "[folder-not-writable]" in err


def add_distribution(folder: Path, name: str, group: str, table: str) -> None:
    """Write the metadata of an installed distribution with one entry point."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[embodied_rl.{group}]\n{name} = {table}\n")


def test_two_packages_may_not_offer_the_same_name(run, toy_package) -> None:
    add_distribution(toy_package, "rival", "sims", "rival_package:SIMS")
    (toy_package / "rival_package.py").write_text('SIMS = {"toy": "rival_package:Toy"}\n')
    code, _, err = run("list", "sims")
    assert code == 2 and "rival_package:Toy" in err and "toy_package:Toy" in err and "[plugin-name-taken]" in err


@pytest.mark.parametrize("group", ["sims", "algorithms", "configs"])
def test_a_distribution_without_its_package_is_named(run, toy_package, group: str) -> None:
    """An editable install stays registered after its folder was moved."""
    entry = "moved_package" if group == "configs" else "moved_package:TABLE"
    add_distribution(toy_package, "moved", group, entry)
    code, _, err = run(*TOY)
    assert code == 2 and "[plugin-not-importable]" in err
    assert all(
        data in err for data in (f"'moved' is installed, but {entry},", "'moved_package'", "pip uninstall moved")
    )


def test_configurations_need_no_init_file(run, toy_package) -> None:
    (toy_package / "toy_package_conf" / "__init__.py").unlink()
    assert run(*TOY)[0] == 0


def test_a_plugin_without_a_file_is_typed_by_its_name(run, toy_package) -> None:
    (toy_package / "toy_package_conf" / "sim" / "toy.yaml").unlink()
    code, _, err = run("train", "sim=toy")
    assert code == 2 and "[choice-unknown]" in err and "sim.name=toy." in err


def test_a_table_of_commands_that_cannot_be_imported_is_named(toy_package) -> None:
    add_distribution(toy_package, "moved", "commands", "moved_package:COMMANDS")
    with refuses("plugin-not-importable", "'moved' is installed, but moved_package:COMMANDS,"):
        load_commands()


@pytest.mark.thorough
@pytest.mark.parametrize("replaces", [False, True])
def test_two_packages_offer_a_command_of_one_name(toy_package, monkeypatch, replaces: bool) -> None:
    add_distribution(toy_package, "rival", "commands", "rival_commands:COMMANDS")
    (toy_package / "rival_commands.py").write_text(
        "from embodied_rl.cli.command import Command\n"
        f"COMMANDS = (Command('play', 'Play.', None, 'rival_commands:run', replaces={replaces}),)\n"
    )
    monkeypatch.delitem(sys.modules, "rival_commands", raising=False)
    if replaces:
        assert load_commands()["play"].body == "rival_commands:run"
    else:
        with refuses("command-name-taken", "'play'", "embodied_rl.commands.play:run", "rival_commands:run"):
            load_commands()


USER = "from embodied_rl.interfaces.errors import UserError"


def _command_that(run, toy_package, monkeypatch, statement: str) -> None:
    (toy_package / "embodied_rl_body.py").write_text(
        f"import numpy as np\ndef run(config):\n    {statement}\n", encoding="utf-8"
    )
    monkeypatch.delitem(sys.modules, "embodied_rl_body", raising=False)
    body = replace(list_commands()["play"], body="embodied_rl_body:run")
    monkeypatch.setitem(list_commands(), "play", body)


def test_user_errors_have_no_traceback(run, toy_package, monkeypatch) -> None:
    _command_that(run, toy_package, monkeypatch, f"{USER}; raise UserError('of another network', 'network-differs')")
    code, _, err = run("play", "sim=toy")
    assert (code, err) == (2, "embodied-rl: [network-differs] of another network\n")


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("raise RuntimeError('a bug')", RuntimeError),
        ("raise ValueError('a bug')", ValueError),
        ("np.zeros(2) + np.zeros(3)", ValueError),
        ("int('x')", ValueError),
    ],
)
def test_other_errors_keep_their_traceback(
    run, toy_package, monkeypatch, statement: str, kind: type[Exception]
) -> None:
    _command_that(run, toy_package, monkeypatch, statement)
    with pytest.raises(kind):
        main(["play", "sim=toy"])


def test_interrupt_exits_with_130(run, toy_package, monkeypatch) -> None:
    _command_that(run, toy_package, monkeypatch, "raise KeyboardInterrupt")
    assert run("play", "sim=toy")[0] == 130


@pytest.mark.parametrize("value", ["ünï/x.safetensors", "x=1.safetensors", "a b (1)/x.safetensors", "it's.safetensors"])
def test_a_path_may_hold_any_character(run, value: str) -> None:
    code, _, err = run("train", "experiment=toy_run", "--dry-run", f"policy.checkpoint={value}")
    assert code == 2 and f"policy.checkpoint: {value} " in err and "[checkpoint-missing]" in err


@pytest.mark.thorough
def test_out_is_checked_before_anything_runs(run) -> None:
    for command in ("eval checkpoint=asset:tabletop_base.safetensors", "play policy=expert", "collect policy=expert"):
        code, _, err = run(*command.split(), "out=/etc/passwd/x", "--dry-run")
        assert code == 2 and "out=/etc/passwd/x: /etc/passwd " in err and "[folder-is-a-file]" in err


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["eval", "play", "collect"])
def test_a_policy_may_be_typed_as_a_plain_word(run, command: str) -> None:
    code, out, err = run(command, "expert", "sim=tabletop", "--dry-run")
    assert code == 0 and "sound" in out, err
    code, _, err = run(command, "expert", "policy=random", "--dry-run")
    assert code == 2 and "'expert' and policy=random" in err and "[key-set-twice]" in err


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_closed_pipe_prints_no_error(unbuffered: str) -> None:
    command = [sys.executable, "-m", "embodied_rl", "train", "--help"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    process.stdout.close()
    _, complaint = process.communicate(timeout=200)
    assert (process.returncode, complaint) == (CLOSED_PIPE, "")


@pytest.mark.parametrize("kind", [TransportError, RunFailed, UserError])
def test_notes_of_an_error_are_printed(
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


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is always full")
@pytest.mark.parametrize("words", [["list"], ["--help"], ["doctor", "--help"]])
def test_full_disk_behind_the_output_is_reported_in_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "embodied_rl", *words], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr


@pytest.mark.thorough
@pytest.mark.process
def test_ascii_output_replaces_characters() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-m", "embodied_rl", "eval", "--help"], capture_output=True, env=environment)
    assert done.returncode == 0 and done.stdout.isascii() and not done.stderr


def test_older_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 13))
    with pytest.raises(SystemExit, match=r"3\.11 or later"):
        runpy.run_module("embodied_rl", run_name="__main__")
