"""One task of LIBERO, built by its package, which runs one episode after another and draws when it is asked to."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.libero.domain import SEEN, build_environment, make_moment_sensor
from embodied_rl_sims.libero.loading import explain_driver_errors
from embodied_rl_sims.libero.package import Problem
from embodied_rl_sims.libero.settings import LiberoConfig

STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""The action of the steps that settle a scene: no motion, gripper open. As OpenVLA-OFT and openpi do it."""

_RESET_ATTEMPTS = 100


class Scene:
    """A task's robosuite environment.

    robosuite reads its sensors once a control step, at some substep of it, never at its end; so a picture is of that
    moment and of no other. The moment is kept at every control step and drawn only when somebody looks.

    Args:
        environments: the package's module, from `launch.load_package`.
        problem: the task.
        config: of the simulator.
    """

    def __init__(self, environments: ModuleType, problem: Problem, config: LiberoConfig) -> None:
        import mujoco

        self._mujoco, self._config = mujoco, config
        with _global_seed(0):  # building draws, too
            self._domain = build_environment(environments, problem, config)
        model = self._domain.sim.model._model
        self._moment = mujoco.MjData(model)
        self._marks = model.site_rgba.copy()
        self._domain.add_observable(make_moment_sensor(self._keep_moment, config.control_freq))
        self._pictures: Any = None
        if config.cameras:
            _check_cameras(config.cameras, self._domain.sim.model.camera_names)
            self._pictures = self._make_pictures()

    def begin(self, seed: int, state: Array) -> None:
        """Put the scene into an initial state and let it settle.

        An initial state holds the joints. Where fixtures stand (a cabinet, a stove) is none of it: LIBERO draws that
        at every reset, from NumPy's global generator. Here it follows from `seed`.
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
        """Reward, and whether the goal holds, after one control step."""
        _, reward, success, _ = self._domain.step(np.asarray(action, np.float64))
        return float(reward), bool(success)

    def state(self) -> Array:
        """float32 [8]: gripper site in metres, the hand's orientation as axis × angle, both fingers in metres."""
        import robosuite.utils.transform_utils as transforms  # pyright: ignore[reportMissingImports]

        position, quaternion, fingers = (self._domain._observables[name].obs for name in SEEN)
        turned = transforms.quat2axisangle(np.array(quaternion))
        return np.concatenate([position, turned, fingers]).astype(np.float32)

    def draw(self, camera: str, width: int, height: int) -> Array:
        """uint8 [height, width, 3], the first row on top."""
        if self._pictures is None:
            self._pictures = self._make_pictures()
        pictures, model = self._pictures, self._domain.sim.model
        now = model.site_rgba.copy()
        model.site_rgba[:] = self._marks
        pictures.gl_ctx.make_current()  # another scene of this process may have drawn since
        pictures.render(width, height, model.camera_name2id(camera))
        image = pictures.read_pixels(width, height)[::-1]
        model.site_rgba[:] = now
        return image[:, ::-1] if self._config.mirror else image

    def gripper(self) -> Array:
        """Where the gripper is now, [3] metres; the state has where it was when robosuite last looked."""
        return self._domain.sim.data.site_xpos[self._domain.robots[0].eef_site_id].copy()

    def objects(self, names: tuple[str, ...]) -> Iterator[tuple[Array, Array]]:
        """Position relative to the gripper, in metres and the world's directions, and quaternion wxyz of each."""
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
        """The share of the goal's conditions that hold."""
        conditions = self._domain.parsed_problem["goal_state"]
        return sum(bool(self._domain._eval_predicate(condition)) for condition in conditions) / len(conditions)

    def close(self) -> None:
        if self._pictures is not None:
            self._pictures.gl_ctx.make_current()  # else its textures are freed in another scene's OpenGL
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
        """robosuite's renderer, drawing the kept moment. It computes its simulation once, which must not be ours."""
        from robosuite.utils.binding_utils import MjRenderContextOffscreen  # pyright: ignore[reportMissingImports]

        model, moment = self._domain.sim.model, SimpleNamespace(_data=self._moment)
        sim = SimpleNamespace(model=model, data=moment, forward=lambda: None, add_render_context=lambda context: None)
        with explain_driver_errors(self._config.renderer, ImportError, RuntimeError, self._mujoco.FatalError):
            pictures = MjRenderContextOffscreen(sim, device_id=-1)
        pictures.vopt.geomgroup[0], pictures.vopt.geomgroup[1] = 0, 1  # what is seen, and not what collides
        return pictures


def _check_cameras(wanted: tuple[str, ...], known: tuple[str, ...]) -> None:
    unknown = set(wanted) - set(known)
    if unknown:
        raise UserError(f"sim.cameras: LIBERO's scenes have no {', '.join(sorted(unknown))}, but {', '.join(known)}.")


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """NumPy's global generator with a seed, and afterwards as it was."""
    before = np.random.get_state()
    np.random.seed(seed if seed < 2**32 else [seed % 2**32, seed // 2**32])
    try:
        yield
    finally:
        np.random.set_state(before)
