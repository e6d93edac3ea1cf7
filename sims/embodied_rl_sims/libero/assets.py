"""LIBERO's assets: their folder, and the files that a suite needs. Without imports of LIBERO or downloads."""

import hashlib
import os
import re
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree

from embodied_rl.interfaces.sim import Unavailable
from embodied_rl_sims.libero import package

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
    places = [Path.home() / ".cache" / "libero" / "assets", package.find_benchmark_folder() / "assets"]
    config = read_user_config()
    named = re.search(r"^assets:\s*['\"]?(.+?)['\"]?\s*$", config.read_text(), re.MULTILINE) if config else None
    if named:
        places.append(Path(named.group(1)))
    return next((place for place in reversed(places) if place.is_dir()), places[0])


def list_missing(suite: str, place: Path) -> list[str]:
    """List the files that a suite's tasks need and `place` lacks, as paths within it."""
    needed: set[str] = set()
    for problem in package.list_problems(suite):
        needed.update(_scene_files(problem.bddl.read_text()))
    lacking = {name for name in needed if not (place / name).is_file()}
    for name in needed - lacking:
        if name.endswith(".xml"):
            lacking.update(_absent_references(place, place / name))
    return sorted(lacking)


def require_assets(suite: str, place: Path) -> None:
    """Check that all assets of a suite exist.

    Raises:
        Unavailable: some assets are missing.
    """
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
    source = (package.find_benchmark_folder() / "envs" / "problems" / f"{domain.group(1).lower()}.py").read_text()
    styles = runpy.run_path(str(package.find_benchmark_folder() / "envs" / "arenas" / "style.py"))["STYLE_MAPPING"]
    textures = [styles[part][style] for part, style in re.findall(r'"(floor|wall)_style":\s*"([\w-]+)"', source)]
    arenas = re.findall(r'"(scenes/\w+\.xml)"', source)
    return {*(known[kind] for kind in kinds), *arenas, *(f"textures/{name}" for name in textures)}


def _object_files() -> dict[str, str]:
    """Return object kind, as named in bddl files → path of its description within the assets."""
    found = {}
    for module, pattern in _OBJECTS.items():
        source = (package.find_benchmark_folder() / "envs" / "objects" / f"{module}.py").read_text()
        for block in re.split(r"^class ", source, flags=re.MULTILINE)[1:]:
            model = re.search(r'obj_name="(\w+)"', block)
            if model:
                kind = "_".join(re.findall(r"[A-Z0-9][^A-Z0-9]*", block.split("(")[0])).lower()
                found[kind] = pattern.format(model.group(1))
    return found


def _absent_references(place: Path, description: Path) -> set[str]:
    """Return meshes and textures that an existing description refers to but that do not exist."""
    named = (element.get("file") for element in ElementTree.parse(description).iter())
    files = [description.parent / name for name in named if name]
    return {os.path.relpath(file, place) for file in files if not file.is_file()}
