"""What needs neither the package nor a GPU: settings, seeds, words, and what the diagnosis says of a GPU."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from embodied_rl.interfaces.sim import Diagnosis, Episode, Unavailable
from embodied_rl_sims.maniskill import ManiSkill, ManiSkillConfig, package
from embodied_rl_sims.maniskill.settings import make_instruction
from embodied_rl_sims.maniskill.single import find_seed


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"backend": "tpu"}, "sim.backend=tpu: give one of cpu, gpu"),
        ({"observations": "depth"}, "sim.observations=depth"),
        ({"reward": "shaped"}, "sim.reward=shaped"),
        ({"horizon": 0}, "sim.horizon=0"),
        ({"image_size": 0}, "sim.image_size=0"),
        ({"reconfiguration_freq": 5}, "the episodes before it"),
        ({"backend": "gpu", "reconfiguration_freq": 1}, "leave out"),
    ],
)
def test_wrong_settings_are_refused_by_key(keys, message):
    with pytest.raises(ValueError, match=message):
        ManiSkillConfig(**keys)


def test_small_seeds_and_numbered_states_are_the_packages_own():
    assert find_seed(Episode(0, 0, 2**30 - 1)) == 2**30 - 1
    assert find_seed(Episode(0, 0, 5, initial_state=9)) == 9


def test_large_seeds_fit_the_package_and_purposes_stay_apart():
    seeds = {find_seed(Episode(0, 0, (number << 61) + 5)) for number in range(4)}
    assert len(seeds) == 4 and all(0 <= seed < 2**32 for seed in seeds)


def test_every_task_has_words():
    assert make_instruction("PickCube-v1").startswith("pick up the red cube")
    assert make_instruction("MS-HumanoidRun-v1") == "humanoid run"
    assert make_instruction("RotateValveLevel0-v1") == "rotate valve level 0"


@pytest.fixture
def physx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where SAPIEN keeps the library; it is empty."""
    sapien, module = ModuleType("sapien"), ModuleType("sapien.physx")
    module.version = lambda: "105.1-physx-5.3"  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "sapien", sapien)
    monkeypatch.setitem(sys.modules, "sapien.physx", module)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".sapien" / "physx" / "105.1-physx-5.3"


def diagnose(backend: str) -> dict[str, Diagnosis]:
    return {line.name: line for line in ManiSkill.diagnose(ManiSkillConfig(backend=backend))}


def test_without_a_gpu_its_backend_is_not_ready(monkeypatch, physx) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    line = diagnose("gpu")["CUDA device"]
    assert line.status == "fail" and "sim.backend=cpu" in line.remedy
    assert not {"CUDA device", "PhysX on CUDA"} & set(diagnose("cpu")), "who simulates on the processor needs neither"
    with pytest.raises(Unavailable, match=r"sim\.backend=gpu needs an NVIDIA GPU"):
        package.make_environment(ManiSkillConfig(backend="gpu"), 4)


def test_the_library_that_will_be_downloaded_is_told_with_the_command_for_it(monkeypatch, physx) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A device")
    found = diagnose("gpu")
    assert (found["CUDA device"].status, found["CUDA device"].found) == ("ok", "A device")
    line = found["PhysX on CUDA"]
    assert line.status == "warn" and str(physx) in line.found and "sapien.physx.enable_gpu()" in line.remedy
    physx.mkdir(parents=True)
    (physx / "libPhysXGpu_64.so").touch()
    assert diagnose("gpu")["PhysX on CUDA"].status == "ok"
