"""Episodes that an operator labels by joystick buttons have these labels in the dataset."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.datasets.robot_recordings import list_frames
from embodied_rl.deployment.recording.bag_writer import BagWriter
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.recording.recorder import TopicRecorder
from embodied_rl.deployment.recording.recording_folder import write_description
from embodied_rl.deployment.recording.topics import list_topics
from embodied_rl.deployment.transport.in_process import InProcessTransport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Source
from tests.deployment.bridge.test_activation import ROBOT
from tests.deployment.bridge.test_motions import Operator
from tests.support.recorded_robot import FakeRun, record_run

POLICY, HOLD = Source.POLICY, Source.HOLD


def record_presses(folder: Path, messages: Messages, buttons: Sequence[str]) -> None:
    """Record a bridge whose operator labels each run of the policy by one of these buttons."""
    operator = Operator()
    listener = InProcessTransport(operator.bench.bus, "recorder")
    recorder = TopicRecorder(listener, list_topics(ROBOT), BagWriter(folder, list_topics(ROBOT), messages))
    for button in buttons:
        operator.press("run")
        for pressed in (None, button, None):
            if pressed is not None:
                operator.press(pressed)
            operator.bench.run(0.4)
            listener.spin_once()
            while recorder.write_waiting():
                pass
    recorder.finish()
    write_description(ROBOT, folder)


def test_each_labelled_run_is_an_episode(tmp_path: Path, messages: Messages) -> None:
    record_presses(tmp_path / "bag", messages, ["success", "failure", "abort"])
    parts = list(Conversion.open(tmp_path / "bag", messages, None, aborted=True).read_parts())
    assert [part.episode.label for part in parts] == ["success", "failure", "abort"]
    rewards = [[frame["next.reward"] for frame in list_frames(part)] for part in parts]
    assert [(sum(each), each[-1]) for each in rewards] == [(1, 1), (0, 0), (0, 0)]
    assert all(len(part.steps) < 15 for part in parts), "steps after the label belong to no episode"


def test_a_label_ends_a_requested_episode(tmp_path: Path, messages: Messages) -> None:
    def run(fake: FakeRun) -> None:
        rests: dict[str, Any] = {"mode": "hold"}
        fake.run_episode(4, [POLICY] * 3)
        fake.run_episode(4, [HOLD], first=3, label="failure", **rests)
        fake.run_episode(4, [HOLD] * 2, first=4, **rests)
        fake.run_episode(4, [HOLD], first=6, label="success", **rests)  # a correction
        fake.run_episode(4, [POLICY] * 2, first=7)  # another try in the same scene
        fake.run_episode(4, [HOLD], first=9, label="failure", **rests)

    record_run(tmp_path / "bag", messages, run)
    conversion = Conversion.open(tmp_path / "bag", messages, None)
    assert [(len(part.steps), part.label) for part in conversion.read_parts()] == [(4, "success"), (3, "failure")]
    assert conversion.omissions["steps after an episode's end"] == 3


@pytest.mark.parametrize(("number", "steps"), [(4, 4), (-1, 3)])
def test_a_label_may_be_on_the_topic_and_in_a_step(tmp_path: Path, messages: Messages, number: int, steps: int) -> None:
    def run(fake: FakeRun) -> None:
        fake.run_episode(number, [POLICY] * 3)
        fake.publish_text(fake.robot.operator.label, "success")
        fake.run_episode(number, [HOLD], first=3, label="success", mode="hold")

    record_run(tmp_path / "bag", messages, run)
    (part,) = Conversion.open(tmp_path / "bag", messages, None).read_parts()
    assert (part.label, len(part.steps)) == ("success", steps)


def test_demonstrations_are_recorded_without_a_policy(tmp_path: Path, messages: Messages) -> None:
    operator = Operator(policy=None)
    assert operator.status["mode"] == "hold" and not operator.status["said"]
    listener = InProcessTransport(operator.bench.bus, "recorder")
    recorder = TopicRecorder(listener, list_topics(ROBOT), BagWriter(tmp_path / "bag", list_topics(ROBOT), messages))
    for button in ("success", "failure"):
        for _ in range(20):
            operator.move(0.0, 0.6)
            listener.spin_once()
        operator.press(button)
        operator.bench.run(0.8)
        listener.spin_once()
        while recorder.write_waiting():
            pass
    recorder.finish()
    write_description(ROBOT, tmp_path / "bag")
    parts = list(Conversion.open(tmp_path / "bag", messages, None).read_parts())
    assert [part.label for part in parts] == ["success", "failure"]
    for part in parts:
        driven = [step for step in part.steps if step.source == Source.HUMAN]
        assert len(driven) > 8 and max(float(step.executed[0]) for step in driven) > 0.01
