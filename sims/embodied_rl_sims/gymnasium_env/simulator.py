"""A simulator of n Gymnasium environments."""

import time
from collections.abc import Callable, Sequence

import numpy as np

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Array, Diagnosis, Episode, Unavailable
from embodied_rl_sims.gymnasium_env import fetch
from embodied_rl_sims.gymnasium_env.environment import GymnasiumEnvironment
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig
from embodied_rl_sims.gymnasium_env.specification import spec_of
from embodied_rl_sims.packages import diagnose_package, find_versions
from embodied_rl_sims.rows import Rows

PINS = {"mujoco": "3.8.1", "gymnasium": "1.4.0", "gymnasium-robotics": "1.4.2"}
"""Versions that the adapter is tested with and that `embodied-rl sim install gymnasium` installs."""

_FRAMES = 5
_REMEDY = "embodied-rl sim install gymnasium"


def diagnose(config: GymnasiumConfig) -> list[Diagnosis]:
    """Return a line per package, and one for the environment and its pictures; report missing parts without raising."""
    packages = (diagnose_package(name, pinned, _REMEDY) for name, pinned in PINS.items())
    return [*packages, _environment(config)]


def provenance(config: GymnasiumConfig) -> dict[str, str]:
    """Return package → version of the installed packages, including the package that registers the environment."""
    names = [*PINS, *([config.package.replace("_", "-")] if config.package else [])]
    return find_versions(names)


def _environment(config: GymnasiumConfig) -> Diagnosis:
    try:
        spec = spec_of(config)
        environment = GymnasiumEnvironment(config, spec)
        environment.begin(Episode(0, 0, 0))
        if not spec.cameras:
            return Diagnosis(config.id, "ok", "no pictures asked for")
        environment.observe(pictures=True)
        began = time.perf_counter()
        for _ in range(_FRAMES):
            environment.observe(pictures=True)
        rate = _FRAMES / (time.perf_counter() - began)
        environment.close()
    except ModuleNotFoundError as error:
        return Diagnosis(config.id, "fail", str(error), _REMEDY)
    except (Unavailable, ValueError) as error:
        found, _, remedy = str(error).partition(". ")
        return Diagnosis(config.id, "fail", found, remedy)
    return Diagnosis(config.id, "ok", f"draws {rate:.0f} pictures of {config.image_size} px a second")


class Gymnasium(Rows):
    """n environments of one id; implements `embodied_rl.interfaces.sim.Simulator`.

    The engine receives the results of `env.reset(seed=…)` and `env.step` unchanged. The time limit is `sim.horizon`.
    Drawing a picture changes nothing, although some MuJoCo environments change their state when they draw. The
    privileged state is the whole observation. Episodes are reproducible if the environment is, that is, if
    `reset` with a seed does not depend on earlier episodes.
    """

    Config = GymnasiumConfig
    spec_of = staticmethod(spec_of)

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
            raise UserError(
                f"sim.id={self.config.id} has no operator with faults; use the expert.", code="operator-missing"
            )

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
        """Check package versions against pins, the environment, and the renderer."""
        return diagnose(config)

    @staticmethod
    def provenance(config: GymnasiumConfig) -> dict[str, str]:
        """Return the versions of the packages that results depend on."""
        return provenance(config)
