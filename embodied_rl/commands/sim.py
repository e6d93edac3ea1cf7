"""`embodied-rl sim install <simulator>`: make a pinned Python environment for a simulator that cannot share ours."""

import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from embodied_rl.cli.text import print_columns
from embodied_rl.config import plugins
from embodied_rl.config.freeze import suggest_name
from embodied_rl.config.schema import EnvironmentConfig
from embodied_rl.interfaces.errors import UserError
from embodied_rl.simulators.python_environments import (
    MARK,
    Recipe,
    explain_unusable,
    find_environment_folder,
    find_environments_folder,
    find_installed,
    find_recipe_file,
    read_recipe,
)

STEP_DEADLINE = 3600.0
"""Seconds for one step; some packages are gigabytes."""


def run(config: EnvironmentConfig) -> int:
    """Print the installation steps, then execute them.

    Raises:
        UserError: the simulator is unknown, its environment already exists, its licence was not accepted, the Python
            version is unsupported, or a step failed.
    """
    name, found = check_recipe(config)
    if config.keep and is_current(name):
        print(f"Kept: {find_environment_folder(name)}")
        return 0
    place, beside, python = *find_places(name), config.python or sys.executable
    steps = list_steps(found, beside, python, config.pip)
    print_steps(name, found, place, steps)
    if found.licence and not config.accept_licence:
        raise UserError(f"{name} asks you to accept a licence: {found.licence} Add accept_licence=true if you do.")
    with lock_environment(name):
        make_environment(name, steps)
    print(f"Made: {place}\nTry it: embodied-rl doctor sim={name}")
    return 0


def find_places(name: str) -> tuple[Path, Path]:
    """Return the folder of a simulator's environment, and the folder beside it that a new one is made in."""
    place = find_environment_folder(name)
    return place, place.with_name(f".{name}.new")


@contextmanager
def lock_environment(name: str) -> Iterator[None]:
    """Keep others from making this environment at the same time; the lock ends with the process.

    Raises:
        UserError: another process is making it, or the folder of environments cannot be written.
    """
    folder = find_environments_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / f".{name}.lock").open("w")
    except OSError as error:
        raise explain_unusable(folder, error) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another `embodied-rl sim install {name}` is at work in {folder}: wait for it.") from None
        yield


def check_recipe(config: EnvironmentConfig) -> tuple[str, Recipe]:
    """Check that a simulator can be installed; return its name and recipe.

    Raises:
        UserError: see `run`.
    """
    having = [each for each in plugins.list_names("sims") if find_recipe_file(each) is not None]
    if len(config.words) != 2 or config.words[0] != "install":
        raise UserError(f"type: embodied-rl sim install <simulator>; there are {', '.join(having)}.")
    name = find_full_name(config.words[1], having)
    found = read_recipe(name)
    find_installed(name)  # refuses a folder that cannot be read
    if (find_environment_folder(name) / MARK).exists() and not (config.replace or config.keep):
        raise UserError(f"{find_environment_folder(name)} is there already. To make it anew: replace=true")
    if is_foreign(find_environment_folder(name)):
        raise UserError(
            f"{find_environment_folder(name)} holds something that is no Python environment, and would be erased. "
            "Move it away, or choose another folder for environments: EMBODIED_RL_ENVIRONMENTS=<folder>"
        )
    version = find_python_version(config.python or sys.executable)
    if version not in SpecifierSet(found.python):
        raise UserError(
            f"{name} needs Python {found.python}, but {config.python or sys.executable} is {version}. "
            "Give another: python=<interpreter>"
        )
    return name, found


def find_full_name(word: str, having: Sequence[str]) -> str:
    """Return the simulator's full name for a word: the name itself, or the beginning of exactly one name.

    Raises:
        UserError: no name, or more than one, begins with the word.
    """
    if word in plugins.list_names("sims"):
        return word
    begun = [name for name in having if word and name.startswith(word)]
    if len(begun) != 1:
        raise UserError(f"unknown simulator '{word}'.{suggest_name(word, list(having))}")
    return begun[0]


def list_steps(found: Recipe, place: Path, python: str, options: Sequence[str]) -> list[list[str]]:
    """Return the commands to execute, in order."""
    inside = str(place / "bin" / "python")
    steps = [[python, "-m", "venv", "--clear", str(place)]]
    steps += [[inside, "-m", "pip", "install", "--quiet", *options, *step] for step in found.steps]
    if found.remove:
        steps.append([inside, "-m", "pip", "uninstall", "--quiet", "--yes", *found.remove])
    return [*steps, [inside, "-c", f"import {', '.join(('numpy', *found.imports))}"]]


def plan_installation(config: EnvironmentConfig) -> list[tuple[str, str]]:
    """Check that a simulator can be installed, and return as rows of text what that would do; do nothing.

    Raises:
        UserError: see `run`; but a licence that is not accepted is among the rows.
    """
    name, found = check_recipe(config)
    place, beside, python = *find_places(name), config.python or sys.executable
    rows = describe_recipe(name, found, place)
    if config.keep and is_current(name):
        return [*rows, ("would", "keep it: it was made with today's pins")]
    rows.append(("packages", " ".join(word for step in found.steps for word in step if not word.startswith("-"))))
    if found.licence and not config.accept_licence:
        rows.append(("would", "stop, until accept_licence=true says that you accept the licence"))
        return rows
    instead = ", in place of what is there" if place.exists() else ""
    steps = [shlex.join(step) for step in list_steps(found, beside, python, config.pip)]
    return [
        *rows,
        ("would", f"run these commands, then move the result to the folder{instead}"),
        *(("", s) for s in steps),
    ]


def describe_recipe(name: str, found: Recipe, place: Path) -> list[tuple[str, str]]:
    """Return an installation's properties as rows of text."""
    rows = [("simulator", f"{name}: {found.about}"), ("folder", str(place)), ("takes", found.size)]
    rows += [("system", found.system)] if found.system else []
    return [*rows, ("licence", found.licence)] if found.licence else rows


def print_steps(name: str, found: Recipe, place: Path, steps: Sequence[Sequence[str]]) -> None:
    """Print the installation's properties and steps before they are executed."""
    print_columns(describe_recipe(name, found, place), indent=0)
    for step in steps:
        print(f"  {shlex.join(step)}")
    sys.stdout.flush()


def make_environment(name: str, steps: Sequence[Sequence[str]]) -> None:
    """Execute the steps beside the environment, and put the result in its place; if one fails, leave what was there.

    Raises:
        UserError: a step failed; the message holds its last output.
    """
    place, beside = find_places(name)
    clear_remains(place, beside)
    try:
        for step in steps:
            execute_step(step)
        write_mark(beside, name)
        rename_within(beside / "bin", beside, place)
        swap_folders(beside, place)
    finally:
        clear_remains(place, beside)


def rename_within(folder: Path, old: Path, new: Path) -> None:
    """Write another path into the scripts of a folder: those that pip makes name their interpreter."""
    for file in folder.iterdir():
        if file.is_symlink() or not file.is_file():
            continue
        content = file.read_bytes()
        if bytes(old) in content:
            file.write_bytes(content.replace(bytes(old), bytes(new)))


def swap_folders(new: Path, place: Path) -> None:
    """Put a folder in the place of another, which may be missing, and erase the other."""
    old = name_old(new)
    if place.exists():
        place.rename(old)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def clear_remains(place: Path, beside: Path) -> None:
    """Erase what a process that was killed has left; what it had moved away from its place is put back."""
    old = name_old(beside)
    if old.exists() and not place.exists():
        old.rename(place)
    for each in (beside, old):
        shutil.rmtree(each, ignore_errors=True)


def name_old(beside: Path) -> Path:
    return beside.with_suffix(".old")


_WATCH = """
import os, signal, subprocess, sys, threading

def end_with_parent():
    os.read(0, 1)
    os.killpg(0, signal.SIGKILL)

threading.Thread(target=end_with_parent, daemon=True).start()
code = subprocess.call(sys.argv[1:], stdin=subprocess.DEVNULL)
sys.stdout.flush()
os._exit(code if code >= 0 else 128 - code)
"""
"""Run a command in a process group that ends when standard input does, that is, when the process that holds it ends."""


def execute_step(step: Sequence[str]) -> None:
    """Execute one step, without standard input. All its processes end with this one, even if it is killed.

    Raises:
        UserError: the step failed, or took longer than `STEP_DEADLINE`.
    """
    theirs, ours = os.pipe()
    command = [sys.executable, "-I", "-c", _WATCH, *step]
    keys: dict[str, Any] = {"text": True, "errors": "replace", "start_new_session": True}
    try:
        with subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE, **keys) as done:
            try:
                _, errors = done.communicate(timeout=STEP_DEADLINE)
            except BaseException:
                os.killpg(done.pid, signal.SIGKILL)
                raise
    except subprocess.TimeoutExpired:
        raise UserError(f"no end after {STEP_DEADLINE:g} s: {shlex.join(step)}") from None
    finally:
        os.close(theirs)
        os.close(ours)
    if done.returncode:
        said = "\n".join(errors.strip().splitlines()[-15:])
        raise UserError(f"exit code {done.returncode} of: {shlex.join(step)}\n{said}")


def write_mark(place: Path, name: str) -> None:
    """Write the mark file with the installed packages; an environment without it is not finished."""
    frozen = subprocess.run(
        [str(place / "bin" / "python"), "-m", "pip", "freeze"], capture_output=True, text=True, timeout=120, check=True
    )
    noted = {
        "simulator": name,
        "recipe": hash_recipe(name),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": frozen.stdout.split("\n")[:-1],
    }
    (place / MARK).write_text(json.dumps(noted, indent=1) + "\n", encoding="utf-8")


def is_foreign(place: Path) -> bool:
    """Return whether the place exists with other content than a Python environment."""
    ours = (place / MARK, place / "pyvenv.cfg")
    return place.exists() and not any(each.exists() for each in ours) and (place.is_file() or any(place.iterdir()))


def is_current(name: str) -> bool:
    """Return whether an environment exists that was made from the current recipe."""
    mark = find_environment_folder(name) / MARK
    return mark.exists() and json.loads(mark.read_text(encoding="utf-8")).get("recipe") == hash_recipe(name)


def hash_recipe(name: str) -> str:
    """Return the hash of the current recipe; an environment with another hash was made from other pins."""
    file = find_recipe_file(name)
    return "" if file is None else hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def find_python_version(python: str) -> str:
    """Return an interpreter's version, such as 3.11.2.

    Raises:
        UserError: it is no Python interpreter.
    """
    if python == sys.executable:
        return platform.python_version()
    code = "import platform; print(platform.python_version())"
    try:
        said = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"python={python}: this is no Python interpreter ({error}).") from None
    return said.stdout.strip()
