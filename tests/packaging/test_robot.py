"""The distribution for robots works alone: an environment has its wheel and what that requires, and nothing else."""

import re
from pathlib import Path

import pytest

from tests.support.packaging import install, list_requirements, run

pytestmark = [pytest.mark.packaging, pytest.mark.process]

IMPORT_ALL = """
import importlib, pkgutil, sys
import embodied_rl
for module in pkgutil.walk_packages(embodied_rl.__path__, "embodied_rl."):
    if not module.name.endswith(("__main__", "deployment.policy_server")):  # which says where it is now
        importlib.import_module(module.name)
print(len(sys.modules))
"""


@pytest.fixture(scope="session")
def alone(robot_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of the environment."""
    return install(tmp_path_factory.mktemp("alone"), robot_wheel, only=list_requirements("embodied-rl-robot"))


def test_it_requires_little() -> None:
    required = list_requirements("embodied-rl-robot")
    assert len(required) <= 20 and not required & {"torch", "mujoco", "transformers", "hydra-core", "omegaconf"}


def test_every_module_of_it_can_be_imported(alone: Path, tmp_path: Path) -> None:
    run([alone / "python", "-c", IMPORT_ALL], tmp_path)


def test_its_commands_are_there(alone: Path, tmp_path: Path) -> None:
    program = alone / "embodied-rl"
    assert "franka" in run([program, "list", "robots"], tmp_path)
    overview = run([program, "--help"], tmp_path)
    assert set(re.findall(r"^  (\w+)  ", overview, re.MULTILINE)) == {"bridge", "record", "contract", "doctor", "list"}
    for command in ("bridge", "record", "contract", "doctor"):
        assert f"usage: embodied-rl {command}" in run([program, command, "--help"], tmp_path)
    assert "robot: tabletop" in run([program, "bridge", "robot=tabletop", "--cfg", "job"], tmp_path)
    for words in ("bridge robot=franka policy=ws://127.0.0.1:9", "record robot=franka out=there"):
        assert "dry run" in run([program, *words.split(), "--dry-run"], tmp_path)


def test_a_policy_needs_the_platform(alone: Path, tmp_path: Path) -> None:
    code = """
import embodied_rl
try:
    embodied_rl.load_policy("there")
except ModuleNotFoundError as error:
    print(error)
"""
    assert "pip install embodied-rl" in run([alone / "python", "-c", code], tmp_path)
