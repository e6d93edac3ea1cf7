"""Diagnosis of the Gymnasium adapter on this machine: package versions, the environment, the renderer."""

import time

from embodied_rl.interfaces.sim import Diagnosis, Episode, Unavailable
from embodied_rl_sims.gymnasium_env.environment import GymnasiumEnvironment
from embodied_rl_sims.gymnasium_env.settings import GymnasiumConfig
from embodied_rl_sims.gymnasium_env.specification import spec_of
from embodied_rl_sims.packages import diagnose_package, find_versions

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
