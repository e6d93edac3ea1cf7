"""A stranger's robot, contract or recording, and each command that opens it: one line that names the file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.planting import Plant

pytestmark = pytest.mark.thorough
Typed = Callable[..., tuple[int, str]]
ROBOTS = {
    "doctor": ("doctor", "robot={}"),
    "contract": ("contract", "robot={}"),
    "contract of rosetta": ("contract", "contract={}"),
    "record": ("record", "robot={}", "out=recorded", "--dry-run"),
    "bridge": ("bridge", "robot={}", "policy=ws://127.0.0.1:9", "--dry-run"),
    "robot": ("robot", "robot={}", "--dry-run"),
    "simulator": ("train", "sim=robot", "sim.robot={}", "--dry-run"),
}
PLANTED = {
    "constructor": "name: !!python/object/apply:os.system ['touch {}']\n",
    "references": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
    "variable": "name: ${{oc.env:SECRET}}\n",
    "deep": "name: " + "[" * 20_000,
    "terminal": 'name: "\\e]0;evil\\a"\n',
}


@pytest.mark.parametrize("planted", PLANTED)
@pytest.mark.parametrize("command", ROBOTS)
def test_a_robot(plant: Plant, typed: Typed, monkeypatch: pytest.MonkeyPatch, command: str, planted: str) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    file = plant.sent / "robot.yaml"
    file.write_text(PLANTED[planted].format(plant.mark))
    check(plant, typed, file, ROBOTS[command])


@pytest.mark.parametrize("command", [("convert", "{}", "out=made"), ("record", "recover={}", "out=made")])
@pytest.mark.parametrize("content", [b"evil", b"\x89MCAP0\r\n\x06" + b"\xff" * 8, b"\x89MCAP0\r\n\x03\x01" + bytes(8)])
def test_a_recording(plant: Plant, typed: Typed, command: tuple[str, ...], content: bytes) -> None:
    (plant.sent / "a.mcap").write_bytes(content)
    (plant.sent / "b.mcap").symlink_to(plant.outside / "secret.json")
    check(plant, typed, plant.sent, command)
    assert not (plant.work / "made").exists()


def check(plant: Plant, typed: Typed, file: Path, command: tuple[str, ...]) -> None:
    plant.watch()
    code, said = typed(*(word.format(file) for word in command))
    assert plant.find_harm() == []
    lines = [line for line in said.splitlines() if line.startswith("embodied-rl: ")]
    assert code == 2 and len(lines) == 1 and str(file) in lines[0], said
    assert "hunter2" not in said and "\x1b" not in said and "Traceback" not in said
