"""`--help` and `list` answer at once, because they import nothing heavy."""

import json
import resource
import subprocess
import sys

import pytest

from embodied_rl.cli.command import list_commands

pytestmark = pytest.mark.process

HEAVY = ("torch", "mujoco", "scipy", "tensorboard")
REPORT = f"""
import json, sys
from embodied_rl.cli.main import main
code = main(sys.argv[1:])
print(json.dumps([code, *(name for name in {HEAVY} if name in sys.modules)]))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["list"],
        ["list", "algos", "ppo"],
        ["list", "experiments"],
        *([*name.split(), "--help"] for name in list_commands()),
    ],
    ids=" ".join,
)
def test_answers_within_two_seconds_and_without_torch(arguments: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *arguments], capture_output=True, text=True, timeout=200, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert json.loads(done.stdout.splitlines()[-1]) == [0]
    processor_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert processor_seconds < 2, f"{processor_seconds:.2f} s of processor time"


@pytest.mark.thorough
def test_tasks_are_listed_without_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPORT, "list", "tasks"], capture_output=True, text=True, timeout=200, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [0, "mujoco"]
    assert "embodied-rl list tasks isaaclab" in done.stdout, "asking it would start Isaac Sim"
