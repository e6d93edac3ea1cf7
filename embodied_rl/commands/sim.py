"""`embodied-rl sim install <simulator>`: make a pinned Python environment for a simulator that cannot share ours."""

import os
import shlex
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from packaging.specifiers import SpecifierSet

from embodied_rl.cli.text import print_columns
from embodied_rl.config import plugins
from embodied_rl.config.freeze import suggest_name
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.simulators.installation import (
    find_folders,
    find_python_version,
    is_current,
    is_foreign,
    list_steps,
    lock_environment,
    make_environment,
)
from embodied_rl.runtime.simulators.python_environments import (
    MARK,
    Recipe,
    find_environment_folder,
    find_installed,
    find_recipe_file,
    read_recipe,
)
from embodied_rl.schema import EnvironmentConfig


def run(config: EnvironmentConfig) -> int:
    """Print the installation steps, then execute them.

    Raises:
        UserError: the simulator is unknown, its environment already exists, its licence was not accepted, the Python
            version is unsupported, or a step failed.
    """
    name, found, python = check_recipe(config)
    if config.keep and is_current(name):
        print(f"Kept: {find_environment_folder(name)}")
        return 0
    place, temporary = find_folders(name)
    steps = list_steps(found, temporary, python, config.pip)
    print_columns(describe_recipe(name, found, place, python), indent=0)
    for step in steps:
        print(f"  {shlex.join(step)}")
    sys.stdout.flush()
    if found.licence and not config.accept_licence:
        raise UserError(
            f"{name} asks you to accept a licence: {found.licence} Add accept_licence=true if you do.",
            code="licence-not-accepted",
        )
    with lock_environment(name):
        make_environment(name, steps)
    print(f"Made: {place}\nTry it: embodied-rl doctor sim={name}")
    return 0


def check_recipe(config: EnvironmentConfig) -> tuple[str, Recipe, str]:
    """Check that a simulator can be installed; return its name, recipe and interpreter."""
    having = [each for each in plugins.list_names("sims") if find_recipe_file(each) is not None]
    if len(config.words) != 2 or config.words[0] != "install":
        raise UserError(
            f"type: embodied-rl sim install <simulator>; there are {', '.join(having)}.", code="setting-invalid"
        )
    name = config.words[1]  # in full, or the beginning of exactly one name
    if name not in plugins.list_names("sims"):
        begun = [each for each in having if name and each.startswith(name)]
        if len(begun) != 1:
            raise UserError(f"unknown simulator '{name}'.{suggest_name(name, having)}", code="plugin-unknown")
        (name,) = begun
    found = read_recipe(name)
    find_installed(name)  # refuses a folder that cannot be read
    if (find_environment_folder(name) / MARK).exists() and not (config.replace or config.keep):
        raise UserError(
            f"{find_environment_folder(name)} is there already. To make it again: replace=true", code="output-exists"
        )
    if is_foreign(find_environment_folder(name)):
        raise UserError(
            f"{find_environment_folder(name)} is not a Python environment, and would be erased. "
            "Move it away, or choose another folder for environments: EMBODIED_RL_ENVIRONMENTS=<folder>",
            code="environment-folder-occupied",
        )
    return name, found, choose_python(name, SpecifierSet(found.python), config.python)


def choose_python(name: str, needed: SpecifierSet, given: str | None) -> str:
    """Return the interpreter given, or this one; where this one does not suit, the first python3.12 on PATH that does.

    Raises:
        UserError: none suits.
    """
    python = given or sys.executable
    if (version := find_python_version(python)) in needed:
        return python
    for folder in os.get_exec_path() if given is None else ():
        with suppress(UserError):  # no such file, or one that does not run, as pyenv's can be
            if find_python_version(other := os.path.join(folder, "python3.12")) in needed:
                return other
    raise UserError(
        f"{name} needs Python {needed}, but {python} is {version}. Give another: python=<path, as of python3.12>",
        code="python-version-unsupported",
    )


def plan_installation(config: EnvironmentConfig) -> list[tuple[str, str]]:
    """Check that a simulator can be installed, and return as rows of text what that would do; do nothing.

    Raises:
        UserError: see `run`; but an environment that exists or a licence that is not accepted is among the rows.
    """
    name, found, python = check_recipe(replace(config, replace=True))
    place, temporary = find_folders(name)
    rows = describe_recipe(name, found, place, python)
    if config.keep and is_current(name):
        return [*rows, ("would", "keep it: it was made with today's pins")]
    if (place / MARK).exists() and not (config.replace or config.keep):
        return [*rows, ("would", "stop: it is there already. To make it again: replace=true")]
    rows.append(("packages", " ".join(word for step in found.steps for word in step if not word.startswith("-"))))
    if found.licence and not config.accept_licence:
        rows.append(("would", "stop, until accept_licence=true says that you accept the licence"))
        return rows
    instead = ", in place of what is there" if place.exists() else ""
    steps = [shlex.join(step) for step in list_steps(found, temporary, python, config.pip)]
    return [
        *rows,
        ("would", f"run these commands, then move the result to the folder{instead}"),
        *(("", s) for s in steps),
    ]


def describe_recipe(name: str, found: Recipe, place: Path, python: str) -> list[tuple[str, str]]:
    """Return an installation's properties as rows of text."""
    rows = [("simulator", f"{name}: {found.about}"), ("folder", str(place)), ("takes", found.size)]
    rows += [("python", python)] if python != sys.executable else []
    rows += [("system", found.system)] if found.system else []
    return [*rows, ("licence", found.licence)] if found.licence else rows
