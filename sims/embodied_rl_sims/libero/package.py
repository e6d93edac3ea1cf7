"""Content and assets of LIBERO's package, read from files: importing it takes seconds, and asks questions."""

import hashlib
import io
import os
import pickle
import re
import runpy
import sys
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from embodied_rl.interfaces.sim import Array, Unavailable


@dataclass(frozen=True)
class Problem:
    """One task as the package describes it.

    Attributes:
        name: name of the task and of its files.
        instruction: goal in natural language.
        bddl: file of its scene and goal.
        states: file of its initial states.
    """

    name: str
    instruction: str
    bddl: Path
    states: Path


def find_benchmark_folder() -> Path:
    """Find the folder that holds LIBERO's benchmark.

    Raises:
        ModuleNotFoundError: the package is not installed here.
    """
    found = find_spec("libero")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'libero'", name="libero")
    return Path(found.submodule_search_locations[0]) / "libero"


def list_problems(suite: str) -> tuple[Problem, ...]:
    """List a suite's tasks in the benchmark's order, which is the order of its task map (`task_order_index=0`)."""
    names = runpy.run_path(str(find_benchmark_folder() / "benchmark" / "libero_suite_task_map.py"))["libero_task_map"][
        suite
    ]
    bddl, states = find_benchmark_folder() / "bddl_files" / suite, find_benchmark_folder() / "init_files" / suite
    return tuple(
        Problem(name, make_instruction(name), bddl / f"{name}.bddl", states / f"{name}.pruned_init") for name in names
    )


def make_instruction(task: str) -> str:
    """Return a task's instruction; like the benchmark, take it from the task's name, not from its bddl file."""
    return re.sub(r"^[A-Z].*?SCENE\d+_", "", task).replace("_", " ")


def read_objects_of_interest(bddl: Path) -> tuple[str, ...]:
    """Read the names of the objects that the goal refers to."""
    found = re.search(r"\(:obj_of_interest\s+([^)]*)\)", bddl.read_text())
    return tuple(found.group(1).split()) if found else ()


def read_initial_states(path: Path) -> Array:
    """Read the official initial states, float64 [count, time and positions and velocities].

    The file is a torch archive that contains one NumPy array. It is read without torch; the reader creates only arrays,
    even from an untrusted file.

    Raises:
        pickle.UnpicklingError: the file contains something else.
    """
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        return np.asarray(_ArrayUnpickler(io.BytesIO(archive.read(name))).load(), np.float64)


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {("numpy", "ndarray"), ("numpy", "dtype")}:
            return getattr(np, name)
        if module in {"numpy.core.multiarray", "numpy._core.multiarray"} and name == "_reconstruct":
            return _empty_array
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"initial states hold {module}.{name}; only a NumPy array is read")


def _empty_array(kind: type, shape: tuple[int, ...], code: bytes) -> Array:
    return np.ndarray.__new__(kind, shape, code.decode() if isinstance(code, bytes) else code)


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding)


_DOWNLOAD = "from libero.libero.utils.download_utils import download_assets_from_huggingface as get; get()"
REMEDY = (
    "Download them with the package's own command (answer n where it asks for a folder of datasets), "
    f"{sys.executable} -c '{_DOWNLOAD}', or give a folder that has them: sim.assets=<folder>"
)
_OBJECTS = {
    "articulated_objects": "articulated_objects/{0}.xml",
    "google_scanned_objects": "stable_scanned_objects/{0}/{0}.xml",
    "hope_objects": "stable_hope_objects/{0}/{0}.xml",
    "turbosquid_objects": "turbosquid_objects/{0}/{0}.xml",
}
"""Module of the package's `envs.objects` → folder of its classes' assets."""


def read_user_config() -> Path | None:
    """Return the path of the user's own LIBERO configuration; None if it does not exist."""
    folder = os.environ.get("LIBERO_CONFIG_PATH", os.path.expanduser("~/.libero"))
    found = Path(folder) / "config.yaml"
    return found if found.is_file() else None


def find_assets_folder(chosen: str | None) -> Path:
    """Return the assets folder, whether or not it exists.

    Args:
        chosen: `sim.assets`; if None, the folder in LIBERO's configuration, the package's own folder, or the package's
            download folder, in this order.
    """
    if chosen is not None:
        return Path(chosen).expanduser()
    places = [Path.home() / ".cache" / "libero" / "assets", find_benchmark_folder() / "assets"]
    config = read_user_config()
    named = re.search(r"^assets:\s*['\"]?(.+?)['\"]?\s*$", config.read_text(), re.MULTILINE) if config else None
    if named:
        places.append(Path(named.group(1)))
    return next((place for place in reversed(places) if place.is_dir()), places[0])


def list_missing(suite: str, place: Path) -> list[str]:
    """List the files that a suite's tasks need and `place` lacks, as paths within it.

    These include the meshes and textures that an existing description refers to.
    """
    needed: set[str] = set()
    for problem in list_problems(suite):
        needed.update(_scene_files(problem.bddl.read_text()))
    lacking = {name for name in needed if not (place / name).is_file()}
    for name in needed - lacking:
        if name.endswith(".xml"):
            named = (element.get("file") for element in ElementTree.parse(place / name).iter())
            files = [(place / name).parent / file for file in named if file]
            lacking.update(os.path.relpath(file, place) for file in files if not file.is_file())
    return sorted(lacking)


def require_assets(suite: str, place: Path) -> None:
    """Check that all assets of a suite exist. Raises `Unavailable`: some assets are missing."""
    lacking = list_missing(suite, place)
    if lacking:
        first = ", ".join(lacking[:3]) + (", …" if len(lacking) > 3 else "")
        raise Unavailable(
            f"{suite} lacks at least {len(lacking)} files of LIBERO's assets in {place}: {first}. {REMEDY}."
        )


def hash_files(files: Iterable[Path], base: Path) -> str:
    """Compute the sha256 over files' names within `base` and their content, in the order of their names."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(f"{path.relative_to(base).as_posix()}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def _scene_files(bddl: str) -> set[str]:
    """Return the files of a task's scene: its objects, its arena, and the arena's floor and wall."""
    known = _object_files()
    kinds = set(re.findall(r"-\s+(\w+)", bddl)) & set(known)
    domain = re.search(r"\(problem\s+(\w+)", bddl)
    assert domain is not None
    source = (find_benchmark_folder() / "envs" / "problems" / f"{domain.group(1).lower()}.py").read_text()
    styles = runpy.run_path(str(find_benchmark_folder() / "envs" / "arenas" / "style.py"))["STYLE_MAPPING"]
    textures = [styles[part][style] for part, style in re.findall(r'"(floor|wall)_style":\s*"([\w-]+)"', source)]
    arenas = re.findall(r'"(scenes/\w+\.xml)"', source)
    return {*(known[kind] for kind in kinds), *arenas, *(f"textures/{name}" for name in textures)}


def _object_files() -> dict[str, str]:
    """Return object kind, as named in bddl files → path of its description within the assets."""
    found = {}
    for module, pattern in _OBJECTS.items():
        source = (find_benchmark_folder() / "envs" / "objects" / f"{module}.py").read_text()
        for block in re.split(r"^class ", source, flags=re.MULTILINE)[1:]:
            model = re.search(r'obj_name="(\w+)"', block)
            if model:
                kind = "_".join(re.findall(r"[A-Z0-9][^A-Z0-9]*", block.split("(")[0])).lower()
                found[kind] = pattern.format(model.group(1))
    return found
