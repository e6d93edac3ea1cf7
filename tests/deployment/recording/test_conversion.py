"""Converted recordings equal the recorded episodes exactly; unusable steps are left out and counted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.writer import Writer

from embodied_rl.datasets.lerobot.collected import list_frames
from embodied_rl.deployment.recording.alignment import EpisodePart
from embodied_rl.deployment.recording.bag_writer import Arrival, BagWriter, RecorderSettings
from embodied_rl.deployment.recording.conversion import Conversion
from embodied_rl.deployment.recording.mcap_reader import RecordingError
from embodied_rl.deployment.recording.recorder import TopicRecorder
from embodied_rl.deployment.recording.recording_folder import write_description
from embodied_rl.deployment.recording.steps import STEPS
from embodied_rl.deployment.recording.topics import RecordedTopic, list_topics
from embodied_rl.deployment.robots.reading import load_robot
from embodied_rl.deployment.transport.in_process import InProcessTransport
from embodied_rl.deployment.transport.messages import Messages
from embodied_rl.interfaces.sim import Source
from tests.deployment.bridge.test_activation import ROBOT as TABLETOP
from tests.deployment.bridge.test_motions import Operator
from tests.support.recorded_robot import FakeRun, Truth, record_run
from tests.support.refusals import refuses
from tests.support.transports import START_NS

ROBOT = load_robot("tabletop")
Play = Callable[..., Any]
POLICY, HUMAN, SAFETY, HOLD = Source.POLICY, Source.HUMAN, Source.SAFETY, Source.HOLD


def check_part(part: EpisodePart, truth: list[Truth], first: int = 0) -> None:
    """Compare a part with the recorded episode."""
    assert [step.number for step in part.steps] == list(range(first, first + len(part.steps)))
    for step, true in zip(part.steps, truth[first:], strict=False):
        assert step.observation.state.dtype == np.float32 and np.array_equal(step.observation.state[0], true.state)
        assert np.array_equal(step.observation.images["front"][0], true.picture)
        assert np.array_equal(step.executed, true.executed) and step.source is true.source
        assert (step.proposed is None) == (true.proposed is None)
        assert step.proposed is None or np.array_equal(step.proposed, true.proposed)
        assert step.policy_version == 3


@pytest.mark.parametrize("observed", [True, False])
def test_parts_equal_the_episodes(play: Play, observed: bool) -> None:
    def run(fake: FakeRun) -> None:
        fake.publish_text(fake.robot.operator.reset, '{"index": 4, "seed": 123}')
        fake.run_episode(4, [POLICY] * 5 + [HUMAN] * 3 + [SAFETY, HOLD])
        fake.publish_text(fake.robot.operator.outcome, '{"index": 4, "success": true, "failure": null}')
        fake.run_episode(5, [POLICY] * 3, words="push")
        fake.publish_text(fake.robot.operator.outcome, '{"index": 5, "success": false, "failure": "dropped"}')

    truth, conversion, (first, second) = play(run, observed)
    check_part(first, truth[0])
    check_part(second, truth[1])
    assert (first.label, first.ends, first.episode.seed, len(first.steps)) == ("success", True, 123, 10)
    assert (second.label, second.episode.instruction, len(second.steps)) == ("failure", "push", 3)
    assert conversion.list_lines() == ["13 of 13 control steps kept: 1 by hold, 3 by human, 8 by policy, 1 by safety"]


def test_in_lockstep_the_later_of_two_messages_with_one_time_is_used(play: Play) -> None:
    def run(fake: FakeRun) -> None:
        fake.bench.pass_time = lambda seconds: None  # pyright: ignore[reportAttributeAccessIssue]
        fake.publish_observation()  # as in a reset; the clock stands still
        fake.run_episode(0, [POLICY])
        fake.publish_observation()

    truth, _, parts = play(run)
    check_part(parts[0], truth[0])


@pytest.mark.parametrize(
    ("gap", "reason"),
    [
        ({"lost": [4, 5]}, "left out: steps that were not recorded (2)"),
        ({"blind": [4, 5]}, "left out: steps without a message of /camera/front/image_raw (2)"),
    ],
)
def test_episodes_are_split_at_gaps(play: Play, gap: dict[str, list[int]], reason: str) -> None:
    def run(fake: FakeRun) -> None:
        fake.run_episode(0, [POLICY] * 9, **gap)
        fake.publish_text(fake.robot.operator.label, "success")

    truth, conversion, (first, second) = play(run)
    check_part(first, truth[0])
    check_part(second, truth[0], first=6)
    assert (len(first.steps), first.ends, first.label) == (4, False, "")
    assert (len(second.steps), second.ends, second.label) == (3, True, "success")
    assert reason in conversion.list_lines()


def test_without_observed_times_old_messages_are_stale(play: Play) -> None:
    run = lambda fake: fake.run_episode(0, [POLICY] * 12, blind=range(3, 12))  # noqa: E731
    truth, conversion, (part,) = play(run, observed=False)
    check_part(EpisodePart(part.episode, part.steps[:3], False), truth[0])
    assert len(part.steps) == 6  # 0.25 s are 3 more steps
    assert conversion.omissions == {"steps with a stale message of /camera/front/image_raw": 6}


@pytest.mark.parametrize("repeats", [True, False])
def test_repeated_content_is_stale_unless_allowed(play: Play, repeats: bool) -> None:
    topics = {short: replace(topic, may_repeat=repeats) for short, topic in ROBOT.topics.items()}

    def run(fake: FakeRun) -> None:
        state = fake.random.bit_generator.state
        publish = fake.publish_observation

        def repeat(left_out: Any = ()) -> Any:
            fake.random.bit_generator.state = state
            return publish(left_out)

        fake.publish_observation = repeat  # pyright: ignore[reportAttributeAccessIssue]
        fake.run_episode(0, [POLICY] * 9)

    _, conversion, parts = play(run, robot=replace(ROBOT, topics=topics))
    assert conversion.kept.total() == (9 if repeats else 2)  # 0.1 s
    assert len(parts) == 1


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"executed": None}, "steps without an executed action (3)"),
        ({"executed": (0.0, float("nan"), 0.0, 0.0)}, "steps without an executed action (3)"),
        ({"executed": (1e39, 0.0, 0.0, 0.0)}, "steps without an executed action (3)"),  # beyond float32
        ({"episode": -1}, "steps outside of an episode (3)"),
        ({"observed": {"/joint_states": 5}}, "steps without a message of /tool_pose (3)"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_unusable_steps_are_left_out(play: Play, changed: dict[str, Any], reason: str) -> None:
    def run(fake: FakeRun) -> None:
        fake.run_episode(0, [POLICY] * 2)
        fake.run_episode(1, [POLICY] * 3, **changed)

    _, conversion, parts = play(run)
    assert [part.episode.number for part in parts] == [0] and conversion.kept.total() == 2
    assert f"left out: {reason}" in conversion.list_lines()


def test_without_requests_labels_separate_episodes(play: Play) -> None:
    def run(fake: FakeRun) -> None:
        drives: dict[str, Any] = {"episode": -1}
        rests = drives | {"mode": "hold"}
        label = fake.robot.operator.label
        fake.run_episode(-1, [HOLD] * 2, **rests)  # before the robot is driven
        fake.run_episode(-1, [POLICY] * 3, first=2, **drives)
        fake.run_episode(-1, [HOLD] * 2, first=5, **rests)  # the policy waited, or the robot held
        fake.publish_text(label, "failure")
        fake.run_episode(-1, [HOLD] * 4, first=7, **rests)  # the scene is set up
        fake.run_episode(-1, [HUMAN] * 2, first=11, **drives)
        fake.publish_text(label, "failure")
        fake.publish_text(label, "success")  # a correction
        fake.run_episode(-1, [POLICY], first=0, **drives)  # the bridge was restarted

    _, conversion, parts = play(run)
    assert [(len(part.steps), part.label, part.steps[0].number) for part in parts] == [
        (5, "failure", 0), (2, "success", 0), (1, "", 0),
    ]  # fmt: skip
    assert [part.episode.index for part in parts] == [0, 1, 2]
    assert "3 by policy" not in conversion.list_lines()[0] and "4 by policy" in conversion.list_lines()[0]


@pytest.mark.parametrize(("aborted", "kept"), [(False, [1]), (True, [0, 1])])
def test_aborted_episodes_are_left_out_by_default(play: Play, aborted: bool, kept: list[int]) -> None:
    def run(fake: FakeRun) -> None:
        fake.publish_text(fake.robot.operator.label, "success")  # latched, from an earlier recording
        fake.run_episode(0, [POLICY] * 2)
        fake.publish_text(fake.robot.operator.label, "abort")
        fake.run_episode(1, [POLICY] * 2)

    _, conversion, parts = play(run, aborted=aborted)
    assert [part.episode.number for part in parts] == kept and all(part.label == "" for part in parts)
    assert conversion.omissions["labels before the first episode"] == 1
    assert conversion.omissions["episodes that the operator aborted"] == (0 if aborted else 1)


def test_the_operators_label_has_priority(play: Play) -> None:
    def run(fake: FakeRun) -> None:
        fake.run_episode(0, [POLICY] * 2)
        fake.publish_text(fake.robot.operator.label, "failure")
        fake.publish_text(fake.robot.operator.outcome, '{"index": 0, "success": true}')

    assert play(run)[2][0].label == "failure"


def test_steps_after_the_end_are_left_out(play: Play) -> None:
    def run(fake: FakeRun) -> None:
        outcome = '{"index": 0, "success": true, "failure": ""}'

        def end_before_step(topic: str, text: str, publish: Any = fake.publish_text) -> None:
            if topic == STEPS and '"step": 3' in text:
                publish(fake.robot.operator.outcome, outcome)
            publish(topic, text)

        fake.publish_text = end_before_step  # pyright: ignore[reportAttributeAccessIssue]
        fake.run_episode(0, [POLICY] * 7)

    truth, conversion, (part,) = play(run)
    check_part(part, truth[0])
    assert (len(part.steps), part.label, part.ends) == (4, "success", True)
    assert conversion.omissions["steps after an episode's end"] == 3


def test_invalid_messages_are_counted(play: Play) -> None:
    texts = ["", "[]", "{", '{"time_ns": true}', '{"time_ns": 1, "episode": 0, "step": 0, "source": "me"}', "1" * 5000]

    def run(fake: FakeRun) -> None:
        for text in texts:
            fake.publish_text(STEPS, text)
        fake.publish_text(fake.robot.operator.outcome, '{"index": 0, "success": 1}')
        fake.publish_text(fake.robot.operator.outcome, '{"index": 9, "success": true}')
        fake.publish_text(fake.robot.operator.label, "great")
        fake.run_episode(0, [POLICY] * 2)

    _, conversion, parts = play(run)
    assert len(parts) == 1
    said = {what: many for what, many in conversion.omissions.items() if what.startswith("invalid")}
    assert sum(said.values()) == len(texts) + 2
    assert any("source='me'" in what for what in said)
    assert any("'great'" in what for what in said)
    assert conversion.omissions["outcomes of episodes that were not recorded"] == 1


@pytest.mark.parametrize("late", [False, True])
def test_the_request_of_a_seed_may_be_recorded_after_the_first_step(play: Play, late: bool) -> None:
    def run(fake: FakeRun) -> None:
        reset, outcome = fake.robot.operator.reset, fake.robot.operator.outcome
        for number, seed in ((4, 123), (5, 124)):
            fake.run_episode(number, [POLICY] * late)
            fake.publish_text(reset, f'{{"index": {number}, "seed": {seed}}}')
            fake.run_episode(number, [POLICY] * 2, first=1)
        fake.run_episode(6, [POLICY] * 2)  # not requested
        fake.publish_text(outcome, '{"index": 6, "success": true, "failure": null}')
        fake.publish_text(reset, '{"index": 6, "seed": 7}')  # for another episode, after its end
        fake.run_episode(8, [POLICY] * 2)
        fake.publish_text(outcome, '{"index": 8, "success": true, "failure": null}')
        fake.bench.pass_time(-1.0)
        fake.publish_text(reset, '{"index": 8, "seed": 125}')  # published before its end, recorded after it
        fake.bench.pass_time(1.0)

    assert [part.episode.seed for part in play(run)[2]] == [123, 124, 2, 125]


def test_requests_may_be_recorded_after_all_episodes(play: Play) -> None:
    """As by a recorder that was held up, and then receives one topic after the other."""

    def run(fake: FakeRun) -> None:
        reset, outcome = fake.robot.operator.reset, fake.robot.operator.outcome
        numbers = (0, 1, 2)
        for number in numbers:
            fake.run_episode(number, [POLICY] * 2)
        for number in numbers:  # published at 1, 2 and 3 s
            fake.bench.pass_time(1.0)
            fake.publish_text(outcome, f'{{"index": {number}, "success": true, "failure": null}}')
        fake.bench.pass_time(-3.5)
        for position, number in enumerate(numbers):  # at 0.5, 1.5 and 2.5 s
            fake.bench.pass_time(1.0)
            fake.publish_text(reset, f'{{"index": {number}, "seed": {100 + position}}}')
        fake.bench.pass_time(1.0)

    assert [part.episode.seed for part in play(run)[2]] == [100, 101, 102]


@pytest.mark.parametrize("topic", [STEPS, *(getattr(ROBOT.operator, key) for key in ("reset", "outcome", "label"))])
def test_messages_of_another_type_are_counted(tmp_path: Path, messages: Messages, topic: str) -> None:
    record_run(tmp_path / "bag", messages, lambda fake: fake.run_episode(0, [POLICY] * 2))
    kind = "std_msgs/msg/Float64MultiArray"
    bag = BagWriter(tmp_path / "other", [RecordedTopic(topic, kind)], messages, RecorderSettings())
    bag.write(Arrival(0, messages.encode(kind, messages.make(kind, data=[1.0, 2.0])), START_NS, START_NS))
    bag.finish({})
    (file,) = (tmp_path / "other").glob("*.mcap")
    file.rename(tmp_path / "bag" / "other_9.mcap")
    conversion = Conversion.open(tmp_path / "bag", messages, None)
    (part,) = conversion.read_parts()
    assert len(part.steps) == 2
    said = f"invalid: {topic} was recorded as {kind}, not as std_msgs/msg/String"
    assert conversion.omissions[said] == 1


def test_an_unknown_type_is_refused_with_its_file(tmp_path: Path, messages: Messages) -> None:
    record_run(tmp_path / "bag", messages, lambda fake: fake.run_episode(0, [POLICY]))
    file = tmp_path / "bag" / "other_9.mcap"
    writer = Writer(str(file))
    writer.start()
    channel = writer.register_channel(STEPS, "cdr", writer.register_schema("std_msgs/msg/Strung", "ros2msg", b""))
    writer.add_message(channel, START_NS, b"", START_NS)
    writer.finish()
    with refuses("message-type-unknown", file, "std_msgs/msg/Strung"):
        Conversion.open(tmp_path / "bag", messages, None)


def test_missing_episodes_and_descriptions_are_refused(tmp_path: Path, messages: Messages) -> None:
    record_run(tmp_path / "bag", messages, lambda fake: fake.publish_observation())
    with refuses("recording-without-episodes", STEPS, kind=RecordingError):
        Conversion.open(tmp_path / "bag", messages, None)
    (tmp_path / "bag" / "description.yaml").unlink()
    with refuses("robot-missing", "robot="):
        Conversion.open(tmp_path / "bag", messages, None)


def test_actions_of_another_robot_are_refused(play: Play) -> None:
    with refuses("recording-of-another-robot", 2, "tabletop has 4", "move_x", kind=RecordingError):
        play(lambda fake: fake.run_episode(0, [POLICY], executed=(1.0, 2.0)))


# an operator's labels


@contextmanager
def record_operator(folder: Path, messages: Messages, operator: Operator) -> Iterator[Callable[[], None]]:
    """Record a bridge; yield a function that writes what was published."""
    listener = InProcessTransport(operator.bench.bus, "recorder")
    recorder = TopicRecorder(listener, list_topics(TABLETOP), BagWriter(folder, list_topics(TABLETOP), messages))

    def write() -> None:
        listener.spin_once()
        while recorder.write_waiting():
            pass

    yield write
    recorder.finish()
    write_description(TABLETOP, folder)


@pytest.mark.thorough
def test_each_run_that_a_button_labels_is_an_episode(tmp_path: Path, messages: Messages) -> None:
    operator, labels = Operator(), ("success", "failure", "abort")
    with record_operator(tmp_path / "bag", messages, operator) as write:
        for label in labels:
            operator.press("run")
            for pressed in (None, label, None):
                if pressed is not None:
                    operator.press(pressed)
                operator.bench.run(0.4)
                write()
    parts = list(Conversion.open(tmp_path / "bag", messages, None, aborted=True).read_parts())
    assert tuple(part.episode.label for part in parts) == labels
    rewards = [[frame["next.reward"] for frame in list_frames(part)] for part in parts]
    assert [(sum(each), each[-1]) for each in rewards] == [(1, 1), (0, 0), (0, 0)]
    assert all(len(part.steps) < 15 for part in parts), "steps after the label belong to no episode"


@pytest.mark.thorough
def test_demonstrations_are_recorded_without_a_policy(tmp_path: Path, messages: Messages) -> None:
    operator = Operator(policy=None)
    assert operator.status["mode"] == "hold" and not operator.status["said"]
    with record_operator(tmp_path / "bag", messages, operator) as write:
        for button in ("success", "failure"):
            for _ in range(20):
                operator.move(0.0, 0.6)
                write()
            operator.press(button)
            operator.bench.run(0.8)
            write()
    parts = list(Conversion.open(tmp_path / "bag", messages, None).read_parts())
    assert [part.label for part in parts] == ["success", "failure"]
    for part in parts:
        driven = [step for step in part.steps if step.source == Source.HUMAN]
        assert len(driven) > 8 and max(float(step.executed[0]) for step in driven) > 0.01


def test_a_label_ends_a_requested_episode(play: Play) -> None:
    def run(fake: FakeRun) -> None:
        rests: dict[str, Any] = {"mode": "hold"}
        fake.run_episode(4, [POLICY] * 3)
        fake.run_episode(4, [HOLD], first=3, label="failure", **rests)
        fake.run_episode(4, [HOLD] * 2, first=4, **rests)
        fake.run_episode(4, [HOLD], first=6, label="success", **rests)  # a correction
        fake.run_episode(4, [POLICY] * 2, first=7)  # another try in the same scene
        fake.run_episode(4, [HOLD], first=9, label="failure", **rests)

    _, conversion, parts = play(run)
    assert [(len(part.steps), part.label) for part in parts] == [(4, "success"), (3, "failure")]
    assert conversion.omissions["steps after an episode's end"] == 3


@pytest.mark.parametrize(("number", "steps"), [(4, 4), (-1, 3)])
def test_a_label_may_be_on_the_topic_and_in_a_step(play: Play, number: int, steps: int) -> None:
    def run(fake: FakeRun) -> None:
        fake.run_episode(number, [POLICY] * 3)
        fake.publish_text(fake.robot.operator.label, "success")
        fake.run_episode(number, [HOLD], first=3, label="success", mode="hold")

    _, _, (part,) = play(run)
    assert (part.label, len(part.steps)) == ("success", steps)
