"""One task of LIBERO, built by its package; it runs one episode after another and draws on request."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array
from embodied_rl_sims import light
from embodied_rl_sims.libero import variations
from embodied_rl_sims.libero.package import Problem
from embodied_rl_sims.libero.settings import LiberoConfig
from embodied_rl_sims.opengl import explain_driver_errors

STATE_SENSORS = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""robosuite's sensors that form the state."""

_DRAWN_ARRAYS = (
    "cam_pos", "cam_quat", "cam_fovy", "light_pos", "light_dir", "light_diffuse", "mat_rgba", "mat_texid",
)  # fmt: skip
"""Fields that variations of an episode write into the model."""

_MODEL_ARRAYS = ("body_pos", "body_quat", "site_rgba")
"""Fields that LIBERO and robosuite write into the model: poses of fixtures, visibility of markers."""


def build_environment(environments: ModuleType, problem: Problem, config: LiberoConfig) -> Any:
    """Build the package's environment with the arguments of its `OffScreenRenderEnv`, but without drawing."""
    import robosuite  # pyright: ignore[reportMissingImports]

    name = environments.env_wrapper.BDDLUtils.get_problem_info(str(problem.bddl))["problem_name"]
    return _with_soft_reset(environments.TASK_MAPPING[name], config.rendering == "light")(
        str(problem.bddl),
        robots=["Panda"],
        controller_configs=robosuite.load_controller_config(default_controller="OSC_POSE"),
        gripper_types="default",
        initialization_noise=None,
        use_camera_obs=False,
        has_renderer=False,
        has_offscreen_renderer=False,
        control_freq=config.control_freq,
        ignore_done=True,
        hard_reset=False,
    )


def _with_soft_reset(domain: type, simple: bool) -> type:
    """Subclass the package's class so that a soft reset restores a newly built scene; a hard reset takes seconds."""

    class SoftResetEnvironment(domain):
        def _initialize_sim(self, xml_string: str | None = None) -> None:
            super()._initialize_sim(xml_string)
            model = self.sim.model._model
            if simple:
                light.simplify_model(model)
            self._pristine = {name: getattr(model, name).copy() for name in _MODEL_ARRAYS}
            # A hard reset appends these samplers a second time, and each of them draws.
            self.object_property_initializers = 2 * list(self.object_property_initializers)

        def _reset_internal(self) -> None:
            model = self.sim.model._model
            for name, array in self._pristine.items():
                getattr(model, name)[:] = array
            for robot in self.robots:
                robot.gripper.current_action = np.zeros(robot.gripper.dof)
            super()._reset_internal()

        def step(self, action: Array) -> Any:
            """Run a control step. robosuite computes the scene three times per substep; once gives the same bits."""
            self.sim.forward, self.sim.step = _split_step(self.sim)
            try:
                return super().step(action)
            finally:
                del self.sim.forward, self.sim.step

        def _setup_observables(self) -> dict[str, Any]:
            found = super()._setup_observables()
            return {name: found[name] for name in STATE_SENSORS}

    SoftResetEnvironment.__name__ = domain.__name__  # the package compares it with the bddl file
    return SoftResetEnvironment


def _split_step(sim: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """Split MuJoCo's step into two functions.

    The first part depends on positions and velocities; controllers read it, and it is computed only once. The second
    part depends on controls and includes the integration.
    """
    import mujoco

    model, data, known = sim.model._model, sim.data._data, [False]

    def forward() -> None:
        if not known[0]:
            mujoco.mj_step1(model, data)
            known[0] = True

    def step() -> None:
        mujoco.mj_step2(model, data)
        known[0] = False

    return forward, step


def make_camera_time_sensor(keep: Any, control_freq: int) -> Any:
    """Make a sensor that calls `keep` when robosuite would read its cameras; it has no value."""
    from robosuite.utils.observables import Observable, sensor  # pyright: ignore[reportMissingImports]

    @sensor(modality="moment")
    def moment(_cache: dict[str, Any]) -> Array:
        keep()
        return np.zeros(1)

    return Observable("moment", moment, sampling_rate=control_freq)


STILL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -1.0)
"""Action while a scene settles: no motion, gripper open, as in OpenVLA-OFT and openpi."""

_RESET_ATTEMPTS = 100
_STILL_WITHIN = 0.02
"""Metres by which an object that was shifted may come to lie elsewhere than shifted by so much."""


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
        self._drawn = {name: getattr(model, name).copy() for name in _DRAWN_ARRAYS}
        self._headlight = model.vis.headlight.diffuse.copy()
        self._pictures: Any = None
        if config.cameras:
            known = self._domain.sim.model.camera_names
            if unknown := ", ".join(sorted(set(config.cameras) - set(known))):
                raise UserError(
                    f"sim.cameras: LIBERO's scenes have no {unknown}, but {', '.join(known)}.", code="camera-unknown"
                )
            self._pictures = self._make_pictures()

    def begin(self, seed: int, state: Array, split: str = "train") -> None:
        """Put the scene into an initial state and let it settle.

        An initial state contains the joints, but not the poses of fixtures (a cabinet, a stove): LIBERO draws these at
        every reset from NumPy's global generator. Here they depend on `seed`.

        Args:
            seed: of the episode.
            state: float64, time and MuJoCo's positions and velocities.
            split: of the episode; an axis of `variations` changes the scene along it.
        """
        model = self._domain.sim.model
        for name, array in self._drawn.items():
            getattr(model._model, name)[:] = array
        model._model.vis.headlight.diffuse[:] = self._headlight
        if split in ("camera", "light", "texture"):
            generator = variations.make_generator(split, seed)
            variations.vary_model(split, model._model, generator, model.camera_name2id("agentview"), self._arena())
        self._settle(seed, state)
        if split == "layout":
            self._shift_objects(seed, state)

    def _shift_objects(self, seed: int, state: Array) -> None:
        """Begin again with objects shifted by what they all can be shifted by without falling or sliding.

        Each must come to lie where it did before, but for its shift. Otherwise a smaller shift is drawn.
        """
        generator, read = variations.make_generator("layout", seed), lambda: self._domain.sim.get_state().flatten()
        places, before = self._free_objects(), read()
        for share in (1.0, 0.8, 0.6, 0.4, 0.2):
            shifted = variations.shift_objects(state, places, generator, share)
            self._settle(seed, shifted)
            missed = read() - before - (shifted - state)
            if all(np.abs(missed[place : place + 3]).max() < _STILL_WITHIN for place in places):
                return
        self._settle(seed, state)

    def _settle(self, seed: int, state: Array) -> None:
        from robosuite.utils.errors import RandomizationError  # pyright: ignore[reportMissingImports]

        domain = self._domain
        with _global_seed(seed):
            for attempt in range(_RESET_ATTEMPTS):
                try:
                    domain.reset()
                    break
                except RandomizationError:
                    if attempt == _RESET_ATTEMPTS - 1:
                        raise
        domain.sim.set_state_from_flattened(state)
        domain.sim.forward()
        domain._check_success()
        domain._post_process()
        domain._update_observables(force=True)
        for _ in range(self._config.settle):
            domain.step(STILL)

    def _free_objects(self) -> list[int]:
        """Return where the places of objects with a free joint begin in a flattened state."""
        find = self._domain.sim.model.get_joint_qpos_addr
        places = [find(joint) for thing in self._domain.objects_dict.values() for joint in thing.joints]
        return [1 + place[0] for place in places if isinstance(place, tuple)]  # the time comes first

    def _arena(self) -> list[int]:
        """Return the materials of floor, walls and table: those with a texture, and of no robot, object or fixture."""
        model = self._domain.sim.model._model
        owners = ("robot0_", "gripper0_", "mount0_", *self._domain.objects_dict, *self._domain.fixtures_dict)
        names = [self._mujoco.mj_id2name(model, self._mujoco.mjtObj.mjOBJ_MATERIAL, each) for each in range(model.nmat)]
        return [
            each for each, name in enumerate(names) if not name.startswith(owners) and model.mat_texid[each].max() >= 0
        ]

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
