"""Import LIBERO's package without interactive questions and downloads."""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl_sims.libero import package

DRIVERS = {"egl": "libegl1 and libgl1-mesa-dri, or the graphics card's own", "osmesa": "libosmesa6"}
"""Renderer → Debian and Ubuntu packages of its driver."""


@contextmanager
def explain_driver_errors(renderer: str, *failures: type[Exception]) -> Iterator[None]:
    """Convert the errors of a missing driver in the `with` block to `Unavailable`.

    Raises:
        Unavailable: one of `failures` was raised.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise
    except failures as error:
        raise Unavailable(
            f"no rendering with sim.renderer={renderer} here: {error}. "
            f"Install its driver ({DRIVERS[renderer]}), or choose another: "
            f"sim.renderer={choose_other_renderer(renderer)}."
        ) from error


def choose_other_renderer(renderer: str) -> str:
    """Return the other renderer."""
    return next(name for name in DRIVERS if name != renderer)


def load_package(renderer: str, place: Path) -> ModuleType:
    """Import the package's module of environments; set its renderer, and `place` as its assets folder.

    Raises:
        UserError: this process already renders with another OpenGL.
        Unavailable: the renderer's driver is not installed.
    """
    if "robosuite" not in sys.modules:
        os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = renderer
    elif os.environ.get("MUJOCO_GL") != renderer:
        raise UserError(
            f"sim.renderer={renderer}: this process renders with {os.environ.get('MUJOCO_GL')} already.",
            code="renderer-already-chosen",
        )
    with explain_driver_errors(renderer, ImportError, AttributeError):
        _import_robosuite()
    libero = _import_quietly()
    vars(libero)["_assets_path_cache"] = str(place)  # get_assets_path returns this instead of downloading
    return import_module("libero.libero.envs")


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="libero_config_")


def _import_quietly() -> ModuleType:
    """Import `libero.libero` with the user's or a temporary configuration; without one it asks on the terminal."""
    before = os.environ.get("LIBERO_CONFIG_PATH")
    if package.read_user_config() is None:
        os.environ["LIBERO_CONFIG_PATH"] = _write_config()
    libero = import_module("libero.libero")
    if before is None:
        os.environ.pop("LIBERO_CONFIG_PATH", None)
    else:
        os.environ["LIBERO_CONFIG_PATH"] = before
    return libero


def _import_robosuite() -> None:
    """Import robosuite without its log file in /tmp, which only the machine's first robosuite user can write."""
    if "robosuite" in sys.modules:
        return
    found = find_spec("robosuite")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'robosuite'", name="robosuite")
    spec = spec_from_file_location("robosuite.macros", Path(found.origin).with_name("macros.py"))
    assert spec is not None and spec.loader is not None
    macros = sys.modules["robosuite.macros"] = module_from_spec(spec)
    spec.loader.exec_module(macros)
    vars(macros).update(FILE_LOGGING_LEVEL=None, CONSOLE_LOGGING_LEVEL="ERROR")
    vars(import_module("robosuite"))["macros"] = macros


def _write_config() -> str:
    """Write a configuration with the package's own paths to a folder that is deleted at exit."""
    root, place = package.find_benchmark_folder(), Path(_scratch().name)
    paths = {
        "benchmark_root": root,
        "bddl_files": root / "bddl_files",
        "init_states": root / "init_files",
        "datasets": root.parent / "datasets",
        "assets": root / "assets",
    }
    text = "".join(f"{key}: {json.dumps(str(path))}\n" for key, path in paths.items())
    (place / "config.yaml").write_text(text)
    return str(place)
