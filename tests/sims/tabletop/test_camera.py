"""The ray camera against intersections worked out by hand, and against casting every ray; videos by OpenGL."""

from dataclasses import replace

import mujoco
import numpy as np
import pytest

from embodied_rl.interfaces.sim import Episode
from embodied_rl.testing.simulator_contract import assert_same
from embodied_rl_sims.tabletop import video
from embodied_rl_sims.tabletop.camera import RayCamera
from embodied_rl_sims.tabletop.layout import COLOURS, Look

HEIGHT, WIDTH = 40, 60
EYE, FOVY = np.array([1.0, 0.2, 0.8]), 40.0
RIGHT, UP = np.array([0.0, 1.0, 0.0]), np.array([-0.8, 0.0, 0.6])
BALL, RADIUS = np.array([0.45, 0.1, 0.12]), 0.09
BOX, HALF, TURN = np.array([0.4, -0.12, 0.05]), np.array([0.08, 0.05, 0.05]), 0.6
SCENE = f"""<mujoco><worldbody>
  <camera name="front" pos="1 .2 .8" xyaxes="0 1 0 -.8 0 .6" fovy="{FOVY}"/>
  <geom type="plane" size="1 1 .1" group="3"/>
  <geom name="ball" type="sphere" size="{RADIUS}" pos="{" ".join(map(str, BALL))}"/>
  <geom name="box" type="box" size="{" ".join(map(str, HALF))}" pos="{" ".join(map(str, BOX))}"
        euler="0 0 {np.rad2deg(TURN)}"/>
</worldbody></mujoco>"""
PLAIN = Look(
    table=np.array([0.5, 0.4, 0.3]),
    pattern="plain",
    strength=0.0,
    scale=0.1,
    light=np.array([0.6, 0.0, 0.8]),
    ambient=0.3,
    camera_shift=np.zeros(3),
    camera_turn=np.zeros(3),
    colours=COLOURS,
)
SHADES = np.array([[0, 0, 0], [250, 20, 40], [30, 240, 60]], np.float32)


def scene(xml: str = SCENE) -> tuple[mujoco.MjModel, mujoco.MjData]:
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    return model, data


def pinhole_rays() -> np.ndarray:
    """[pixels, 3] unit vectors through the middles of the pixels, row by row from the top left."""
    rows, columns = np.mgrid[0:HEIGHT, 0:WIDTH].reshape(2, -1)
    focal = HEIGHT / 2 / np.tan(np.deg2rad(FOVY) / 2)
    across, down = columns + 0.5 - WIDTH / 2, rows + 0.5 - HEIGHT / 2
    rays = across[:, None] * RIGHT - down[:, None] * UP - focal * np.cross(RIGHT, UP)
    return rays / np.linalg.norm(rays, axis=1, keepdims=True)


def meet_ball(rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distance along each ray [pixels] (infinite for a miss), and normal [pixels, 3]."""
    towards = rays @ (BALL - EYE)
    inside = towards**2 - (BALL - EYE) @ (BALL - EYE) + RADIUS**2
    distance = np.where(inside >= 0, towards - np.sqrt(np.maximum(inside, 0)), np.inf)
    reached = EYE + np.where(np.isfinite(distance), distance, 0)[:, None] * rays
    return distance, (reached - BALL) / RADIUS


def meet_box(rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The same for the turned box, by slabs in its own frame."""
    axes = np.array([[np.cos(TURN), -np.sin(TURN), 0], [np.sin(TURN), np.cos(TURN), 0], [0, 0, 1]])
    start, way = (EYE - BOX) @ axes, rays @ axes
    near, far = np.sort(((-HALF - start) / way, (HALF - start) / way), axis=0)
    entered, left = near.max(axis=1), far.min(axis=1)
    distance = np.where((entered <= left) & (entered > 0), entered, np.inf)
    face = np.argmax(near, axis=1)
    normal = np.zeros_like(rays)
    normal[np.arange(len(rays)), face] = -np.sign(way[np.arange(len(rays)), face])
    return distance, normal @ axes.T


def by_hand(look: Look) -> tuple[np.ndarray, np.ndarray]:
    """Which geometry each pixel shows [pixels] (0 for the table or the sky), and its colour [pixels, 3] in 0…255."""
    rays = pinhole_rays()
    (ball, ball_normal), (box, box_normal) = meet_ball(rays), meet_box(rays)
    shown = np.where(np.isfinite(np.minimum(ball, box)), np.where(ball < box, 1, 2), 0)
    normal = np.where((shown == 1)[:, None], ball_normal, box_normal)

    def lit(normal: np.ndarray) -> np.ndarray:
        return look.ambient + (1 - look.ambient) * np.maximum(normal @ look.light, 0)

    point = EYE - EYE[2] / rays[:, 2:] * rays
    on_table = (rays[:, 2] < 0) & (np.abs(point[:, 1]) < 0.45) & (point[:, 0] > -0.2) & (point[:, 0] < 0.8)
    table = np.where(
        on_table[:, None], 255 * look.table * lit(np.array([0.0, 0.0, 1.0])), 255 * np.array([0.30, 0.32, 0.36])
    )
    return shown, np.where((shown > 0)[:, None], SHADES[shown] * lit(normal)[:, None], table)


def test_a_picture_is_what_geometry_says() -> None:
    model, data = scene()
    look = replace(PLAIN, light=np.array([0.48, 0.36, 0.8]))
    picture = RayCamera(model, "front", HEIGHT, WIDTH).view(look).render(data, SHADES)
    shown, colour = by_hand(look)
    assert picture.shape == (HEIGHT, WIDTH, 3) and picture.dtype == np.uint8
    assert (shown == 1).sum() > 50 and (shown == 2).sum() > 50
    np.testing.assert_allclose(picture.reshape(-1, 3), colour, atol=1.001)


def test_a_pattern_varies_the_table_alone() -> None:
    """Of a checkerboard the table has two tones, where the floor of its coordinates says so."""
    model, data = scene()
    look = replace(PLAIN, pattern="checker", strength=0.2)
    picture = RayCamera(model, "front", HEIGHT, WIDTH).view(look).render(data, SHADES).reshape(-1, 3)
    plain, _ = by_hand(PLAIN)
    rays = pinhole_rays()
    point = EYE - EYE[2] / rays[:, 2:] * rays
    on_table = (
        (plain == 0) & (rays[:, 2] < 0) & (np.abs(point[:, 1]) < 0.45) & (point[:, 0] > -0.2) & (point[:, 0] < 0.8)
    )
    even = np.floor(point[:, :2] / look.scale).sum(axis=1) % 2 == 0
    shade = 0.3 + 0.7 * 0.8
    for mask, tone in ((on_table & even, 1.2), (on_table & ~even, 0.8)):
        assert mask.sum() > 100
        np.testing.assert_allclose(
            picture[mask], np.broadcast_to(255 * look.table * tone * shade, (mask.sum(), 3)), atol=1.001
        )


def test_a_moved_camera_sees_from_where_it_is() -> None:
    """A shift of the camera is a shift of the world the other way."""
    shift = np.array([0.02, -0.03, 0.0])
    model, data = scene()
    moved = RayCamera(model, "front", HEIGHT, WIDTH).view(replace(PLAIN, camera_shift=shift)).render(data, SHADES)
    other, elsewhere = scene()
    elsewhere.geom_xpos[1:] -= shift
    still = RayCamera(other, "front", HEIGHT, WIDTH).view(PLAIN).render(elsewhere, SHADES)
    shown = RayCamera(model, "front", HEIGHT, WIDTH)
    pixels, _, _ = shown.cast(data, shown.view(replace(PLAIN, camera_shift=shift)).pose)
    np.testing.assert_allclose(moved.reshape(-1, 3)[pixels], still.reshape(-1, 3)[pixels].astype(float), atol=1.001)


@pytest.mark.parametrize("turn", [0.0, 0.02])
def test_no_ray_is_left_out_that_meets_something(turn) -> None:
    """Spheres all around the camera, some behind it, some around it: casting every ray finds nothing more."""
    balls = "".join(f'<geom name="g{i}" type="sphere" size=".1" pos="0 0 {i}"/>' for i in range(12))
    eye = f'<camera name="front" pos="1 .2 .8" xyaxes="0 1 0 -.8 0 .6" fovy="{FOVY}"/>'
    model, data = scene(f"<mujoco><worldbody>{eye}{balls}</worldbody></mujoco>")
    rng = np.random.default_rng(0)
    for _ in range(60):
        model.geom_size[:, 0] = model.geom_rbound[:] = rng.uniform(0.02, 0.5, model.ngeom)
        camera = RayCamera(model, "front", HEIGHT, WIDTH)
        pose = camera.view(replace(PLAIN, camera_turn=np.full(3, turn))).pose
        data.geom_xpos[:] = EYE + rng.normal(0, 0.7, (model.ngeom, 3))
        geometry = np.zeros(HEIGHT * WIDTH, np.int32)
        mujoco.mj_multiRay(
            model, data, pose.origin, pose.rays.reshape(-1), None, 1, -1, geometry, np.zeros(HEIGHT * WIDTH),
            np.zeros(3 * HEIGHT * WIDTH), HEIGHT * WIDTH, 10.0,
        )  # fmt: skip
        pixels, found, _ = camera.cast(data, pose)
        np.testing.assert_array_equal(pixels, np.flatnonzero(geometry >= 0))
        np.testing.assert_array_equal(found, geometry[geometry >= 0])


@pytest.mark.thorough
def test_opengl_shows_what_rays_show(make) -> None:
    """Coloured objects stand in the same places; on a machine without EGL, the message names the other renderer."""
    episode = Episode(0, 0, 5)
    drawn, cast, unseen = make(renderer="egl"), make(), make()
    for simulator in (drawn, cast, unseen):
        simulator.reset([episode])
    try:
        picture = drawn.render(0, 96, 96)
    except RuntimeError as error:
        assert "sim.renderer=raycast" in str(error)
        return
    colourful = [np.ptp(image.astype(int), axis=-1) > 90 for image in (picture, cast.render(0, 96, 96))]
    assert (colourful[0] & colourful[1]).sum() > 0.8 * (colourful[0] | colourful[1]).sum() > 0
    corner = picture[-5:, :5].reshape(-1, 3).mean(axis=0)
    assert corner.min() > 60 and corner[0] > corner[2]  # the table, in its warm colour, and no empty space
    action = np.full((1, 5, 4), 0.01, np.float32)
    assert_same(drawn.step(action, [None]), unseen.step(action, [None]), "an episode filmed with OpenGL")


def test_without_egl_the_remedy_is_named(make, monkeypatch) -> None:
    simulator = make(renderer="egl")
    simulator.reset([Episode(0, 0, 5)])

    def broken(*_: object) -> None:
        raise OSError("libEGL.so.1: cannot open shared object file")

    monkeypatch.setattr(video, "make_egl_context", broken)
    with pytest.raises(RuntimeError, match=r"libEGL.so.1.*libegl1.*sim\.renderer=raycast"):
        simulator.render(0, 32, 32)
