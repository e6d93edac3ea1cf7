"""Make a pinned Python environment for a simulator: the steps of its recipe, executed beside what is there.

A step that fails, or a process that is killed, leaves what worked before.
"""

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

from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.simulators.python_environments import (
    MARK,
    Recipe,
    explain_unusable,
    find_environment_folder,
    find_environments_folder,
    find_recipe_file,
)

STEP_DEADLINE = 3600.0
"""Seconds for one step; some packages are gigabytes."""


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


def list_steps(found: Recipe, place: Path, python: str, options: Sequence[str]) -> list[list[str]]:
    """Return the commands to execute, in order."""
    inside = str(place / "bin" / "python")
    steps = [[python, "-m", "venv", "--clear", str(place)]]
    steps += [[inside, "-m", "pip", "install", "--quiet", *options, *step] for step in found.steps]
    if found.remove:
        steps.append([inside, "-m", "pip", "uninstall", "--quiet", "--yes", *found.remove])
    return [*steps, [inside, "-c", f"import {', '.join(('numpy', *found.imports))}"]]


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
