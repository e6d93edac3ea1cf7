"""A policy file with random damage is refused by name, by every command that loads one."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import embodied_rl
from embodied_rl.actors.learning.checkpoint import save_checkpoint
from embodied_rl.cli.main import USER_ERROR, main
from embodied_rl.commands import serve
from embodied_rl.config.assets import resolve_path
from embodied_rl.interfaces.errors import UserError
from embodied_rl.policy_server.weight_follower import WeightFollower

pytestmark = pytest.mark.thorough
ASSET = "asset:tabletop_base.safetensors"
DRAWS = pytest.mark.parametrize("tries", [4, pytest.param(200, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
"""Damaged files for each command, drawn from the seeds 0, 1, …"""

ARGUMENTS = {
    "eval": ("episodes=2", "sim.num_envs=2", "plan.slices=1"),
    "serve": ("port=0",),
    "play": (),
    "deploy": ("episodes=1",),
    "collect": ("sim=tabletop", "episodes=1"),
}


def damage(file: Path, seed: int) -> None:
    """Overwrite 1 to 4,000 random bytes: of the tensors, of the header, or of the file."""
    draw, content = np.random.default_rng(seed), bytearray(file.read_bytes())
    body, end = int.from_bytes(content[:8], "little") + 8, len(content)
    for place in draw.integers(*((body, end), (0, body), (0, end))[seed % 3], int(4000 ** draw.random())):
        content[place] ^= int(draw.integers(1, 256))
    file.write_bytes(content)


def make_lone_file(folder: Path) -> Path:
    return Path(shutil.copyfile(resolve_path(ASSET), folder / "damaged.safetensors"))


def make_checkpoint(folder: Path, step: int = 7) -> Path:
    """Write a checkpoint of a run in the folder; return its policy file."""
    copied = {"policy.safetensors": lambda path: shutil.copyfile(resolve_path(ASSET), path)}
    return save_checkpoint(folder / "checkpoints", step, {"a": np.zeros(1)}, {}, 1, copied) / "policy.safetensors"


PLACES = {"lone": make_lone_file, "checkpoint": make_checkpoint}


@DRAWS
@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("command", ARGUMENTS)
def test_commands_refuse_it(
    tmp_path, monkeypatch, capfd, command: str, make: Callable[[Path], Path], tries: int
) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(tries):
        file = make(tmp_path)
        damage(file, seed)
        code = main([command, str(file), *ARGUMENTS[command]])
        said = capfd.readouterr().err
        assert code == USER_ERROR and str(file) in said and len(said.splitlines()) == 1, (seed, said)


@DRAWS
@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_load_policy_and_policy_checkpoint_refuse_it(tmp_path, monkeypatch, capfd, make, tries: int) -> None:
    monkeypatch.chdir(tmp_path)
    for seed in range(tries):
        file = make(tmp_path)
        damage(file, seed)
        with pytest.raises(UserError, match=file.name):
            embodied_rl.load_policy(file)
        code = main(["train", "experiment=demo", f"policy.checkpoint={file}", "plan=colocated", "plan.ranks=1"])
        said = capfd.readouterr().err
        assert code == USER_ERROR and str(file) in said, (seed, said)


@DRAWS
def test_a_follower_keeps_the_weights_that_it_has(tmp_path: Path, tries: int) -> None:
    first, lines = make_checkpoint(tmp_path), list[str]()
    served = SimpleNamespace(weights=serve.load_served_weights(first))
    served.replace = lambda weights: setattr(served, "weights", weights)
    newest = lambda: serve.find_newest_file(str(tmp_path))  # noqa: E731
    follower = WeightFollower(cast(Any, served), first, newest, serve.load_served_weights, lines.append)
    for seed in range(tries):
        file = make_checkpoint(tmp_path, 8 + seed)
        damage(file, seed)
        assert not follower.update() and not follower.update()
        assert served.weights.version == 7 and len(lines) == seed + 1 and str(file) in lines[seed]
    make_checkpoint(tmp_path, 8 + tries)
    assert follower.update() and served.weights.version == 8 + tries
