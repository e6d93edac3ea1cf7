"""Forks of the tests' server behave as new interpreters."""

import json
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import forked
from tests.support.ended import gone, wait_for
from tests.support.forks import Forked

pytestmark = [pytest.mark.process, pytest.mark.thorough]
MODULE = "tests.support.self_portrait"
DEADLINE = 240.0


def portray(
    folder: Path, end: str, fresh: bool, environment: dict[str, str], children: bool = False
) -> tuple[int, dict[str, Any], str]:
    """Return the exit code of a process, its description of itself, and its further output."""
    with (folder / "said").open("w+") as out:
        process = forked.start(MODULE, [end, "ä b"], folder, environment, out, fresh=fresh, children=children)
        code = process.wait(DEADLINE)
    portrait, _, rest = (folder / "said").read_text().partition("\n")
    found = json.loads(portrait)
    assert found.pop("pid") in (process.pid, True)
    assert found.pop("forked") == (children if end == "child" else not fresh)
    return code, found, rest


def test_a_fork_has_the_state_of_a_new_interpreter(tmp_path: Path) -> None:
    portray(tmp_path, "0", False, dict(os.environ))
    paths = os.pathsep.join(["/nowhere", str(tmp_path), os.environ["PYTHONPATH"]])
    environment = {**os.environ, "PYTHONPATH": paths, "CRITIC_TOKEN": "secret"}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**30, hard))
    try:
        (code, found, said), expected = (portray(tmp_path, "7", fresh, environment) for fresh in (False, True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert found == expected[1]
    assert (code, said) == (7, "") == (expected[0], expected[2])
    assert found["parent"] == os.getpid() and found["told"] == f"{paths} secret\n"


@pytest.mark.parametrize("fresh", [False, True])
def test_children_of_a_fork_have_the_state_of_new_interpreters(fresh: bool, tmp_path: Path) -> None:
    found = portray(tmp_path, "child", False, dict(os.environ), children=True)
    expected = portray(tmp_path, "child", fresh, dict(os.environ))
    assert {n: (found[1][n], expected[1][n]) for n in found[1] if found[1][n] != expected[1][n]} == {}
    assert found[1]["parent"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_reach_a_fork_and_it_is_reaped(number: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as out:
        process = forked.start(MODULE, ["wait"], tmp_path, os.environ, out)
        assert isinstance(process, Forked) and process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        wait_for(lambda: (tmp_path / "said").read_text().endswith("\n"))
        os.killpg(process.pid, number)
        assert process.wait(DEADLINE) == process.poll() == -number
    assert gone(process.pid) and not Path(f"/proc/{process.pid}").exists()


@pytest.mark.parametrize("variables", [{"OMP_NUM_THREADS": "3"}, {"LC_ALL": "C"}, {"PYTHONPATH": "/nowhere"}])
def test_variables_that_imports_read_need_a_new_interpreter(variables: dict[str, str], tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as out:
        process = forked.start("json.tool", ["--help"], tmp_path, {**os.environ, **variables}, out)
        assert isinstance(process, subprocess.Popen) and process.wait(DEADLINE) == 0
