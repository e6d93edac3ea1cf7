"""The package's environment of a task, made for our use: it draws nothing, and a soft reset leaves it as new."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.libero import light
from embodied_rl_sims.libero.package import Problem
from embodied_rl_sims.libero.settings import LiberoConfig

SEEN = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""robosuite's sensors that our state is made of."""

_MODEL_ARRAYS = ("body_pos", "body_quat", "site_rgba")
"""What LIBERO and robosuite write into the model: where fixtures stand, and which marks are to be seen."""


def build_environment(environments: ModuleType, problem: Problem, config: LiberoConfig) -> Any:
    """The package's environment with the arguments of its `OffScreenRenderEnv`, but one that draws nothing itself."""
    import robosuite  # pyright: ignore[reportMissingImports]

    name = environments.env_wrapper.BDDLUtils.get_problem_info(str(problem.bddl))["problem_name"]
    return _as_new(environments.TASK_MAPPING[name], config.rendering == "light")(
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


def _as_new(domain: type, simple: bool) -> type:
    """The package's class, whose soft reset leaves the scene as a newly built one: a hard reset takes seconds."""

    class AsNew(domain):
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
            """robosuite computes the whole scene three times a substep; once is enough, and gives the same bits."""
            self.sim.forward, self.sim.step = _halves(self.sim)
            try:
                return super().step(action)
            finally:
                del self.sim.forward, self.sim.step

        def _setup_observables(self) -> dict[str, Any]:
            found = super()._setup_observables()
            return {name: found[name] for name in SEEN}

    AsNew.__name__ = domain.__name__  # which the package compares with the bddl file
    return AsNew


def _halves(sim: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """MuJoCo's step in two: what follows from positions and velocities, once however often it is asked for, which is
    all that a controller reads; and what needs the controls, with the integration.
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


def make_moment_sensor(keep: Any, control_freq: int) -> Any:
    """A sensor without a value, read when robosuite's cameras would be."""
    from robosuite.utils.observables import Observable, sensor  # pyright: ignore[reportMissingImports]

    @sensor(modality="moment")
    def moment(_cache: dict[str, Any]) -> Array:
        keep()
        return np.zeros(1)

    return Observable("moment", moment, sampling_rate=control_freq)
