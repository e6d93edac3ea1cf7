"""One task of LIBERO, built by its package; it runs one episode after another and draws on request."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.libero.loading import explain_driver_errors
from embodied_rl_sims.libero.package import Problem
from embodied_rl_sims.libero.robosuite_env import STATE_SENSORS, build_environment, make_camera_time_sensor
from embodied_rl_sims.libero.settings import LiberoConfig

STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""Action while a scene settles: no motion, gripper open, as in OpenVLA-OFT and openpi."""

_RESET_ATTEMPTS = 100


class LiberoScene:
    """A task's robosuite environment.

    robosuite reads its sensors once per control step, at one of its substeps, never at its end; a picture shows exactly
    that moment. The moment is saved at every control step and drawn only on request.

    Args:
        environments: the package's module, from `loading.load_package`.
        problem: the task.
        config: settings of the simulator.
    """

    def __init__(self, environments: ModuleType, problem: Problem, config: LiberoConfig) -> None:
        import mujoco

        self._mujoco, self._config = mujoco, config
        with _global_seed(0):  # building uses random numbers too
            self._domain = build_environment(environments, problem, config)
        model = self._domain.sim.model._model
        self._moment = mujoco.MjData(model)
        self._marks = model.site_rgba.copy()
        self._domain.add_observable(make_camera_time_sensor(self._keep_moment, config.control_freq))
        self._pictures: Any = None
        if config.cameras:
            known = self._domain.sim.model.camera_names
            if unknown := ", ".join(sorted(set(config.cameras) - set(known))):
                raise UserError(
                    f"sim.cameras: LIBERO's scenes have no {unknown}, but {', '.join(known)}.", code="camera-unknown"
                )
            self._pictures = self._make_pictures()

    def begin(self, seed: int, state: Array) -> None:
        """Put the scene into an initial state and let it settle.

        An initial state contains the joints, but not the poses of fixtures (a cabinet, a stove): LIBERO draws these at
        every reset from NumPy's global generator. Here they depend on `seed`.
        """
        domain = self._domain
        with _global_seed(seed):
            self._reset()
        domain.sim.set_state_from_flattened(state)
        domain.sim.forward()
        domain._check_success()
        domain._post_process()
        domain._update_observables(force=True)
        for _ in range(self._config.settle):
            domain.step(STILL)

    def step(self, action: Array) -> tuple[float, bool]:
        """Run one control step; return the reward, and whether the goal holds."""
        _, reward, success, _ = self._domain.step(np.asarray(action, np.float64))
        return float(reward), bool(success)

    def state(self) -> Array:
        """Return float32 [8]: gripper site in metres, hand's orientation as axis × angle, both fingers in metres."""
        import robosuite.utils.transform_utils as transforms  # pyright: ignore[reportMissingImports]

        position, quaternion, fingers = (self._domain._observables[name].obs for name in STATE_SENSORS)
        turned = transforms.quat2axisangle(np.array(quaternion))
        return np.concatenate([position, turned, fingers]).astype(np.float32)

    def draw(self, camera: str, width: int, height: int) -> Array:
        """Draw a picture uint8 [height, width, 3], top row first."""
        if self._pictures is None:
            self._pictures = self._make_pictures()
        pictures, model = self._pictures, self._domain.sim.model
        now = model.site_rgba.copy()
        model.site_rgba[:] = self._marks
        pictures.gl_ctx.make_current()  # another scene's context of this process may be current
        pictures.render(width, height, model.camera_name2id(camera))
        image = pictures.read_pixels(width, height)[::-1]
        model.site_rgba[:] = now
        return image[:, ::-1] if self._config.mirror else image

    def gripper(self) -> Array:
        """Return the gripper's present position, [3] metres; the state has the position of robosuite's last reading."""
        return self._domain.sim.data.site_xpos[self._domain.robots[0].eef_site_id].copy()

    def objects(self, names: tuple[str, ...]) -> Iterator[tuple[Array, Array]]:
        """Yield for each object its position relative to the gripper (metres, world axes) and its quaternion wxyz."""
        sim, gripper = self._domain.sim, self.gripper()
        for name in names:
            if name in self._domain.object_sites_dict:
                quaternion = np.zeros(4)
                place = sim.data.get_site_xpos(name)
                self._mujoco.mju_mat2Quat(quaternion, sim.data.get_site_xmat(name).reshape(-1))
            else:
                body = self._domain.obj_body_id[name]
                place, quaternion = sim.data.body_xpos[body], sim.data.body_xquat[body]
            yield place - gripper, quaternion

    def goal(self) -> float:
        """Return the share of the goal's conditions that hold."""
        conditions = self._domain.parsed_problem["goal_state"]
        return sum(bool(self._domain._eval_predicate(condition)) for condition in conditions) / len(conditions)

    def close(self) -> None:
        if self._pictures is not None:
            self._pictures.gl_ctx.make_current()  # otherwise its textures are freed in another scene's OpenGL context
            self._pictures = None
        self._domain.close()

    def _reset(self) -> None:
        from robosuite.utils.errors import RandomizationError  # pyright: ignore[reportMissingImports]

        for attempt in range(_RESET_ATTEMPTS):
            try:
                self._domain.reset()
                return
            except RandomizationError:
                if attempt == _RESET_ATTEMPTS - 1:
                    raise

    def _keep_moment(self) -> None:
        sim = self._domain.sim
        self._mujoco.mj_copyData(self._moment, sim.model._model, sim.data._data)
        self._marks[:] = sim.model.site_rgba

    def _make_pictures(self) -> Any:
        """Build robosuite's renderer for the saved moment, with a dummy simulation, because it calls `forward`."""
        from robosuite.utils.binding_utils import MjRenderContextOffscreen  # pyright: ignore[reportMissingImports]

        model, moment = self._domain.sim.model, SimpleNamespace(_data=self._moment)
        sim = SimpleNamespace(model=model, data=moment, forward=lambda: None, add_render_context=lambda context: None)
        with explain_driver_errors(self._config.renderer, ImportError, RuntimeError, self._mujoco.FatalError):
            pictures = MjRenderContextOffscreen(sim, device_id=-1)
        pictures.vopt.geomgroup[0], pictures.vopt.geomgroup[1] = 0, 1  # draw visual geometry, not collision geometry
        return pictures


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global generator for the `with` block, and restore it afterwards."""
    before = np.random.get_state()
    np.random.seed(seed if seed < 2**32 else [seed % 2**32, seed // 2**32])
    try:
        yield
    finally:
        np.random.set_state(before)
