"""Python environments of simulators that cannot share ours: how each is made, and where it lies.

A distribution that offers simulators says in `<its package>/environments/<simulator>.yaml` how to make one:

    about: what it is, in a line
    python: ">=3.10,<3.14"            versions of Python that it runs on
    size: disk it takes, and how long it takes, for people
    steps:                            arguments of `pip install`, in turn
      - [torch==2.13.0]
      - [mani_skill==3.0.1, sapien==3.0.3]
    remove: [torchvision]             packages that have to go again
    system: what the operating system has to bring, and how
    licence: what has to be accepted, and how; empty where nothing is
    imports: [mani_skill]             what has to import once it is made
"""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from omegaconf import OmegaConf

from embodied_rl.config import plugins
from embodied_rl.config.freeze import freeze_config, suggest_name
from embodied_rl.config.schema import SimNode
from embodied_rl.interfaces.errors import UserError
from embodied_rl.processes.interpreter import Interpreter


@dataclass(frozen=True)
class Recipe:
    """How an environment is made; see the module."""

    about: str
    python: str
    size: str
    steps: tuple[tuple[str, ...], ...]
    imports: tuple[str, ...]
    remove: tuple[str, ...] = ()
    system: str = ""
    licence: str = ""


def find_environments_folder() -> Path:
    """The folder of all environments: $EMBODIED_RL_ENVIRONMENTS, or among the user's data."""
    chosen = os.environ.get("EMBODIED_RL_ENVIRONMENTS")
    if chosen:
        return Path(chosen)
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return data / "embodied-rl" / "environments"


def find_environment_folder(name: str) -> Path:
    """Where the environment of a simulator lies, or would lie."""
    return find_environments_folder() / name


def find_installed(name: str) -> Path | None:
    """The interpreter of a simulator's environment; None where it has not been made, or not been finished."""
    python = find_environment_folder(name) / "bin" / "python"
    return python if python.exists() and (find_environment_folder(name) / MARK).exists() else None


MARK = "embodied-rl.json"
"""Written last, with what was installed."""


def find_recipe_file(name: str) -> Path | None:
    """Where a simulator's recipe lies; None where it has none."""
    package = plugins.find_path("sims", name).partition(":")[0].partition(".")[0]
    spec = importlib.util.find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    files = [Path(place) / "environments" / f"{name}.yaml" for place in places]
    return next((file for file in files if file.is_file()), None)


def read_recipe(name: str) -> Recipe:
    """How the environment of a simulator is made.

    Raises:
        UserError: no such simulator, or it needs none.
    """
    file = find_recipe_file(name)
    if file is None:
        having = [each for each in plugins.list_names("sims") if find_recipe_file(each) is not None]
        raise UserError(f"the simulator '{name}' needs no environment of its own.{suggest_name(name, having)}")
    content = OmegaConf.to_container(OmegaConf.load(file))
    assert isinstance(content, dict), f"{file} is a mapping"
    return freeze_config(Recipe, {str(key): value for key, value in content.items()}, str(file))


def describe_remedy(name: str) -> str:
    """What to do where a package that a simulator needs is missing."""
    if find_recipe_file(name) is None:
        return "Install it, or give sim.python=<an interpreter that has it>."
    return (
        f"`embodied-rl sim install {name}` makes an environment for it; "
        "sim.python=<interpreter> takes one that you have."
    )


def find_interpreter(node: SimNode) -> Interpreter | None:
    """The environment that a simulator lives in: the one given, the one that was made for it, or None for this one.

    Raises:
        UserError: `sim.python` is no interpreter, or `sim.pythonpath` has no folder.
    """
    for entry in node.pythonpath:
        if not Path(entry).expanduser().is_dir():
            raise UserError(f"sim.pythonpath: {entry} is not a folder.")
    paths = tuple(str(Path(entry).expanduser().absolute()) for entry in node.pythonpath)
    if node.python is not None:
        return Interpreter.find(node.python, paths, describe_remedy(node.name))
    found = find_installed(node.name)
    if found is None and paths:
        raise UserError("sim.pythonpath is for another interpreter: give sim.python=<interpreter> with it.")
    return None if found is None else Interpreter(str(found), paths, describe_remedy(node.name))
