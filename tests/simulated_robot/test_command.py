"""`embodied-rl robot`: what it says and refuses, robots and requests that do not fit, and an episode elsewhere."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from embodied_rl.cli.main import main
from embodied_rl.commands import robot as robot_command
from embodied_rl.deployment.robots.description import CameraEntry, RobotDescription, StateEntry, Term
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.schema import FaultsNode
from embodied_rl.simulated_robot import running
from embodied_rl.simulated_robot.checks import check_fit
from embodied_rl.simulated_robot.requests import LONGEST, make_printable, read_episode, read_faults
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from embodied_rl_sims.tabletop.servo import TabletopServo
from tests.support.ended import gone, wait_for
from tests.support.ready_line import start_until_ready
from tests.support.tabletop_robot import Bench, Peer, describe_tabletop
from tests.support.transports import borrow_domain

SHOWN = "/camera/front/image_raw"
READY = r"The robot tabletop is simulated in .*, over dds, domain (\d+); Ctrl-C ends it\."


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A DDS domain on the loopback interface, which the processes that a test starts use, too."""
    with borrow_domain() as domain:
        monkeypatch.setenv("ROS_DOMAIN_ID", str(domain))
        monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
        yield domain


def refuse(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run the command, which must end with a message."""
    assert main(["robot", *words]) != 0
    output = capsys.readouterr()
    assert "Traceback" not in output.err
    return output.err + output.out


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["robot=tabeltop"], "robot=tabeltop is not a known robot or a file. Did you mean 'tabletop'?"),
        (["sim.image_size=32"], "robot=tabletop does not match the simulator: its cameras are"),
        (["sim.state_noise=0.1"], "belong to the simulator alone"),
        (["task=juggle"], "task: unknown task 'juggle'"),
        (["split=test"], "split: unknown split 'test'"),
        (["faults.states=melted"], "faults.states"),
        (["faults.camera=frozen"], "Did you mean 'faults.cameras'?"),
        (["faults.share=2"], "faults.share must be at most 1.0, not 2"),
        (["lockstep=true", "faults.command_delay=0.1"], "faults.command_delay is for real time"),
        (["film=film.gif"], "film=film.gif must end in .mp4"),
        (["timeout=0.001"], "timeout must be at least 0.008"),
        (["transport=zenoh"], "transport"),
    ],
)
def test_what_cannot_be_is_refused_in_words(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    assert message in refuse(capsys, *words)


def test_a_simulator_that_is_no_robot_is_refused_in_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from embodied_rl_sims.tabletop import Tabletop

    monkeypatch.setattr(Tabletop, "servo", None)
    assert "sim=tabletop cannot be controlled as a robot: its class has no `servo`" in refuse(capsys)


def test_a_robot_without_a_simulation_is_refused_in_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = Path("configs/robot/tabletop.yaml").read_text().replace("name: tabletop", "name: dancer")
    path = tmp_path / "dancer.yaml"
    path.write_text(text.replace("control_hz: 12.5", "control_hz: 25"))
    message = refuse(capsys, f"robot={path}")
    assert "robot=dancer does not match the simulator: its control_hz are 25.0, those of the simulator 12.5" in message


def test_a_missing_extra_is_named_with_its_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = metadata.version

    def find(name: str) -> str:
        if name == "cyclonedds":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr("embodied_rl.deployment.transport.extras.metadata.version", find)
    assert "pip install embodied-rl-robot" in refuse(capsys)


def test_ros_security_is_refused_in_words(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_SECURITY_ENABLE", "true")
    assert "[ros-security-unsupported]" in refuse(capsys)


def test_a_film_that_cannot_be_written_is_refused_before_it_is_taken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(robot_command, "run_robot", lambda _: pytest.fail("the robot was started"))
    (tmp_path / "taken").touch()
    (tmp_path / "folder.mp4").mkdir()
    for film in (tmp_path / "taken" / "film.mp4", tmp_path / "folder.mp4"):
        said = refuse(capsys, f"film={film}")
        assert "Cannot write" in said and "Set film to" in said


def test_the_command_does_not_start_a_second_robot(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = Bus(time.time_ns)
    monkeypatch.setattr(running, "ALONE_S", 0.05)
    monkeypatch.setattr(running, "open_transport", lambda *_: InProcessTransport(bus, "simulated_robot"))
    monkeypatch.setattr(running, "SimulatedRobot", None)  # it is not built
    with InProcessTransport(bus, "simulated_robot") as other:
        other.create_publisher("/joint_states", "sensor_msgs/msg/JointState", "state")
        assert "/joint_states: /simulated_robot publishes it already" in refuse(capsys)


def test_a_dry_run_opens_nothing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embodied_rl.simulated_robot.running.open_transport", None)
    assert main(["robot", "--dry-run"]) == 0
    assert "tabletop: 5 topics, 12.5 actions a second" in capsys.readouterr().out


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_its_domain_and_leaves_at_a_signal(domain: int, number: signal.Signals) -> None:
    with start_until_ready(["robot", "robot=tabletop"], READY) as (pid, said):
        assert f"domain {domain};" in said and "in real time, 125 steps a second" in said
        os.kill(pid, number)
        wait_for(lambda: gone(pid))


def newest(peer: Peer, topic: str) -> int:
    """The newest stamp on a topic, in nanoseconds; -1 before the first."""
    stamps = [each.clock if topic == "/clock" else each.header.stamp for each in peer.of(topic)]
    return max((stamp.sec * 10**9 + stamp.nanosec for stamp in stamps), default=-1)


@pytest.mark.thorough
@pytest.mark.process
def test_an_episode_in_lockstep_with_a_robot_in_another_process(domain: int, tmp_path: Path) -> None:
    film = tmp_path / "films" / "robot.mp4"
    words = ["robot", "robot=tabletop", "lockstep=true", "sim.horizon=5", "episodes=1", f"film={film}"]
    environment = RosEnvironment(domain=domain, range="LOCALHOST")
    with start_until_ready(words, READY) as (pid, _), open_transport("dds", "bridge", environment) as node:
        peer = Peer(node)
        assert node.spin_until(peer.is_matched, 60)
        peer.ask(index=8, task=1, seed=2)
        assert node.spin_until(lambda: any(each["episode"] == 8 for each in peer.texts("/simulation/status")), 60)
        stamps: list[int] = []
        for _ in range(6):  # a robot that waits for its command repeats what it sent
            last = stamps[-1] if stamps else -1
            assert node.spin_until(lambda: min(newest(peer, SHOWN), newest(peer, "/clock")) > last, 60)  # noqa: B023
            stamps.append(newest(peer, "/clock"))
            peer.command([0.1, 0.0, 0.0, 1.0])
        assert np.diff(stamps).tolist() == [80_000_000] * 5
        assert node.spin_until(lambda: bool(peer.texts("/simulation/outcome")), 60)
        outcome = peer.texts("/simulation/outcome")[-1]
        assert (outcome["index"], outcome["steps"], outcome["truncated"]) == (8, 5, True)
        wait_for(lambda: gone(pid))
    opened = imageio_ffmpeg.read_frames(str(film))
    assert next(opened)["fps"] == 12.5
    assert len(list(opened)) >= 6


@pytest.fixture(scope="module")
def robot() -> TabletopServo:
    return TabletopServo(TabletopConfig())


def change(what: RobotDescription, **changes: Any) -> RobotDescription:
    return replace(what, **changes)


def with_topic(what: RobotDescription, key: str, **changes: Any) -> RobotDescription:
    return replace(what, topics={**what.topics, key: replace(what.topics[key], **changes)})


WRONG: dict[str, tuple[Callable[[RobotDescription], RobotDescription], str]] = {
    "rate": (lambda d: change(d, control_hz=10.0), "its control_hz are 10.0, those of the simulator 12.5"),
    "picture": (lambda d: change(d, cameras=(CameraEntry("front", "front", 128, 128),)), "its cameras are"),
    "camera": (lambda d: change(d, cameras=(CameraEntry("wrist", "front", 64, 64),)), "its cameras are"),
    "state": (lambda d: change(d, state=d.state[:-1]), "its state_names are"),
    "action": (lambda d: change(d, actions=(replace(d.actions[0], name="x"), *d.actions[1:])), "its action_names are"),
    "unit": (
        lambda d: change(d, actions=(replace(d.actions[0], action_low=-30.0), *d.actions[1:])),
        "its action_low are (-30.0",
    ),
    "joint": (
        lambda d: change(
            d, state=(*d.state[:3], StateEntry("gripper_width", "m", (Term("joints", "position[left]"),)), *d.state[4:])
        ),
        "reads the joint left, which the simulated robot does not have; it has joint1",
    ),
    "pose": (lambda d: with_topic(d, "tool", name="/wrist_pose"), "a simulated robot does not publish /wrist_pose"),
    "type": (
        lambda d: with_topic(d, "front", type_name="sensor_msgs/msg/CompressedImage"),
        "does not publish /camera/front/image_raw (sensor_msgs/msg/CompressedImage)",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_robot_is_refused_in_words(robot: TabletopServo, what: str) -> None:
    changed, words = WRONG[what]
    with pytest.raises(UserError) as caught:
        check_fit(changed(describe_tabletop()), robot)
    assert words in str(caught.value) and "robot=tabletop" in str(caught.value)


def test_commands_of_another_kind_are_obeyed(make_bench: Callable[..., Bench]) -> None:
    """A forward command in another order, as the description says."""
    command = replace(describe_tabletop().command, order=("gripper", "z", "y", "x"))
    bench = make_bench(lockstep=False, description=describe_tabletop(command=command))
    bench.peer.ask()
    bench.run(0.016)
    bench.run(0.4, [1.0, 0.0, 0.0, 0.1])
    commanded = bench.peer.of("/commanded_pose")
    assert commanded[-1].pose.position.x - commanded[0].pose.position.x == pytest.approx(0.04, abs=1e-3)


SPEC = Tabletop.spec_of(TabletopConfig())
SPLITS = ("train", *SPEC.splits)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
EPISODES = st.dictionaries(st.sampled_from(["index", "task", "seed", "initial_state", "split"]) | st.text(), VALUES)
FAULTS = st.dictionaries(st.sampled_from(list(FaultsNode.__dataclass_fields__)) | st.text(max_size=8), VALUES)
SOUND = st.fixed_dictionaries(
    {"index": st.integers(0, 2**63 - 1), "task": st.integers(0, 6), "seed": st.integers(0, 2**63 - 1)},
    optional={"initial_state": st.none() | st.integers(0, 9), "split": st.sampled_from(SPLITS)},
)


@settings(max_examples=50)
@given(SOUND)
def test_what_is_sound_is_understood(told: dict) -> None:
    episode = read_episode(json.dumps(told), SPEC)
    assert episode == Episode(**{"split": "train", **told})


@settings(max_examples=50)
@given(st.text() | EPISODES.map(json.dumps) | VALUES.map(json.dumps))
@example('{"index": 0, "task": 0, "seed": 0, "split": "\\ud800"}')
@example('{"index": "\\u001b[2J", "task": 0, "seed": 0}')
def test_an_episode_is_understood_or_refused(text: str) -> None:
    try:
        episode = read_episode(text, SPEC)
    except UserError as error:
        assert make_printable(str(error)).isprintable()
        return
    assert len(text) <= LONGEST and 0 <= episode.task < len(SPEC.tasks) and episode.split in SPLITS
    assert all(type(each) is int and 0 <= each < 2**63 for each in (episode.index, episode.task, episode.seed))


@settings(max_examples=50)
@given(st.text() | FAULTS.map(json.dumps) | VALUES.map(json.dumps))
@example('{"delay": 1e999}')
@example('{"clock_jump": NaN}')
def test_faults_are_understood_or_refused(text: str) -> None:
    faults = FaultsNode()
    with suppress(UserError):
        faults = read_faults(text)
    assert 0 <= faults.share <= 1 and 0 <= faults.delay <= 60 and 0 <= faults.restart <= 60
    assert abs(faults.clock_jump) <= 1e6 and 0 <= faults.command_delay <= 60


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – ü", "plain – ü"),
        ("\x1b[2Jx", "\\x1b[2Jx"),
        ("a\nb", "a\\nb"),
        ("\ud800", "\\ud800"),
        ("x" * 400, "x" * 300 + "…"),
    ],
)
def test_what_is_shown_cannot_steer_a_terminal(text: str, shown: str) -> None:
    assert make_printable(text) == shown
