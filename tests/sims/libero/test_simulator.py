"""LIBERO in a worker of its own environment: a simulator's contract, and what it says where something is missing."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.testing.simulator_contract import Check, check_spec
from tests.support.environments import CONTRACT, kind_of

pytestmark = pytest.mark.sim
HORIZON = 4


@pytest.fixture(scope="module")
def kind(assets: Path) -> SimulatorKind:
    return small(assets)


def small(assets: Path | str, **options: Any) -> SimulatorKind:
    chosen = {"suite": "libero_object", "image_size": 32, "settle": 1, "horizon": HORIZON, "renderer": "osmesa"}
    return kind_of("libero", rendering="light", assets=str(assets), **{**chosen, **options})


class Lender:
    """Simulators that one check after another uses, because a worker takes seconds to start; each used as if new."""

    def __init__(self, kind: SimulatorKind) -> None:
        self._kind, self._idle, self._all = kind, {}, []

    def build(self, num_envs: int) -> Any:
        waiting = self._idle.setdefault(num_envs, [])
        if not waiting:
            waiting.append(self._kind.build(num_envs))
            self._all.append(waiting[0])
        simulator = waiting.pop()
        return Lent(simulator, lambda: waiting.append(simulator))

    def close(self) -> None:
        for simulator in self._all:
            simulator.close()


class Lent:
    """A simulator whose `close` gives it back."""

    def __init__(self, simulator: Any, give_back: Callable[[], None]) -> None:
        self._simulator, self.close = simulator, give_back

    def __getattr__(self, name: str) -> Any:
        return getattr(self._simulator, name)


@pytest.fixture(scope="module")
def check(kind: SimulatorKind) -> Iterator[Check]:
    lender = Lender(kind)
    yield Check(lender.build, executed=3)
    lender.close()


@pytest.mark.parametrize("name", CONTRACT)
def test_contract(check: Check, name: str) -> None:
    getattr(check, name)()


def test_spec(kind: SimulatorKind) -> None:
    spec = kind.spec
    check_spec(spec)
    assert {camera.name: (camera.height, camera.width) for camera in spec.cameras} == {
        "agentview": (32, 32),
        "robot0_eye_in_hand": (32, 32),
    }
    assert spec.horizon == HORIZON and spec.control_hz == 20 and spec.families == ("libero_object",)
    assert {"basket", "alphabet"} <= set(spec.words)


def test_missing_assets_are_named(assets: Path, tmp_path: Path) -> None:
    partial = tmp_path / "assets"
    shutil.copytree(assets, partial)
    mesh = next(partial.glob("stable_hope_objects/milk/**/*.msh"))
    mesh.unlink()
    shutil.rmtree(partial / "stable_scanned_objects" / "basket")
    with pytest.raises(Unavailable, match=r"sim\.assets=<folder>") as caught:
        small(partial).build(1)
    for name in (mesh.relative_to(partial).as_posix(), "stable_scanned_objects/basket/basket.xml", "2 files"):
        assert name in str(caught.value)
    assets_line = next(line for line in small(partial).ask("diagnose") if line.name == "assets")
    assert assets_line.status == "fail" and "sim.assets" in assets_line.remedy


def test_diagnosis(kind: SimulatorKind) -> None:
    lines = {line.name: line for line in kind.ask("diagnose")}
    assert {line.status for line in lines.values()} == {"ok"}, lines
    assert lines["robosuite"].found == "1.4.0"
    assert "files, sha256" in lines["assets"].found and "pictures/s" in lines["renderer osmesa"].found


def test_provenance_changes_with_what_it_is_of(kind: SimulatorKind, assets: Path, tmp_path: Path) -> None:
    before = kind.ask("provenance")
    other = tmp_path / "assets"
    shutil.copytree(assets, other)
    assert small(other).ask("provenance") == before
    texture = next(other.glob("textures/*.png"))
    content = bytearray(texture.read_bytes())
    content[-1] ^= 1
    texture.write_bytes(content)
    after = small(other, suite="libero_goal").ask("provenance")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"assets sha256", "bddl sha256", "initial states sha256"}
    assert before["robosuite"] == "1.4.0" and before["rendering"] == "light, osmesa"
