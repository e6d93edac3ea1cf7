"""Installation of the pinned Python environment of a simulator, by the steps of its recipe.

The steps run in a temporary folder, so that an earlier environment stays if a step fails or the process is killed.
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


def find_folders(name: str) -> tuple[Path, Path]:
    """Return the folder of a simulator's environment, and the temporary folder in which a new one is made."""
    place = find_environment_folder(name)
    return place, place.with_name(f".{name}.new")


@contextmanager
def lock_environment(name: str) -> Iterator[None]:
    """Lock this environment against other processes that make it; the lock ends with the process.

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
            message = f"another `embodied-rl sim install {name}` runs in {folder}: wait for it."
            raise UserError(message, code="environment-locked") from None
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
    """Execute the steps in the temporary folder, then replace the environment by the result.

    Raises:
        UserError: a step failed; the message holds its last output.
    """
    place, staging = find_folders(name)
    clean_up(place, staging)
    try:
        for step in steps:
            execute_step(step)
        write_mark(staging, name)
        for file in (staging / "bin").iterdir():  # the scripts that pip makes contain the path of their interpreter
            if not file.is_symlink() and file.is_file() and bytes(staging) in (content := file.read_bytes()):
                file.write_bytes(content.replace(bytes(staging), bytes(place)))
        if place.exists():
            place.rename(backup_folder(staging))
        staging.rename(place)
    finally:
        clean_up(place, staging)


def clean_up(place: Path, staging: Path) -> None:
    """Delete the temporary folders of a killed process, and restore an environment that it had moved away."""
    old = backup_folder(staging)
    if old.exists() and not place.exists():
        old.rename(place)
    for each in (staging, old):
        shutil.rmtree(each, ignore_errors=True)


def backup_folder(staging: Path) -> Path:
    return staging.with_suffix(".old")


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
        raise UserError(f"no end after {STEP_DEADLINE:g} s: {shlex.join(step)}", code="install-step-failed") from None
    finally:
        os.close(theirs)
        os.close(ours)
    if done.returncode:
        output = "\n".join(errors.strip().splitlines()[-15:])
        raise UserError(f"exit code {done.returncode} of: {shlex.join(step)}\n{output}", code="install-step-failed")


def write_mark(place: Path, name: str) -> None:
    """Write the mark file with the installed packages; an environment without it is not finished."""
    frozen = subprocess.run(
        [str(place / "bin" / "python"), "-m", "pip", "freeze"], capture_output=True, text=True, timeout=120, check=True
    )
    content = {
        "simulator": name,
        "recipe": hash_recipe(name),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "packages": frozen.stdout.split("\n")[:-1],
    }
    (place / MARK).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


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
        UserError: `python` is not a Python interpreter.
    """
    if python == sys.executable:
        return platform.python_version()
    code = "import platform; print(platform.python_version())"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError(f"python={python} is not a Python interpreter ({error}).", code="interpreter-invalid") from None
    return done.stdout.strip()
