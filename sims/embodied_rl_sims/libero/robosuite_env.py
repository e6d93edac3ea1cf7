"""LIBERO's environment of a task, adapted: it renders nothing, and a soft reset restores its initial condition."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array
from embodied_rl_sims.libero import light
from embodied_rl_sims.libero.package import Problem
from embodied_rl_sims.libero.settings import LiberoConfig

STATE_SENSORS = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
"""robosuite's sensors that form the state."""

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
