"""Closed-form inverse kinematics against MuJoCo's kinematics, and both against the Franka's published parameters."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from embodied_rl_sims.tabletop import arm, settings

# Craig's parameters a, d, alpha of the Franka Emika Panda's seven joints.
DH = [
    (0, 0.333, 0), (0, 0, -np.pi / 2), (0, 0.316, np.pi / 2), (0.0825, 0, np.pi / 2),
    (-0.0825, 0.384, -np.pi / 2), (0, 0, np.pi / 2), (0.088, 0, np.pi / 2),
]  # fmt: skip


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(Path(arm.__file__).with_name("scene.xml")))


def tool_of(model: mujoco.MjModel, joints: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Position [3] and axes [3, 3] of the tool by MuJoCo."""
    data = mujoco.MjData(model)
    data.qpos[:7] = joints
    mujoco.mj_kinematics(model, data)
    site = model.site("tool").id
    return data.site_xpos[site].copy(), data.site_xmat[site].reshape(3, 3).copy()


def published_tool(joints: np.ndarray) -> np.ndarray:
    """Position [3] of the point between the finger tips from the published parameters."""
    pose = np.eye(4)
    for (a, d, alpha), angle in zip(DH, joints, strict=True):
        c, s, ca, sa = np.cos(angle), np.sin(angle), np.cos(alpha), np.sin(alpha)
        link = [[c, -s, 0, a], [s * ca, c * ca, -sa, -d * sa], [s * sa, c * sa, ca, d * ca], [0, 0, 0, 1]]
        pose = pose @ np.array(link)
    return (pose @ [0, 0, arm.HAND_LENGTH, 1])[:3]


def points_of_the_workspace() -> np.ndarray:
    """The whole box that commands can reach, its corners included."""
    low, high = settings.WORKSPACE_LOW, settings.WORKSPACE_HIGH
    corners = np.array(np.meshgrid(*zip(low, high, strict=True))).reshape(3, -1).T
    return np.concatenate([corners, np.random.default_rng(0).uniform(low, high, (200, 3))])


def test_the_scene_has_a_frankas_proportions(model) -> None:
    low, high = model.jnt_range[:7].T
    for joints in np.random.default_rng(0).uniform(low, high, (50, 7)):
        np.testing.assert_allclose(tool_of(model, joints)[0], published_tool(joints), atol=1e-9)


def test_the_tool_is_where_it_was_asked_to_be(model) -> None:
    points = points_of_the_workspace()
    for point, joints in zip(points, arm.solve_inverse(points), strict=True):
        np.testing.assert_allclose(tool_of(model, joints)[0], point, atol=1e-9)


def test_the_hand_points_down_and_its_fingers_open_along_y(model) -> None:
    for joints in arm.solve_inverse(points_of_the_workspace()):
        axes = tool_of(model, joints)[1]
        np.testing.assert_allclose(axes[:, 2], [0, 0, -1], atol=1e-6)
        np.testing.assert_allclose(np.abs(axes[:, 1]), [0, 1, 0], atol=1e-6)


def test_joints_stay_within_their_limits(model) -> None:
    joints = arm.solve_inverse(points_of_the_workspace())
    low, high = model.jnt_range[:7].T
    assert ((joints > low) & (joints < high)).all()


@pytest.mark.parametrize("point", [(2.0, 0.0, 0.3), (1.0, 1.5, 0.0), (0.5, -3.0, 1.0)])
def test_out_of_reach_the_arm_stretches_towards_the_point(model, point) -> None:
    joints = arm.solve_inverse(np.array([point]))[0]
    assert np.isfinite(joints).all()
    tool = tool_of(model, joints)[0]
    assert np.arctan2(tool[1], tool[0]) == pytest.approx(np.arctan2(point[1], point[0]))
    assert np.linalg.norm(tool - point) < np.linalg.norm(np.array([0.4, 0, 0.2]) - point)
    elbow = model.body("link4").id
    data = mujoco.MjData(model)
    data.qpos[:7] = joints
    mujoco.mj_kinematics(model, data)
    shoulder, wrist = data.xpos[model.body("link2").id], data.xpos[model.body("link5").id]
    bent = np.linalg.norm(data.xpos[elbow] - shoulder) + np.linalg.norm(data.xpos[elbow] - wrist)
    assert np.linalg.norm(wrist - shoulder) == pytest.approx(bent, rel=2e-3)


def test_rows_do_not_know_of_each_other() -> None:
    points = points_of_the_workspace()
    together = arm.solve_inverse(points)
    assert all(
        np.array_equal(arm.solve_inverse(point[None])[0], row) for point, row in zip(points, together, strict=True)
    )
