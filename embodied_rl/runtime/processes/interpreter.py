"""Other Python environments for workers; our packages need not be installed there."""

import importlib.util
import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from embodied_rl.interfaces.errors import UserError

ROOT_PACKAGE = "embodied_rl"
_OWN_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Environment variables that apply to this interpreter only."""


@dataclass(frozen=True)
class Interpreter:
    """A Python environment other than the current one.

    Attributes:
        python: path of its interpreter.
        pythonpath: further folders that it imports from. This process's PYTHONPATH is not passed on, because it is for
            another Python.
        remedy: advice for error messages where a package is missing in that environment.
    """

    python: str
    pythonpath: tuple[str, ...] = ()
    remedy: str = ""

    @staticmethod
    def find(
        python: str, pythonpath: tuple[str, ...] = (), remedy: str = "", where: str = "sim.python"
    ) -> "Interpreter":
        """Find an interpreter by its name, its path or the folder of its virtual environment.

        Raises:
            UserError: the program does not exist or cannot be executed. The message names the key `where`.
        """
        path = Path(python).expanduser()
        if path.is_dir() and (path / "bin" / "python").exists():
            path = path / "bin" / "python"  # the folder of a virtual environment
        found = shutil.which(str(path))
        if found is None:
            why = "cannot be executed" if path.is_file() else "does not exist"
            message = f"{where}: {path} {why}. Give the Python interpreter of the simulator's environment."
            raise UserError(message, code="interpreter-invalid")
        return Interpreter(os.path.abspath(found), pythonpath, remedy)

    def command(self, main: str, packages: tuple[str, ...]) -> list[str]:
        """Return the command line that runs "module:function" in this environment; descriptors may be appended.

        Args:
            main: "module:function" in our own package.
            packages: top-level packages that it needs besides our own. They must be importable in the current process.
        """
        names = (ROOT_PACKAGE, *packages)
        options = {"main": main, "packages": {name: find_folder_of(name) for name in names}}
        return [self.python, str(Path(__file__).with_name("bootstrap.py")), json.dumps(options)]

    def environment(self) -> dict[str, str]:
        """Return the environment variables of this process, without those for this process's interpreter only."""
        kept = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
        return {**kept, "PYTHONPATH": os.pathsep.join(self.pythonpath)} if self.pythonpath else kept


def make_own_command(main: str) -> list[str]:
    """Return the command line that runs "module:function" in this environment, imported and not as `__main__`."""
    module, _, function = main.partition(":")
    return [sys.executable, "-P", "-c", f"from {module} import {function}; {function}()"]


def make_own_environment() -> dict[str, str]:
    """Return this process's environment variables, with its `sys.path` as PYTHONPATH."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path)}


def find_folder_of(package: str) -> str:
    """Return the folder that holds a top-level package or module.

    Raises:
        UserError: the package cannot be found in this environment.
    """
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise UserError(f"the package '{package}' cannot be found here", code="package-missing")
    places = spec.submodule_search_locations
    return str(Path(next(iter(places)) if places else str(spec.origin)).resolve().parent)
