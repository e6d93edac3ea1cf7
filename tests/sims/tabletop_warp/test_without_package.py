"""What the tabletop on MuJoCo Warp says and checks where MuJoCo Warp is not installed."""

import importlib.util
from pathlib import Path

import pytest

from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import SimNode
from embodied_rl_sims.tabletop_warp import TabletopWarpConfig

NAME = "tabletop_warp"


def test_devices_are_checked() -> None:
    for name in ("auto", "cpu", "cuda", "cuda:3"):
        TabletopWarpConfig(device=name)
    with pytest.raises(ValueError, match=r"sim\.device=gpu: it is auto, cpu, cuda or cuda:<number>"):
        TabletopWarpConfig(device="gpu")
    with pytest.raises(ValueError, match=r"sim\.horizon"):
        TabletopWarpConfig(horizon=0)


def test_without_mujoco_warp_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("mujoco_warp") is not None:
        pytest.skip("mujoco_warp is installed here")
    monkeypatch.setenv("EMBODIED_RL_ENVIRONMENTS", str(tmp_path))
    kind = SimulatorKind.find(SimNode(NAME))
    for asked in (lambda: kind.spec, lambda: kind.build(1)):
        with pytest.raises(Unavailable, match=f"embodied-rl sim install {NAME}"):
            asked()
    assert [found.status for found in kind.ask("diagnose")] == ["fail", "fail"]
