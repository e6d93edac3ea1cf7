"""`embodied-rl robot`: what it says, what it refuses in words, how it ends, and an episode with another process."""

import os
import signal
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from embodied_rl.cli.main import main
from embodied_rl.commands import robot as robot_command
from embodied_rl.deployment.transport.environment import RosEnvironment
from embodied_rl.deployment.transport.in_process import Bus, InProcessTransport
from embodied_rl.deployment.transport.opening import open_transport
from embodied_rl.simulated_robot import running
from tests.support.ended import gone, wait_for
from tests.support.ready_line import start_until_ready
from tests.support.tabletop_robot import Peer
from tests.support.transports import borrow_domain

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
    assert "ROS_SECURITY_ENABLE is set" in refuse(capsys)


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
    with InProcessTransport(bus, "other") as other:
        other.create_publisher("/joint_states", "sensor_msgs/msg/JointState", "state")
        assert "/joint_states: /other publishes it already" in refuse(capsys)


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
        for _ in range(6):
            assert node.spin_until(lambda: len(peer.of("/camera/front/image_raw")) > 0 < len(peer.of("/clock")), 60)
            stamps.append(peer.of("/clock")[-1].clock.sec * 10**9 + peer.of("/clock")[-1].clock.nanosec)
            peer.forget(["/camera/front/image_raw", "/clock"])
            peer.command([0.1, 0.0, 0.0, 1.0])
        assert np.diff(stamps).tolist() == [80_000_000] * 5
        assert node.spin_until(lambda: bool(peer.texts("/simulation/outcome")), 60)
        outcome = peer.texts("/simulation/outcome")[-1]
        assert (outcome["index"], outcome["steps"], outcome["truncated"]) == (8, 5, True)
        wait_for(lambda: gone(pid))
    opened = imageio_ffmpeg.read_frames(str(film))
    assert next(opened)["fps"] == 12.5
    assert len(list(opened)) >= 6
