"""The simulator out of n Gymnasium environments."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array, Camera, Diagnosis, SimulatorSpec, Task
from embodied_rl_sims.gymnasium_env import diagnosis, fetch
from embodied_rl_sims.gymnasium_env.environment import GymnasiumEnvironment, instruction_of
from embodied_rl_sims.gymnasium_env.layout import layout_of, limits
from embodied_rl_sims.gymnasium_env.making import load, make
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig
from embodied_rl_sims.rows import Rows


def spec_of(config: GymnasiumConfig) -> SimulatorSpec:
    """The specification of an environment, which is built for it, and draws nothing.

    Raises:
        ValueError: there is no such environment, or it is of a kind that cannot be trained here.
        ModuleNotFoundError: Gymnasium or `sim.package` is not installed.
    """
    environment = make(config, render=False)
    try:
        layout = layout_of(config, environment.observation_space)
        low, high = limits(config, environment.action_space)
        control_hz = config.control_hz or _control_hz(config, environment)
        modes = environment.metadata.get("render_modes", ())
    finally:
        environment.close()
    if config.observations == "rgb" and "rgb_array" not in modes:
        raise ValueError(f"sim.id={config.id} draws no pictures (it has {list(modes)}): set sim.observations=state.")
    camera = Camera(config.camera, config.image_size, config.image_size)
    instruction, name = instruction_of(config), config.id
    known = fetch.is_fetch(config.id) and len(low) == len(fetch.ACTIONS)
    return SimulatorSpec(
        cameras=(camera,) if config.observations == "rgb" else (),
        state_names=layout.state_names,
        action_names=fetch.ACTIONS if known else tuple(f"action_{number}" for number in range(len(low))),
        action_low=low,
        action_high=high,
        control_hz=control_hz,
        horizon=_horizon(config),
        tasks=(Task(name, name.rpartition("-v")[0] or name),),
        words=tuple(dict.fromkeys(instruction.split())),
        privileged_names=layout.names,
    )


class Gymnasium(Rows):
    """n environments of one id; implements `embodied_rl.interfaces.sim.Simulator`.

    Whatever `env.reset(seed=…)` and `env.step` give is what the engine gets. The time limit is `sim.horizon`; drawing
    a picture changes nothing, although in some MuJoCo environments of their own it does. The privileged state is the
    whole observation. Exact where the environment itself is: where a `reset` with a seed leaves nothing behind of what
    was before.
    """

    Config = GymnasiumConfig
    spec_of = staticmethod(spec_of)

    def __init__(self, config: GymnasiumConfig, num_envs: int) -> None:
        spec = spec_of(config)
        super().__init__(spec, num_envs, lambda row: GymnasiumEnvironment(config, spec))
        self.config = config

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """The operator of FetchReach, FetchPush or FetchPickAndPlace, for all environments.

        Call the result for one control step's actions, float32 [n, A].

        Raises:
            ValueError: the environment has no operator, or no faulty one.
        """
        operate = fetch.operator(self.config.id)
        if faulty:
            raise ValueError(f"sim.id={self.config.id} has no operator with faults; ask for the expert.")

        def actions() -> Array:
            moves = np.zeros((self.num_envs, self.spec.action_dim), np.float32)
            for row in range(self.num_envs):
                if self.episode(row) is not None:
                    environment = self.environment(row)
                    assert isinstance(environment, GymnasiumEnvironment)
                    moves[row] = operate(environment.observation)
            return moves

        return actions

    @staticmethod
    def diagnose(config: GymnasiumConfig) -> Sequence[Diagnosis]:
        """Versions against pins, the environment, and the renderer."""
        return diagnosis.diagnose(config)

    @staticmethod
    def provenance(config: GymnasiumConfig) -> dict[str, str]:
        """Versions of the packages that results depend on."""
        return diagnosis.provenance(config)


def _control_hz(config: GymnasiumConfig, environment: Any) -> float:
    step = getattr(environment.unwrapped, "dt", None)
    if isinstance(step, (int, float)) and step > 0:
        return 1 / float(step)
    if rate := environment.metadata.get("render_fps"):
        return float(rate)
    raise ValueError(f"sim.id={config.id} does not say how long a control step is: set sim.control_hz.")


def _horizon(config: GymnasiumConfig) -> int:
    registered = load(config).spec(config.id).max_episode_steps
    if (horizon := config.horizon or registered) is None:
        raise ValueError(f"sim.id={config.id} is registered without max_episode_steps: set sim.horizon.")
    return horizon
