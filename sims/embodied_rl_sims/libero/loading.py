"""Importing LIBERO's package without its questions and downloads."""

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
from embodied_rl_sims.libero import assets, package

DRIVERS = {"egl": "libegl1 and libgl1-mesa-dri, or the graphics card's own", "osmesa": "libosmesa6"}
"""Renderer → what Debian and Ubuntu call its driver."""


@contextmanager
def explain_driver_errors(renderer: str, *failures: type[Exception]) -> Iterator[None]:
    """Within it, what a missing driver raises becomes a message about it.

    Raises:
        Unavailable: something of `failures` was raised.
    """
    try:
        yield
    except ModuleNotFoundError:
        raise
    except failures as error:
        raise Unavailable(
            f"nothing can be drawn with sim.renderer={renderer} here: {error}. "
            f"Install its driver ({DRIVERS[renderer]}), or choose another: "
            f"sim.renderer={choose_other_renderer(renderer)}."
        ) from error


def choose_other_renderer(renderer: str) -> str:
    """The renderer that is left when one does not work."""
    return next(name for name in DRIVERS if name != renderer)


def load_package(renderer: str, place: Path) -> ModuleType:
    """The package's module of environments, which will draw with `renderer` and take its assets from `place`.

    Raises:
        UserError: this process draws with another OpenGL already.
        Unavailable: the renderer's driver is not installed.
    """
    if "robosuite" not in sys.modules:
        os.environ["MUJOCO_GL"] = os.environ["PYOPENGL_PLATFORM"] = renderer
    elif os.environ.get("MUJOCO_GL") != renderer:
        raise UserError(f"sim.renderer={renderer}: this process draws with {os.environ.get('MUJOCO_GL')} already.")
    with explain_driver_errors(renderer, ImportError, AttributeError):
        _import_robosuite()
    libero = _import_quietly()
    vars(libero)["_assets_path_cache"] = str(place)  # what get_assets_path returns instead of a download
    return import_module("libero.libero.envs")


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="libero_config_")


def _import_quietly() -> ModuleType:
    """`import libero.libero` asks for a folder on the terminal unless there is a configuration; the user's is kept."""
    before = os.environ.get("LIBERO_CONFIG_PATH")
    if assets.read_user_config() is None:
        os.environ["LIBERO_CONFIG_PATH"] = _write_config()
    libero = import_module("libero.libero")
    if before is None:
        os.environ.pop("LIBERO_CONFIG_PATH", None)
    else:
        os.environ["LIBERO_CONFIG_PATH"] = before
    return libero


def _import_robosuite() -> None:
    """Without its log, a file in /tmp that nobody but whoever ran robosuite first on this machine may write to."""
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
    """A configuration with the package's own paths, in a folder that lasts as long as the process."""
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
