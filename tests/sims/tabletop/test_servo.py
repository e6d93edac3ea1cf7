"""The tabletop driven like a robot: what it refuses, and how it brakes."""

import mujoco
import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl.testing.contract import check_servo
from embodied_rl_sims.tabletop import Tabletop, TabletopConfig
from embodied_rl_sims.tabletop.servo import JOINTS, TabletopServo
from embodied_rl_sims.tabletop.settings import WORKSPACE_HIGH
from tests.support.refusals import refuses

SMALL = 8


@pytest.fixture
def robot() -> TabletopServo:
    robot = TabletopServo(TabletopConfig(image_size=SMALL))
    robot.begin(Episode(0, 0, 5))
    return robot


def test_it_keeps_the_contract() -> None:
    config = TabletopConfig(image_size=SMALL, horizon=12)
    check_servo(lambda: TabletopServo(config), lambda num_envs: Tabletop(config, num_envs))


def speed(robot: TabletopServo) -> float:
    return float(np.abs(robot.read().velocity).max())


def test_ten_steps_of_the_servo_at_a_held_command_are_a_control_step(robot: TabletopServo) -> None:
    """At rest the commanded point is the same in both, so that they differ by nothing at all."""
    simulator = Tabletop(TabletopConfig(image_size=SMALL), 1)
    simulator.reset([Episode(0, 0, 5)])
    rest = np.array([0.0, 0.0, 0.0, 1.0])
    for _ in range(5):
        state = simulator.step(rest.astype(np.float32)[None, None], [None]).observation.state[0]
        for _ in range(10):
            robot.servo(rest)
    assert np.abs(robot.read().tool[0] - state[:3]).max() < 1e-6
    assert robot.snapshot()["clock"][0] == 5


@pytest.mark.parametrize("command", [(0.375, 0.0, 0.0), (0.3, 0.3, -0.2), (-0.2, 0.3, 0.2)])
def test_braking_is_a_ramp_from_any_speed_and_stays(robot: TabletopServo, command: tuple[float, ...]) -> None:
    for _ in range(40):
        robot.servo(np.array([*command, 1.0]))
    before = speed(robot)
    found = []
    for _ in range(60):
        robot.brake()
        found.append(speed(robot))
    assert before > 0.5
    assert found[0] > 0.6 * before and found[1] > 0.4 * before
    assert max(found[20:]) < 0.02, "160 ms later it is still"
    assert np.all(np.diff(found[:5]) < 0)
    held = robot.read().tool[0]
    for _ in range(50):
        robot.brake()
    assert np.abs(robot.read().tool[0] - held).max() < 1e-3


def test_braking_keeps_the_gripper(robot: TabletopServo) -> None:
    for _ in range(40):
        robot.servo(np.array([0.1, 0.0, 0.0, -1.0]))
    closed = robot.read().position[-2:].sum()
    for _ in range(40):
        robot.brake()
    assert closed < 0.01 > robot.read().position[-2:].sum()


def test_it_may_be_driven_on_after_braking(robot: TabletopServo) -> None:
    for command in (np.array([0.2, 0.0, 0.0, 1.0]), None, np.array([-0.2, 0.0, 0.0, 1.0]), None):
        before = robot.read().tool[0][0]
        for _ in range(40):
            robot.brake() if command is None else robot.servo(command)
        travelled = robot.read().tool[0][0] - before
        assert abs(travelled) < 0.01 if command is None else travelled * command[0] > 0.2 * 0.03


def test_the_commanded_point_stays_in_the_workspace(robot: TabletopServo) -> None:
    for _ in range(500):
        robot.servo(np.array([0.3, 0.3, 0.3, 1.0]))
    assert np.all(robot.read().commanded[0] <= WORKSPACE_HIGH)
    assert np.allclose(robot.read().tool[0], WORKSPACE_HIGH, atol=2e-3)


def test_readings_are_mujoco_s_and_are_copies(robot: TabletopServo) -> None:
    for _ in range(7):
        robot.servo(np.array([0.1, -0.2, 0.0, 0.0]))
    reading, data = robot.read(), robot._bodies.data[0]
    assert len(reading.position) == len(JOINTS) == robot._bodies.model.nu
    assert np.array_equal(reading.position, data.qpos[:9]) and np.array_equal(reading.velocity, data.qvel[:9])
    assert np.array_equal(reading.tool[0], data.site("tool").xpos)
    matrix = np.zeros(9)
    mujoco.mju_quat2Mat(matrix, np.roll(reading.tool[1], 1))
    assert np.allclose(matrix, data.site("tool").xmat, atol=1e-12)
    kept = reading.position.copy()
    robot.servo(np.array([0.1, -0.2, 0.0, 0.0]))
    assert np.array_equal(reading.position, kept)


def test_the_focal_length_projects_the_tool_to_where_the_camera_shows_it() -> None:
    """A point one metre before the camera, a tenth beside its axis, is that many pixels from the middle."""
    robot = TabletopServo(TabletopConfig(image_size=64))
    ray = robot._camera.lens.reshape(64, 64, 3)[0, 0]
    assert robot.focal["front"] * ray[0] / -ray[2] == pytest.approx(-31.5)


def test_an_episode_that_ended_stays_to_be_seen(robot: TabletopServo) -> None:
    for _ in range(60):
        robot.control_step(np.array([0, 0, 0, 1], np.float32))
    assert robot.outcome is not None and robot.outcome.steps == 50 and robot.outcome.truncated
    assert robot.instruction and robot.take_pictures()["front"].any()
    robot.begin(Episode(1, 2, 9))
    assert robot.outcome is None


@pytest.mark.parametrize(
    ("episode", "code", "named"),
    [
        (Episode(0, 7, 0), "task-unknown", "task=7: there are tasks 0 … 6."),
        (Episode(0, 0, 0, split="test"), "split-unknown", "split='test' is none of train, vision"),
        (Episode(0, 0, 0, initial_state=0), "initial-states-missing", "initial_state=0"),
        (Episode(0, 0, -1), "seed-invalid", "seed=-1"),
    ],
)
def test_an_episode_that_is_not_is_refused_and_the_scene_stays(
    robot: TabletopServo, episode: Episode, code: str, named: str
) -> None:
    before = robot.instruction, robot.read().position
    with refuses(code, named):
        robot.begin(episode)
    assert robot.instruction == before[0] and np.array_equal(robot.read().position, before[1])


@pytest.mark.parametrize("settings", [{"state_noise": 0.01}, {"inference_delay": (0, 2)}])
def test_settings_that_a_robot_has_by_itself_are_refused(settings: dict) -> None:
    with refuses("key-unused"):
        TabletopServo(TabletopConfig(**settings))


def test_goals_one_after_the_other_change_the_instruction() -> None:
    config = TabletopConfig(image_size=SMALL, goals=2, horizon=120)
    robot, simulator = TabletopServo(config), Tabletop(config, 1)
    robot.begin(Episode(0, 2, 3))
    simulator.reset([Episode(0, 2, 3)])
    operator, told = simulator.expert(), [robot.instruction]
    while robot.outcome is None:
        action = operator()
        result = simulator.step(action[:, None], [None])
        robot.control_step(action[0])
        told.append(robot.instruction)
        assert len(result.ended) or told[-1] == result.observation.instruction[0]
    assert robot.outcome.success and len(set(told)) == 2
