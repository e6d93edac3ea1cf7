"""A simulator of n Gymnasium environments, and its specification."""

from collections.abc import Callable
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Camera, Diagnosis, Episode, SimulatorSpec, Task, Unavailable
from embodied_rl_sims.common import diagnose_package, find_versions, measure_rate
from embodied_rl_sims.gymnasium_env import fetch
from embodied_rl_sims.gymnasium_env.environment import (
    GymnasiumEnvironment,
    load_package,
    make_environment,
    make_instruction,
)
from embodied_rl_sims.gymnasium_env.observation_layout import find_action_limits, make_observation_layout
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig
from embodied_rl_sims.rows import Rows


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
        modes, id = environment.metadata.get("render_modes", ()), environment.spec.id  # with the version
    finally:
        environment.close()
    horizon = config.horizon or load_package(config).spec(id).max_episode_steps
    if horizon is None:
        raise UserError(
            f"sim.id={config.id} is registered without max_episode_steps: set sim.horizon.", code="horizon-missing"
        )
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
        horizon=horizon,
        tasks=(Task(name, name.rpartition("-v")[0] or name),),
        words=tuple(dict.fromkeys(instruction.split())),
        privileged_names=layout.names,
        hold=(0.0,) * len(low) if known else None,
        kept_while_holding=fetch.ACTIONS[3:] if known else (),
    )


def _control_hz(config: GymnasiumConfig, environment: Any) -> float:
    step = getattr(environment.unwrapped, "dt", None)
    if isinstance(step, (int, float)) and step > 0:
        return 1 / float(step)
    if rate := environment.metadata.get("render_fps"):
        return float(rate)
    raise UserError(
        f"sim.id={config.id} does not state its control rate: set sim.control_hz.", code="control-rate-missing"
    )


PINS = {"mujoco": "3.8.1", "gymnasium": "1.4.0", "gymnasium-robotics": "1.4.2"}
"""Versions that the adapter is tested with and that `embodied-rl sim install gymnasium` installs."""

_REMEDY = "embodied-rl sim install gymnasium"


def diagnose(config: GymnasiumConfig) -> list[Diagnosis]:
    """Return a line per package, and one for the environment and its pictures; report missing parts without raising."""
    packages = (diagnose_package(name, pinned, _REMEDY) for name, pinned in PINS.items())
    status, found, remedy = "ok", "no pictures asked for", ""
    try:
        spec = spec_of(config)
        environment = GymnasiumEnvironment(config, spec)
        environment.begin(Episode(0, 0, 0))
        if spec.cameras:
            rate = measure_rate(lambda: environment.observe(pictures=True), 5)
            found = f"draws {rate:.0f} pictures of {config.image_size} px a second"
        environment.close()
    except ModuleNotFoundError as error:
        status, found, remedy = "fail", str(error), _REMEDY
    except (Unavailable, ValueError) as error:
        status = "fail"
        found, _, remedy = str(error).partition(". ")
    return [*packages, Diagnosis(config.id, status, found, remedy)]


def provenance(config: GymnasiumConfig) -> dict[str, str]:
    """Return package → version of the installed packages, including the package that registers the environment."""
    names = [*PINS, *([config.package.replace("_", "-")] if config.package else [])]
    return find_versions(names)


class Gymnasium(Rows):
    """n environments of one id; implements `embodied_rl.interfaces.sim.Simulator`.

    The engine receives the results of `env.reset(seed=…)` and `env.step` unchanged. The time limit is `sim.horizon`.
    Drawing a picture changes nothing, although some MuJoCo environments change their state when they draw. The
    privileged state is the whole observation. Episodes are reproducible if the environment is, that is, if
    `reset` with a seed does not depend on earlier episodes.
    """

    Config = GymnasiumConfig
    spec_of = staticmethod(spec_of)
    diagnose = staticmethod(diagnose)
    provenance = staticmethod(provenance)

    def __init__(self, config: GymnasiumConfig, num_envs: int) -> None:
        spec = spec_of(config)
        super().__init__(spec, num_envs, lambda row: GymnasiumEnvironment(config, spec))
        self.config = config

    def expert(self, faulty: bool = False) -> Callable[[], Array]:
        """Return the operator of FetchReach, FetchPush or FetchPickAndPlace for all environments.

        Each call of the returned function gives one control step's actions, float32 [n, A].

        Raises:
            UserError: the environment has no operator, or a faulty one is requested.
        """
        operate = fetch.make_operator(self.config.id)
        if faulty:
            message = f"sim.id={self.config.id} has no faulty operator: use operator=careful."
            raise UserError(message, code="operator-missing")

        def act(row: int, _: Episode) -> Array:
            environment = self.environment(row)
            assert isinstance(environment, GymnasiumEnvironment)
            return operate(environment.observation)

        return self.make_operator(act)
