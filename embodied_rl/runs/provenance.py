"""Provenance of a run: source, packages, hardware and command line."""

import hashlib
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import write_text

FILE = "provenance.json"
"""In a run's folder."""

NOTED_PACKAGES = ("embodied-rl", "torch", "numpy", "mujoco", "safetensors", "transformers")
"""Packages that a report lists; the file of a run lists all."""
_GIT_SECONDS = 10
_CPU_ID = {"family": "cpu family", "model": "model", "stepping": "stepping"}
_PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Provenance:
    """The information needed to reproduce a run.

    Attributes:
        commit: commit of the source tree of this package; None for an installed wheel.
        dirty: whether tracked files differed from that commit; the difference is in `git.diff`.
        packages: distribution → version of all installed distributions.
        hardware: cores, cpu, memory in GiB, operating system, and accelerators if any.
        command: the command line as typed, quoted for a shell.
        started: UTC, ISO 8601.
        load: load averages of the machine over 1, 5 and 15 minutes when the process began; None if the system does not
            report them.
    """

    commit: str | None
    dirty: bool
    python: str
    packages: dict[str, str]
    hardware: dict[str, str | int | float]
    command: str
    started: str
    load: list[float] | None = None


def gather_provenance(source: Path = _PACKAGE) -> tuple[Provenance, str]:
    """Return the provenance of this process and the git diff of the source tree ("" if there is none)."""
    commit, difference = read_git_state(source)
    packages, command = dict(list_package_versions()), describe_command()
    machine = (platform.python_version(), packages, describe_hardware())
    return Provenance(commit, bool(difference), *machine, command, current_time(), measure_load()), difference


def write_provenance(folder: Path, source: Path = _PACKAGE) -> Provenance:
    """Write `provenance.json` and, if the source tree has changes, `git.diff` into a run folder."""
    provenance, difference = gather_provenance(source)
    write_text(folder / FILE, json.dumps(asdict(provenance), indent=2) + "\n")
    if difference:
        write_text(folder / "git.diff", difference)
    return provenance


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read a run folder's provenance, empty if there is none; raise `UserError` if it is damaged."""
    file = folder / FILE
    try:
        content = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        if not isinstance(content, dict):
            raise TypeError(f"a {type(content).__name__} instead of a dictionary")
    except (ValueError, TypeError) as error:
        raise UserError(f"{file} is damaged: {error}. Remove it to continue.", code="provenance-damaged") from error
    return content


def select_for_report(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a provenance that reports publish: and of the packages only `NOTED_PACKAGES`."""
    names = ("commit", "dirty", "python", "hardware", "command", "started", "load", "notes")
    packages = content.get("packages") or {}
    listed = {name: packages[name] for name in NOTED_PACKAGES if name in packages}
    return {name: content[name] for name in names if name in content} | {"packages": listed}


def describe_command() -> str:
    """Return this process's command line as it was typed, quoted for a shell."""
    program, *words = sys.argv
    path = Path(program)
    name = f"python -m {path.parent.name}" if path.name == "__main__.py" else path.name
    return " ".join([name, *map(shlex.quote, words)])


def current_time() -> str:
    """Return the present time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def measure_load() -> list[float] | None:
    """Return the machine's load averages over 1, 5 and 15 minutes; None if the system does not report them."""
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except (OSError, AttributeError):  # Windows has no such function
        return None


def add_note(folder: Path, text: str) -> None:
    """Add a note to a run folder's provenance, with the time, this command line and the commit, under "notes".

    Raises:
        UserError: the file is damaged.
    """
    file = folder / FILE
    content = read_provenance(folder)
    try:
        notes = [*content.get("notes", ())]
    except TypeError as error:
        raise UserError(f"{file} is damaged: {error}. Remove it to continue.", code="provenance-damaged") from error
    commit = read_git_state(_PACKAGE)[0]
    notes.append({"time": current_time(), "note": text, "command": describe_command(), "commit": commit})
    write_text(file, json.dumps({**content, "notes": notes}, indent=2) + "\n")


def read_git_state(source: Path) -> tuple[str | None, str]:
    """Return (commit, diff) of the git repository that tracks `source`; (None, "") if no repository does."""
    # An installed package can lie in the ignored .venv of another repository, which is not its source.
    if not _git(source, "ls-files", "--", "."):
        return None, ""
    commit = _git(source, "rev-parse", "HEAD")
    return (commit.strip(), _git(source, "diff", "HEAD") or "") if commit else (None, "")


@cache
def list_package_versions() -> dict[str, str]:
    """Return distribution → version of all installed distributions, sorted by name; read once in a process."""
    described = [item.metadata for item in metadata.distributions()]
    found = {str(each["Name"]): str(each["Version"]) for each in described if each["Name"]}
    return dict(sorted(found.items(), key=lambda entry: entry[0].lower()))


def hash_sources(packages: Sequence[str]) -> dict[str, str]:
    """Return package → a hash of the names and content of its Python files; missing packages are left out."""
    hashes: dict[str, str] = {}
    for package in sorted(set(packages)):
        if (spec := find_spec(package)) is None:
            continue
        digest = hashlib.sha256()
        for folder in map(Path, spec.submodule_search_locations or ()):
            for file in sorted(folder.rglob("*.py")):
                name, content = file.relative_to(folder).as_posix().encode(), file.read_bytes()
                digest.update(b"%d %s %d " % (len(name), name, len(content)) + content)
        hashes[package] = digest.hexdigest()[:16]
    return hashes


def count_cores() -> int:
    """Return the number of cores this process may use, or of all cores if the system does not report it."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe_hardware() -> dict[str, str | int | float]:
    """Return the cores this process may use, the CPU, memory, system, and accelerators (if torch is loaded).

    Two processors can have one name and give other bits: `cpu_id` has maker, family, model and stepping, on Linux.
    """
    file = Path("/proc/cpuinfo")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    entries = [line.partition(":") for line in reversed(lines)]  # the first core's stay
    cpu = {name.strip(): value.strip() for name, _, value in entries}
    found: dict[str, str | int | float] = {
        "cores": count_cores(),
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "system": platform.platform(),
    }
    if "vendor_id" in cpu:
        parts = (f"{name} {cpu.get(key, '?')}" for name, key in _CPU_ID.items())
        found["cpu_id"] = " ".join((cpu["vendor_id"], *parts))
    if "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {}):
        found["memory_gib"] = round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        found["accelerator"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return found


def _git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command, or None if git is missing, fails or takes too long."""
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
