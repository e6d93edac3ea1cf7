"""ManiSkill 3: manipulation tasks on SAPIEN's physics and renderer (Tao et al., 2024, arXiv:2410.00425)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Camera, Episode, Observation, SimulatorSpec, StepResult, Task
from embodied_rl_sims.maniskill.batched import BatchedSimulator
from embodied_rl_sims.maniskill.diagnosis import diagnose, provenance
from embodied_rl_sims.maniskill.experts import make_expert
from embodied_rl_sims.maniskill.observation_reader import ObservationReader, name_entries
from embodied_rl_sims.maniskill.package import find_entry, make_environment
from embodied_rl_sims.maniskill.plate_scenes import SPLITS, count_scenes, list_instructions
from embodied_rl_sims.maniskill.settings import PLATE_CONTROL, ManiSkillConfig, make_instruction
from embodied_rl_sims.maniskill.single import SingleEnvironment
from embodied_rl_sims.rows import Rows


def spec_of(config: ManiSkillConfig) -> SimulatorSpec:
    """Read the specification of a task from one environment on the processor; draw nothing.

    That of a put-on-plate task is the same with shapes, which need no assets.

    Raises:
        UserError: the package lacks the task, control mode, robot or reward, or the task is not supported.
        Unavailable: an asset or a Vulkan driver is missing.
    """
    env = make_environment(replace(config, backend="cpu", shapes=config.has_plates))
    try:
        return read_spec(config, env)
    finally:
        env.close()


def read_spec(config: ManiSkillConfig, env: Any) -> SimulatorSpec:
    """Read the specification from an environment of the task."""
    known, hidden = ObservationReader(env, config.observations).state(env.get_info())
    names, low, high = _actions(config, env)
    width, height = config.picture_size
    drawn = env._sensor_configs if config.observations == "rgb" else ()
    texts = list_instructions(SPLITS[config.task]) if config.has_plates else [make_instruction(config.task)]
    words = [word for text in texts for word in text.split()]
    horizon = config.horizon or find_entry(config).max_episode_steps
    if horizon is None:
        raise UserError(
            f"sim.horizon=null: '{config.task}' has no time limit; give a number of control steps.",
            code="horizon-missing",
        )
    return SimulatorSpec(
        cameras=tuple(Camera(name, height, width) for name in drawn),
        state_names=name_entries(known),
        action_names=names,
        action_low=low,
        action_high=high,
        control_hz=float(env.control_freq),
        horizon=int(horizon),
        tasks=(_describe_task(config, env),),
        words=tuple(dict.fromkeys([*words, *(word.lower() for word in words)])),
        instruction_length=max(len(text.split()) for text in texts),
        privileged_names=name_entries(hidden),
        device="cuda" if config.backend == "gpu" else "cpu",
        hold=_hold(config, names),
        kept_while_holding=("gripper",) if _hold(config, names) is not None and "gripper" in names else (),
    )


def _describe_task(config: ManiSkillConfig, env: Any) -> Task:
    """Return name and family of the task; names of scenes of shapes end in "-shapes"."""
    if not config.has_plates:
        return Task(config.task, type(env).__module__.rpartition(".tasks.")[2].partition(".")[0])
    return Task(config.task + "-shapes" * config.shapes, "put_on_plate", count_scenes(SPLITS[config.task]))


class ManiSkill:
    """n environments of a ManiSkill task; implements `embodied_rl.interfaces.sim.Simulator`.

    On the processor, equal seeds and actions give equal bits, independent of earlier episodes and other environments;
    on a GPU, episodes start equal, but physics differs in the last bits. Observations are arrays on the processor and
    tensors on a GPU; on a GPU, operators and rebuilding of single environments are not available. The success of each
    control step is the package's `info["success"]`; a step that fails by `info["fail"]` ends the episode.

    Raises:
        UserError, Unavailable: see `spec_of`.
    """

    Config = ManiSkillConfig
    spec_of = staticmethod(spec_of)
    diagnose = staticmethod(diagnose)
    provenance = staticmethod(provenance)

    def __init__(self, config: ManiSkillConfig, num_envs: int) -> None:
        self.config, self.num_envs = config, num_envs
        self._expert: Callable[[], Array] | None = None
        first = make_environment(config, num_envs if config.backend == "gpu" else 1)
        self.spec = read_spec(config, first)
        self._inner: Rows | BatchedSimulator
        if config.backend == "gpu":
            self._inner = BatchedSimulator(config, self.spec, first)
        else:
            waiting = [first]
            make = lambda _: SingleEnvironment(config, waiting.pop() if waiting else make_environment(config))  # noqa: E731
            self._inner = Rows(self.spec, num_envs, make)

    @property
    def render_seconds(self) -> float:
        """Return the seconds spent on observations since the simulator was built."""
        return self._inner.render_seconds

    def reset(self, episodes: Sequence[Episode | None]) -> Observation:
        return self._inner.reset(episodes)

    def step(self, actions: Array, next_episodes: Sequence[Episode | None]) -> StepResult:
        return self._inner.step(actions, next_episodes)

    def snapshot(self) -> dict[str, Array]:
        return self._inner.snapshot()

    def restore(self, state: dict[str, Array]) -> Observation:
        return self._inner.restore(state)

    def render(self, row: int, width: int, height: int) -> Array:
        """Draw uint8 [height, width, 3] with the package's camera for videos; black if the row is parked."""
        return self._inner.render(row, width, height)

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """Return an operator for demonstrations, see `embodied_rl_sims.maniskill.experts`.

        Raises:
            UserError: the task does not have a demonstrator in this control mode.
            Unavailable: the motion planner cannot be loaded.
        """
        if faulty:
            raise UserError("ManiSkill has no faulty operator: use operator=careful.", code="operator-missing")
        if self.config.backend == "gpu":
            raise UserError(
                "sim.backend=gpu has no operator: record demonstrations with sim.backend=cpu.", code="operator-missing"
            )
        assert isinstance(self._inner, Rows)
        if self._expert is None:  # a planner has its own environment
            self._expert = make_expert(self.config, self._inner)
        return self._expert

    def close(self) -> None:
        self._inner.close()


def _actions(config: ManiSkillConfig, env: Any) -> tuple[tuple[str, ...], tuple[float, ...], tuple[float, ...]]:
    """Return names and limits of the actions: "arm_0" … "gripper", after the package's controllers."""
    space = env.single_action_space
    if not hasattr(space, "low"):
        raise UserError(
            f"sim.task={config.task}: tasks with several robots are not supported.", code="task-unsupported"
        )
    if not np.isfinite([space.low, space.high]).all():
        raise UserError(
            f"sim.control_mode={config.control_mode}: its actions have no limits; '{config.task}' also has "
            f"{', '.join(name for name in env.agent.supported_control_modes if name != config.control_mode)}.",
            code="action-space-unsupported",
        )
    parts = getattr(env.agent.controller, "action_mapping", {"arm": (0, len(space.low))})
    names = [
        f"{part}_{i}" if end - start > 1 else part for part, (start, end) in parts.items() for i in range(end - start)
    ]
    return tuple(names), tuple(map(float, space.low)), tuple(map(float, space.high))


def _hold(config: ManiSkillConfig, names: tuple[str, ...]) -> tuple[float, ...] | None:
    """Return the action that holds the robot still with an open gripper; None unless actions are displacements."""
    if config.control_mode not in ("pd_ee_delta_pos", "pd_ee_delta_pose", "pd_joint_delta_pos", PLATE_CONTROL):
        return None
    return tuple(1.0 if name == "gripper" else 0.0 for name in names)
