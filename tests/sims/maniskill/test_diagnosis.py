"""What the diagnosis says of a GPU. Neither a GPU nor the package is needed: their answers are given."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from embodied_rl.interfaces.sim import Diagnosis, Unavailable
from embodied_rl_sims.maniskill import ManiSkill, ManiSkillConfig, package


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
