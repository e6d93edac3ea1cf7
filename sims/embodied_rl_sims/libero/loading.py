"""Import LIBERO's package without interactive questions and downloads."""

import json
import os
import sys
import tempfile
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from embodied_rl_sims.libero import package
from embodied_rl_sims.opengl import explain_driver_errors, set_renderer


def load_package(renderer: str, place: Path) -> ModuleType:
    """Import the package's module of environments; set its renderer, and `place` as its assets folder.

    Raises:
        UserError: this process already renders with another OpenGL.
        Unavailable: the renderer's driver is not installed.
    """
    set_renderer(renderer, loaded="robosuite" in sys.modules)
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "0").replace(",", "").isdigit():  # robosuite reads only numbers there
        os.environ.setdefault("MUJOCO_EGL_DEVICE_ID", "0")
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
