"""Python environments of simulators that cannot share ours, and the recipes that make them.

A distribution that offers simulators holds the recipes as `<its package>/environments/<simulator>.yaml`:

    about: description in one line
    python: ">=3.10,<3.14"            supported versions of Python
    size: disk space and installation time, for people
    steps:                            arguments of each `pip install`, in order
      - [torch==2.13.0]
      - [mani_skill==3.0.1, sapien==3.0.3]
    remove: [torchvision]             packages to uninstall afterwards
    system: required system packages, and how to install them
    licence: licence to accept, and how; empty if there is none
    imports: [mani_skill]             modules that must import in the finished environment
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from omegaconf import OmegaConf

from embodied_rl.config import plugins
from embodied_rl.config.freeze import freeze_config, suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.processes.interpreter import Interpreter
from embodied_rl.schema import SimNode


@dataclass(frozen=True)
class Recipe:
    """A recipe for a Python environment; see the module docstring for the fields."""

    about: str
    python: str
    size: str
    steps: tuple[tuple[str, ...], ...]
    imports: tuple[str, ...]
    remove: tuple[str, ...] = ()
    system: str = ""
    licence: str = ""


def find_environments_folder() -> Path:
    """Return the folder of all environments: $EMBODIED_RL_ENVIRONMENTS, or a folder in the user's data."""
    chosen = os.environ.get("EMBODIED_RL_ENVIRONMENTS")
    if chosen:
        return Path(chosen)
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return data / "embodied-rl" / "environments"


def find_environment_folder(name: str) -> Path:
    """Return the folder of a simulator's environment, which may not exist."""
    return find_environments_folder() / name


def find_installed(name: str) -> Path | None:
    """Return the interpreter of a simulator's environment; None if the environment is missing or incomplete.

    Raises:
        UserError: the folder of environments cannot be read.
    """
    python = find_environment_folder(name) / "bin" / "python"
    try:
        return python if python.exists() and (find_environment_folder(name) / MARK).exists() else None
    except OSError as error:
        raise explain_unusable(find_environments_folder(), error) from None


def explain_unusable(folder: Path, error: OSError) -> UserError:
    """Return the error for a folder of environments that cannot be read or written."""
    return UserError(
        f"{folder} cannot hold the Python environments of simulators ({error.strerror}: {error.filename}). Choose "
        "another folder: EMBODIED_RL_ENVIRONMENTS=<folder>",
        code="folder-unusable",
    )


MARK = "embodied-rl.json"
"""File with the list of installed packages, written last."""


def find_recipe_file(name: str) -> Path | None:
    """Return the path of a simulator's recipe; None if it has none."""
    package = plugins.find_path("sims", name).partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    files = [Path(place) / "environments" / f"{name}.yaml" for place in places]
    return next((file for file in files if file.is_file()), None)


def read_recipe(name: str) -> Recipe:
    """Read the recipe of a simulator's environment.

    Raises:
        UserError: the simulator does not exist, or has no recipe.
    """
    file = find_recipe_file(name)
    if file is None:
        having = [each for each in plugins.list_names("sims") if find_recipe_file(each) is not None]
        message = f"the simulator '{name}' has no recipe for a Python environment.{suggest_name(name, having)}"
        raise UserError(message, code="recipe-missing")
    content = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(content, dict), f"{file} is a mapping"
    return freeze_config(Recipe, {str(key): value for key, value in content.items()}, str(file))


def describe_remedy(name: str) -> str:
    """Return the advice to show if a package that a simulator needs is missing."""
    if find_recipe_file(name) is None:
        return "Install it, or set sim.python=<an interpreter that has it>."
    return (
        f"`embodied-rl sim install {name}` makes an environment for it; sim.python=<interpreter> uses an existing one."
    )


def find_interpreter(node: SimNode) -> Interpreter | None:
    """Return the interpreter of a simulator: `sim.python`, that of its installed environment, or None for this one.

    Raises:
        UserError: `sim.python` is not an interpreter, or `sim.pythonpath` holds other things than folders, or is set
            without `sim.python`.
    """
    for entry in node.pythonpath:
        if not Path(entry).expanduser().is_dir():
            raise UserError(f"sim.pythonpath: {entry} is not a folder.", code="folder-missing")
    paths = tuple(str(Path(entry).expanduser().absolute()) for entry in node.pythonpath)
    if node.python is not None:
        return Interpreter.find(node.python, paths, describe_remedy(node.name))
    found = find_installed(node.name)
    if found is None and paths:
        message = "sim.pythonpath is for another interpreter: set sim.python=<interpreter>, too."
        raise UserError(message, code="keys-contradict")
    return None if found is None else Interpreter(str(found), paths, describe_remedy(node.name))


def list_other_versions(node: SimNode) -> list[str]:
    """Return the packages that are installed in other versions than the simulator's recipe installs, with both.

    Nothing of that environment runs: its packages' metadata are read. If one of them is missing nothing is returned.
    """
    if find_recipe_file(node.name) is None:
        return []
    interpreter, folders = find_interpreter(node), sys.path
    if interpreter is not None:
        libraries = Path(interpreter.python).parent.parent / "lib"
        folders = [*interpreter.pythonpath, *map(str, sorted(libraries.glob("python3*/*-packages")))]
    found = list[str]()
    for word in (word for step in read_recipe(node.name).steps for word in step):
        name, _, tested = word.partition("==")
        if not tested:  # an option of pip
            continue
        package = next(iter(metadata.distributions(name=name.partition("[")[0], path=folders)), None)
        if package is None or package.read_text("METADATA") is None:  # not installed, or a rest of it without metadata
            return []
        installed = package.version
        if installed.partition("+")[0] != tested:
            found.append(f"{name.partition('[')[0]} {installed} (tested: {tested})")
    return found
