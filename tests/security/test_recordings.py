"""What strangers send as a robot's past: return points, demonstrations, recordings."""

import json
import math
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.deployment.execution.demonstration import read_demonstration
from embodied_rl.deployment.execution.limits import CommandLimits, EntryLimits
from embodied_rl.deployment.execution.return_points import load_return_points
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.recording.mcap_reader import RecordingError
from embodied_rl.deployment.recording.recording_folder import DESCRIPTION, Recording, recover_recording
from embodied_rl.deployment.recording.topics import RecordedTopic
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Source
from tests.support.demonstrations import describe_episode, make_body, write_episode
from tests.support.recorded_robot import FakeRun, record_run
from tests.support.recording import TEXT, open_bench

MESSAGES = Messages()

# return points and demonstrations

BODY = make_body(1, 1, 10.0)
LIMITS = CommandLimits((EntryLimits("x", "displacement", -math.inf, math.inf, 1, 5, 50),))


@pytest.mark.parametrize("pose", ["9" * 400, "1e999", "true", '"1"'])
def test_a_pose_beyond_all_numbers(tmp_path: Path, pose: str) -> None:
    """The box of this entry has no bounds."""
    point = f'{{"name": "a", "task": "b", "pose": [{pose}], "picture": "", "tries": 0, "failures": 0}}'
    head = '"format": "embodied_rl return points", "version": 1, "robot": "arm", "entries": ["x"]'
    (tmp_path / "points.json").write_text(f'{{{head}, "points": [{point}]}}')
    with pytest.raises(UserError, match="point 0: pose of 'x' is"):
        load_return_points(tmp_path / "points.json", "arm", LIMITS)


def write_array(file: Path) -> None:
    with file.open("wb") as opened:
        np.save(opened, np.zeros((3, 1)))


def write_large(file: Path) -> None:
    """256 MiB of zeros in 1 MB."""
    header = {"descr": "<f8", "fortran_order": False, "shape": (2**25, 1)}
    packing = zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    with packing as packed, packed.open("actions.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(2**4):
            member.write(bytes(2**24))


def write_header(header: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        with zipfile.ZipFile(file, "w") as packed:
            for name in ("actions", "state"):
                packed.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)

    return write


def write_kinds(dtype: Any) -> Callable[[Path], object]:
    return lambda file: write_episode(file, BODY, np.zeros((3, 1), dtype), np.zeros((3, 1), dtype))


SPOILT: dict[str, Callable[[Path], object]] = {
    "array": write_array,
    "large": write_large,
    "huge": write_header(b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999, 1)}\n"),
    "no literal": write_header(b"{'descr': ((((\n"),
    "no dtype": write_header(b"{'descr': 'evil', 'fortran_order': False, 'shape': (1, 1)}\n"),
    "structure": write_kinds([("a", "f8"), ("b", "f8")]),
    "complex": write_kinds(np.complex128),
    "text": write_kinds("U3"),
    "times": write_kinds("M8[s]"),
    "nothing": lambda file: file.write_bytes(b""),
    "pickle": lambda file: file.write_bytes(b"\x80\x04K\x01."),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", SPOILT)
@pytest.mark.filterwarnings("error")
def test_a_demonstration_that_is_none(tmp_path: Path, name: str) -> None:
    file = tmp_path / "episode.npz"
    SPOILT[name](file)
    with pytest.raises(UserError, match=r"episode.npz"):
        read_demonstration(file, BODY, (0,))


@pytest.mark.thorough
def test_a_demonstration_compressed_by_what_nobody_knows(tmp_path: Path) -> None:
    file = tmp_path / "episode.npz"
    named = {"actions": np.zeros((3, 1)), "state": np.zeros((3, 1)), **describe_episode(BODY)}
    np.savez_compressed(file, allow_pickle=False, **named)
    read_demonstration(file, BODY, (0,))
    sound = file.read_bytes()
    draw = np.random.default_rng(5)
    for _ in range(400):
        spoilt = bytearray(sound)
        for place in draw.integers(0, len(sound), 2):
            spoilt[place] = draw.integers(0, 256)
        file.write_bytes(bytes(spoilt))
        try:
            read_demonstration(file, BODY, (0,))
        except UserError as error:
            assert "episode.npz" in str(error) or "demonstration" in str(error)


def test_a_pipe_in_place_of_points_or_a_demonstration_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe cannot be read"):
        load_return_points(tmp_path / "pipe", "arm", LIMITS)
    with pytest.raises(UserError, match="pipe cannot be read"):
        read_demonstration(tmp_path / "pipe", BODY, (0,))


# recordings


def record(folder: Path) -> Path:
    record_run(folder, MESSAGES, lambda run: run.run_episode(0, [Source.POLICY] * 3))
    return folder


def convert(folder: Path) -> list[Any]:
    return list(Conversion.open(folder, MESSAGES, None).read_parts())


DESCRIBED = {
    "field": ("field: pose.position.x", "field: pose.position.nothing"),
    "type": ("geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/Nothing"),
    "constructor": ("name: tabletop", "name: !!int ''"),
    "terminal": ("name: tabletop", 'name: "\\e[31m"'),
    "reference": ("name: tabletop", "name: &a tabletop\nx: *a"),
    "unknown key": ("control_hz:", "interpreter: /bin/sh\ncontrol_hz:"),
    "rate": ("command_hz: 100.0", "command_hz: 3.0"),
    "other topic's type": ("sensor_msgs/msg/JointState", "trajectory_msgs/msg/JointTrajectory"),
}


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_recording_s_robot_is_checked_as_any_other(tmp_path: Path, name: str) -> None:
    file = record(tmp_path / "bag") / DESCRIPTION
    before, after = DESCRIBED[name]
    sound = file.read_text()
    assert before in sound
    file.write_text(sound.replace(before, after))
    with pytest.raises(UserError, match="bag"):
        convert(tmp_path / "bag")


def test_fewer_limits_than_actions(tmp_path: Path) -> None:
    file = record(tmp_path / "bag") / DESCRIPTION
    text = file.read_text()
    begin = text.index("limits:\n  entries:\n") + len("limits:\n  entries:\n")
    file.write_text(text[:begin] + text[text.index("  - name:", begin + 3) :])
    with pytest.raises(UserError, match=r"description.yaml: .*limits"):
        convert(tmp_path / "bag")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_recording_s_robot_lies_in_its_folder(tmp_path: Path, kind: str) -> None:
    file = record(tmp_path / "bag") / DESCRIPTION
    file.rename(tmp_path / "outside.yaml")
    file.symlink_to(tmp_path / "outside.yaml") if kind == "link" else os.mkfifo(file)
    with pytest.raises(UserError, match=r"description.yaml"):
        convert(tmp_path / "bag")


def write_times(folder: Path, times: list[int]) -> Path:
    """A recording that was cut off, with messages of these times."""
    with open_bench(folder, [RecordedTopic("/note", TEXT)], MESSAGES) as bench:
        note = bench.talker.create_publisher("/note", TEXT, "state")
        for time_ns in times:
            bench.now[0] = time_ns
            note.publish(MESSAGES.make(TEXT, data="a"))
            bench.write()
        bench.finish()
    (folder / "metadata.yaml").unlink()
    return folder


def test_times_do_not_fill_a_folder_with_files(tmp_path: Path) -> None:
    """Each message is a year later, or earlier, than the one before."""
    bag = write_times(tmp_path / "bag", [year * 10**16 for year in (1, 2, 3, 1, 2, 3)])
    recover_recording(bag, tmp_path / "out", MESSAGES)
    assert len(list((tmp_path / "out").glob("*.mcap"))) == 1


def test_times_beyond_int64(tmp_path: Path) -> None:
    bag = write_times(tmp_path / "bag", [2**63])
    with pytest.raises(RecordingError, match="2\\*\\*63 ns"):
        list(Recording(bag, MESSAGES).read())


def test_many_episodes_that_all_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding an outcome's episode looks at one, however many there are."""
    from embodied_rl.deployment.recording import episodes

    looked: list[int] = []

    class Counted(episodes.RecordedEpisode):
        def __getattribute__(self, name: str) -> Any:
            if name == "number":
                looked.append(1)
            return super().__getattribute__(name)

    monkeypatch.setattr(episodes, "RecordedEpisode", Counted)

    def run(fake: FakeRun) -> None:
        for number in range(40):
            fake.run_episode(number, [Source.POLICY])
        for number in range(40):
            outcome = {"index": number, "success": True, "failure": None}
            fake.publish_text(fake.robot.operator.outcome, json.dumps(outcome))

    record_run(tmp_path / "bag", MESSAGES, run)
    found = Conversion.open(tmp_path / "bag", MESSAGES, None).episodes
    assert [each.label for each in found] == ["success"] * 40
    assert len(looked) <= 4 * 40
