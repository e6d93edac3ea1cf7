"""Read a specification from an environment that is built temporarily."""

from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Camera, SimulatorSpec, Task
from embodied_rl_sims.gymnasium_env import fetch
from embodied_rl_sims.gymnasium_env.environment import make_instruction
from embodied_rl_sims.gymnasium_env.factory import load_package, make_environment
from embodied_rl_sims.gymnasium_env.observation_layout import find_action_limits, make_observation_layout
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig


def spec_of(config: GymnasiumConfig) -> SimulatorSpec:
    """Build an environment, read its specification, and close it; draw nothing.

    Raises:
        UserError: the environment does not exist, or its kind is not supported.
        ModuleNotFoundError: Gymnasium or `sim.package` is not installed.
    """
    environment = make_environment(config, render=False)
    try:
        layout = make_observation_layout(config, environment.observation_space)
        low, high = find_action_limits(config, environment.action_space)
        control_hz = config.control_hz or _control_hz(config, environment)
        modes = environment.metadata.get("render_modes", ())
    finally:
        environment.close()
    if config.observations == "rgb" and "rgb_array" not in modes:
        raise UserError(
            f"sim.id={config.id} draws no pictures (it has {list(modes)}): set sim.observations=state.",
            code="rendering-unsupported",
        )
    camera = Camera(config.camera, config.image_size, config.image_size)
    instruction, name = make_instruction(config), config.id
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
        hold=(0.0,) * len(low) if known else None,
        kept_while_holding=fetch.ACTIONS[3:] if known else (),
    )


def _horizon(config: GymnasiumConfig) -> int:
    registered = load_package(config).spec(config.id).max_episode_steps
    if (horizon := config.horizon or registered) is None:
        raise UserError(
            f"sim.id={config.id} is registered without max_episode_steps: set sim.horizon.", code="horizon-missing"
        )
    return horizon


def _control_hz(config: GymnasiumConfig, environment: Any) -> float:
    step = getattr(environment.unwrapped, "dt", None)
    if isinstance(step, (int, float)) and step > 0:
        return 1 / float(step)
    if rate := environment.metadata.get("render_fps"):
        return float(rate)
    raise UserError(
        f"sim.id={config.id} does not state its control rate: set sim.control_hz.", code="control-rate-missing"
    )
