"""In real time the robot moves as commanded, and stops by itself: without commands, and at an emergency stop."""

from collections.abc import Callable

import numpy as np
import pytest

from embodied_rl.deployment.transport.in_process import InProcessPublisher
from embodied_rl.interfaces.errors import TransportError
from embodied_rl.interfaces.sim import Episode
from embodied_rl.simulated_robot.running import run_in_real_time
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from tests.support.stillness import STILL, StillnessWatch
from tests.support.tabletop_robot import Bench

REST = [0.0, 0.0, 0.0, 1.0]
FAST = [0.3, 0.2, 0.0, 1.0]
PERIOD_NS = 8_000_000


def speeds(bench: Bench) -> np.ndarray:
    """The largest joint speed of each message of joint states, in order."""
    return np.array([np.abs(message.velocity).max() for message in bench.peer.of("/joint_states")])


def place(bench: Bench, topic: str = "/tool_pose") -> np.ndarray:
    position = bench.peer.of(topic)[-1].pose.position
    return np.array([position.x, position.y, position.z])


def outcomes(bench: Bench) -> list[dict]:
    return bench.peer.texts("/simulation/outcome")


@pytest.mark.thorough
@pytest.mark.parametrize("speed", [(0.2, 0.0, 0.0), (-0.1, 0.15, 0.05)])
def test_a_constant_speed_moves_as_far_as_the_simulator_s_steps(live: Bench, speed: tuple[float, ...]) -> None:
    """12 control steps, then rest until the arm, which follows with a time constant of 80 ms, has arrived."""
    simulator = Tabletop(TabletopConfig(), 1)
    begin = simulator.reset([Episode(0, 0, 3)]).state[0, :3]
    action = np.array([*speed, 12.5]) / 12.5
    for step in range(12 + 10):
        chunk = (action if step < 12 else np.array(REST)).astype(np.float32)
        state = simulator.step(chunk[None, None], [None]).observation.state[0]
    assert np.allclose(place(live), begin, atol=1e-5)
    live.run(12 * 0.08, [*speed, 1.0])
    assert np.allclose(place(live, "/commanded_pose") - begin, np.array(speed) * 0.96, atol=1e-5)
    live.run(10 * 0.08, REST)
    assert np.allclose(place(live), state[:3], atol=2e-4)
    assert np.linalg.norm(place(live) - begin) > 0.1


def test_pictures_come_at_the_rate_of_actions_and_states_at_the_servo_s(live: Bench) -> None:
    live.peer.received.clear()
    live.run(1.6)
    heard = {topic: len(live.peer.of(topic)) for topic in ("/joint_states", "/tool_pose", "/commanded_pose", "/clock")}
    assert set(heard.values()) == {200}
    assert len(live.peer.of("/camera/front/image_raw")) == len(live.peer.of("/camera/front/camera_info")) == 20


def test_stamps_are_those_of_the_transport_s_clock(live: Bench) -> None:
    live.peer.received.clear()
    live.run(0.16)
    stamps = [each.header.stamp.sec * 10**9 + each.header.stamp.nanosec for each in live.peer.of("/joint_states")]
    clock = [each.clock.sec * 10**9 + each.clock.nanosec for each in live.peer.of("/clock")]
    assert stamps == clock == [live.time.now_ns - PERIOD_NS * k for k in range(20, 0, -1)]


@pytest.mark.thorough
def test_without_commands_the_robot_stops_within_a_ramp_after_its_timeout(live: Bench) -> None:
    live.run(0.4, FAST)
    assert speeds(live)[-1] > 0.5
    live.peer.received.clear()
    live.run(0.6)
    after = speeds(live)
    assert after[:12].min() > 0.5, "for 100 ms nothing changes"
    assert after[12] < after[11] - 0.1, "then the ramp begins"
    assert after[12:17].min() > STILL, "it is a ramp, no step"
    assert after[32:].max() < STILL, "256 ms after the last command it is still"
    assert live.robot.topics.is_open and "no command for 100 ms" in live.peer.texts("/simulation/status")[-1]["why"]


@pytest.mark.thorough
def test_the_terminal_says_that_commands_ended_and_that_they_come_again(live: Bench) -> None:
    said = ["no command for 100 ms: the robot stops by itself", "commands come again"]
    for expected in (said[:1], [said[0], said[1], said[0]]):
        live.run(1.1, FAST)
        live.run(1.1)
        assert [line for line in live.lines if line in said] == expected
    live.peer.ask(seed=4)
    live.run(1.1, FAST)
    assert [line for line in live.lines if line in said] == expected, "a new episode is no news of commands"


@pytest.mark.thorough
def test_commands_that_stutter_do_not_fill_the_terminal(live: Bench) -> None:
    before = len(live.lines)
    for _ in range(20):
        live.run(0.1, FAST)
        live.run(0.15)
    assert 2 <= len(live.lines) - before <= 6


def test_an_emergency_stop_is_not_taken_for_commands_that_ended(live: Bench) -> None:
    live.run(0.4, FAST)
    live.peer.stop(True)
    live.run(1.2, FAST)
    assert not [line for line in live.lines if "by itself" in line]


def test_it_obeys_again_when_commands_come_again(live: Bench) -> None:
    live.run(0.2, FAST)
    live.run(0.5)
    held = place(live)
    live.run(0.4, FAST)
    assert np.linalg.norm(place(live) - held) > 0.05
    assert live.peer.texts("/simulation/status")[-1]["why"] == ""


def test_an_emergency_stop_begins_in_the_next_step_and_is_a_ramp(live: Bench) -> None:
    live.run(0.4, FAST)
    before = speeds(live)[-1]
    live.peer.received.clear()
    live.peer.stop(True)
    live.run(0.4, FAST)
    after = speeds(live)
    assert after[0] < before - 0.1
    assert STILL < after[3] < before
    assert after[25:].max() < STILL
    assert "refused a command: the emergency stop is pressed (refused so far: 1)" in live.lines


def test_after_a_stop_only_a_command_at_rest_lets_it_move_again(live: Bench) -> None:
    live.run(0.2, FAST)
    live.peer.stop(True)
    live.run(0.4, FAST)
    held = place(live)
    live.peer.stop(False)
    live.run(0.4, FAST)
    assert np.linalg.norm(place(live) - held) < 1e-3, "what was on its way must not move it"
    live.run(0.08, REST)
    live.run(0.3, FAST)
    assert np.linalg.norm(place(live) - held) > 0.05


def test_a_stop_is_not_released_by_another_one_than_who_pressed_it(live: Bench) -> None:
    other = live.peer.node.create_publisher("/estop", "std_msgs/msg/Bool", "latched")
    live.peer.stop(True)
    other.publish(live.peer.node.messages.make("std_msgs/msg/Bool", data=False))
    live.run(0.1, REST)
    held = place(live)
    live.run(0.4, FAST)
    assert np.linalg.norm(place(live) - held) < 1e-3
    live.peer.stop(False)
    live.run(0.08, REST)
    live.run(0.4, FAST)
    assert np.linalg.norm(place(live) - held) > 0.05


def test_a_new_episode_does_not_release_an_emergency_stop(live: Bench) -> None:
    live.peer.stop(True)
    live.run(0.1)
    live.peer.ask(index=1, seed=4)
    live.run(0.1)
    begin = place(live)
    live.run(0.4, FAST)
    assert np.linalg.norm(place(live) - begin) < 1e-3


@pytest.mark.thorough
def test_an_episode_s_time_begins_with_the_first_command_that_moves(live: Bench) -> None:
    live.run(0.5)
    live.run(4.2, REST)
    assert not outcomes(live), "50 control steps take 4 s"
    live.run(3.9, [0.0, 0.01, 0.0, 1.0])
    assert not outcomes(live)
    live.run(0.2)
    assert outcomes(live) == [
        {
            "index": 0,
            "success": False,
            "failure": "time limit: object never lifted",
            "truncated": True,
            "steps": 50,
            "reward": 0.0,
        }
    ]


@pytest.mark.thorough
def test_physics_goes_on_after_the_end(live: Bench) -> None:
    live.run(4.2, [0.0, 0.01, 0.0, 1.0])
    assert outcomes(live)
    held = place(live)
    live.run(0.3, FAST)
    assert np.linalg.norm(place(live) - held) > 0.03
    live.run(0.3, REST)
    assert len(outcomes(live)) == 1


def test_an_operator_succeeds_in_real_time(live: Bench) -> None:
    """Its action is the speed of ten steps of the servo, and it sees the scene before the first of them."""
    live.peer.ask(index=7, task=3, seed=5)
    live.run(0.016)
    operator = live.robot.robot.expert()  # type: ignore[attr-defined]
    for _ in range(50):
        action = operator()[0].astype(np.float64)
        live.run(0.08, [*(action[:3] * 12.5), action[3]])
        if outcomes(live):
            break
    assert outcomes(live)[0]["success"] and outcomes(live)[0]["index"] == 7
    assert live.robot.counts["refused"] == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([0.1, 0.0, 0.0], "/command: 3 numbers came, and the robot takes 4"),
        ([0.1, float("nan"), 0.0, 1.0], "not finite"),
        ([0.0, 0.0, float("inf"), 1.0], "not finite"),
        ([0.0, 0.5, 0.0, 1.0], "move_y=0.5 of a command is beyond its limits, -0.38 … 0.38"),
        ([0.0, 0.0, 0.0, -1.1], "gripper=-1.1 of a command is beyond its limits, -1 … 1"),
    ],
)
def test_a_command_that_cannot_be_is_refused_in_words_and_counts_as_none(
    live: Bench, values: list[float], words: str
) -> None:
    live.run(0.4, FAST)
    live.run(0.6, values)
    assert speeds(live)[-1] < STILL
    status = live.peer.texts("/simulation/status")[-1]
    assert live.robot.counts["refused"] == 75 and status["refused"] > 0
    assert words in status["last_refusal"] and "no command" in status["why"]
    assert any(words in line for line in live.lines) and len(live.lines) < 15


@pytest.mark.thorough
def test_a_publisher_whose_commands_cannot_arrive_is_told_of(live: Bench) -> None:
    """A volatile publisher does not reach a subscription that wants what was said before it came."""
    live.run(0.6)
    before = len(live.lines)
    publisher = live.peer.node.create_publisher("/estop", "std_msgs/msg/Bool", "command")
    publisher.publish(live.peer.node.messages.make("std_msgs/msg/Bool", data=True))
    live.run(2.6)
    (line,) = live.lines[before:]
    assert "/estop" in line and "the publisher offers volatile, the subscription requests transient_local" in line


def test_what_cannot_be_sent_is_counted_and_told_and_the_robot_goes_on(
    live: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = InProcessPublisher.send

    def fail(publisher: InProcessPublisher, raw: bytes) -> None:
        if publisher.topic == "/tool_pose":
            raise TransportError("nobody took it within 100 ms")
        send(publisher, raw)

    monkeypatch.setattr(InProcessPublisher, "send", fail)
    live.run(0.8, FAST)
    assert speeds(live)[-1] > 0.5 and live.peer.texts("/simulation/status")[-1]["unsent"] > 40
    assert live.lines[-1] == "/tool_pose: nobody took it within 100 ms"


def test_stillness_is_measured_from_an_event_and_has_to_last(live: Bench) -> None:
    watch = StillnessWatch()
    live.peer.node.create_subscription("/joint_states", "sensor_msgs/msg/JointState", "state", watch.note)
    assert watch.measure(0) is None
    live.run(0.4, FAST)
    since = live.time.now_ns
    live.run(0.24)
    assert watch.measure(since) is None, "for 0.2 s it must be still"
    live.run(0.4)
    found = watch.measure(since)
    assert found is not None and 0.15 < found < 0.3


# the loop has absolute deadlines


def run_loop(bench: Bench, seconds: float, pauses: Callable[[int], float] = lambda _: 0.0) -> list[float]:
    """Run the loop; the k-th tick takes `pauses(k)` seconds. Return when each tick began."""
    began: list[float] = []
    tick, until = bench.robot.tick, bench.time.seconds() + seconds

    def timed() -> None:
        began.append(bench.time.seconds())
        tick()
        bench.time.pass_s(pauses(len(began)))

    bench.robot.tick = timed  # type: ignore[method-assign]

    def wait(left: float) -> None:
        bench.node.spin_once()
        bench.peer.node.spin_once()
        bench.time.pass_s(left)

    run_in_real_time(bench.robot, lambda: bench.time.seconds() > until, bench.time.seconds, wait)
    return began


@pytest.mark.thorough
def test_deadlines_do_not_drift(live: Bench) -> None:
    first = live.time.seconds()
    began = run_loop(live, 4.0, lambda k: 0.001 * (k % 7))
    assert len(began) == 501
    assert began == pytest.approx([first + 0.008 * k for k in range(501)], abs=1e-6)
    assert live.robot.counts["overruns"] == 0 == live.robot.late_s


def test_a_late_step_is_made_up_for(live: Bench) -> None:
    began = run_loop(live, 1.0, lambda k: 0.1 if k == 50 else 0.0)
    assert len(began) == 126 and live.robot.counts["overruns"] == 0
    late = [began[0] + 0.492] * 12
    assert began[50:62] == pytest.approx(late) and began[62:] == pytest.approx(
        [began[0] + 0.008 * k for k in range(62, 126)]
    )


def test_what_cannot_be_made_up_for_is_said(live: Bench) -> None:
    began = run_loop(live, 2.0, lambda k: 0.5 if k == 50 else 0.0)
    assert 185 < len(began) < 195
    assert live.robot.counts["overruns"] == 1 and live.robot.late_s == pytest.approx(0.492)
    assert live.lines[-1] == "this machine was 0.49 s late; the simulated robot stood still meanwhile"


@pytest.mark.thorough
def test_a_command_that_waits_while_the_machine_is_late_is_not_late(live: Bench) -> None:
    """The robot was away for 200 ms, not its commander: it must not stop."""
    whys: list[str] = []
    tick = live.robot.tick

    def noted() -> None:
        tick()
        whys.append(live.robot._drive.why)
        live.peer.command([0.1, 0.0, 0.0, 1.0])

    live.robot.tick = noted  # type: ignore[method-assign]
    run_loop(live, 1.0, lambda k: 0.2 if k == 50 else 0.0)
    assert len(whys) > 100 and set(whys) == {""}
