"""What Tab completes: commands, keys, choices and values, in the words of the tables and schemas themselves."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from embodied_rl.cli.command import list_commands
from embodied_rl.cli.completion import complete_line
from embodied_rl.cli.documentation import list_schema_keys
from embodied_rl.config.option_files import list_options


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("embodied-rl tra", ["train", "trace"]),
        ("embodied-rl critic ", ["train", "eval", "probe", "serve"]),
        ("embodied-rl train mode=", ["mode=sync", "mode=stream", "mode=async"]),
        ("embodied-rl train experiment=dem", ["experiment=demo"]),
        ("embodied-rl sft experiment=dem", []),  # of another command
        ("embodied-rl train algo.dyn", []),  # a key of GRPO
        ("embodied-rl train algo=grpo algo.dyn", ["algo.dynamic_sampling="]),
        ("embodied-rl train algo=none algo.dyn", []),
        ("embodied-rl train train.film=", ["train.film=true", "train.film=false"]),
        ("embodied-rl eval --dr", ["--dry-run"]),
        ("embodied-rl nothing ", []),
        ("embodied-rl list s", []),
        ("embodied-rl train resume=la", []),
    ],
)
def test_words_that_may_continue_a_line(line, expected):
    assert complete_line(line) == expected


def test_every_command_key_and_choice_is_offered():
    assert set(complete_line("embodied-rl ")) == {name.split()[0] for name in list_commands()}
    keys = {f"{key.name}=" for key in list_schema_keys("embodied_rl.schema:TrainConfig")}
    assert {key for key in keys if key.startswith("train.")} == set(complete_line("embodied-rl train train."))
    assert complete_line("embodied-rl train algo=") == [f"algo={option.name}" for option in list_options("algo")]


def test_the_first_keys_are_the_common_ones():
    offered = complete_line("embodied-rl train ")
    common = [f"{key}=" for key in list_commands()["train"].common]
    assert offered[-len(common) :] == common and "experiment=" in offered


def test_another_shell_is_refused_and_help_is_not(run):
    assert run("completion", "fish")[0] == 2
    code, out, _ = run("completion", "--help")
    assert code == 0 and "bash|zsh" in out


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "current", "expected"),
    [
        ("embodied-rl train mode=as", "as", "async"),  # "=" separates words, as by default
        ("embodied-rl train mode=as", "mode=as", "mode=async"),
        ("embodied-rl train mode=", "=", "sync|stream|async"),
        ("embodied-rl train train.iter", "train.iter", "train.iterations="),
    ],
)
def test_bash_replaces_the_part_that_it_takes_for_a_word(line, current, expected):
    program = Path(sys.executable).with_name("embodied-rl")
    script = f"""
        embodied-rl() {{ {program} "$@"; }}
        compopt() {{ :; }}
        eval "$(embodied-rl completion bash)"
        COMP_LINE='{line}' COMP_POINT={len(line)} COMP_WORDS=('{current}') COMP_CWORD=0
        _embodied_rl
        IFS='|'; echo "${{COMPREPLY[*]}}"
    """
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.strip() == expected, found.stderr


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("train mode=as", ["-S  --", "-- mode=async"]),
        ("train train.iter", ["-S  -- train.iterations=", "--"]),  # no space behind it
        ("train resume=la", ["files"]),
    ],
)
def test_zsh_loads_the_script_and_adds_what_it_is_offered(words, expected, tmp_path):
    program = Path(sys.executable).with_name("embodied-rl")
    script = f"""
        embodied-rl() {{ {program} "$@" }}
        eval "$(embodied-rl completion zsh)"
        print -r -- $_comps[embodied-rl]
        compset() {{ : }}
        compadd() {{ print -r -- "$@" }}
        _files() {{ print files }}
        words=(embodied-rl {words}) CURRENT=3 PREFIX=$words[3]
        _embodied_rl
    """
    command, environment = ["zsh", "-f", "-c", script], {**os.environ, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)}
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.splitlines() == ["_embodied_rl", *expected], found.stderr
