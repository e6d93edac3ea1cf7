"""Content of LIBERO's package, read from files: importing it takes seconds, asks questions and requires torch."""

import io
import pickle
import re
import runpy
import zipfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.interfaces.sim import Array


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
