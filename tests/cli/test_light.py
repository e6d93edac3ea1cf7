"""`--help` and `list` answer at once, because they import nothing heavy."""

import json
import subprocess
import sys
from typing import Any

import pytest

from embodied_rl.cli.command import list_commands

pytestmark = pytest.mark.process

HEAVY = ("torch", "mujoco", "scipy", "tensorboard", "ray", "transformers", "lerobot", "PIL")
REPORT = f"""
import json, sys
from embodied_rl.cli.main import main
code = main(sys.argv[1:])
heavy = [name for name in {HEAVY} if name in sys.modules]
print(json.dumps(dict(code=code, heavy=heavy, modules=len(sys.modules))))
"""
MOST_MODULES = 700  # 565 with numpy and Hydra; torch alone brings 1,300


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
def test_answers_without_heavy_imports(arguments: list[str]) -> None:
    report, _ = _run(arguments)
    assert report["code"] == 0
    assert report["heavy"] == []
    assert report["modules"] < MOST_MODULES


@pytest.mark.thorough
def test_tasks_are_listed_without_torch() -> None:
    report, printed = _run(["list", "tasks"])
    assert (report["code"], report["heavy"]) == (0, ["mujoco", "PIL"])
    assert "embodied-rl list tasks isaaclab" in printed, "asking it would start Isaac Sim"


def _run(arguments: list[str]) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *arguments], capture_output=True, text=True, timeout=200, check=True
    )
    return json.loads(done.stdout.splitlines()[-1]), done.stdout
