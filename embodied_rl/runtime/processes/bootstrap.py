"""The start script of a worker in another Python environment.

Our code is not installed there. Imports come from that environment's own folders, and this script adds only the named
packages, not other packages in the same folders. It uses only the standard library, and older syntax than the
rest of the package, so that an interpreter that is too old can still report that it is.

    python bootstrap.py '{"main": "module:function", "packages": {"name": "folder that holds it"}}' <descriptors>

A worker that cannot start sends a greeting with a "problem" through the pipe, which is the first descriptor; see
`embodied_rl.runtime.processes.messages.send_greeting`.
"""

import os
import sys
from typing import Any

OLDEST = (3, 10)


def main() -> None:
    """Make the packages importable and run the entry point, or report why that is impossible."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or ".") != os.path.realpath(here)]
    import json

    options = json.loads(sys.argv.pop(1))
    problem = list_missing_packages()
    if problem:
        from multiprocessing.connection import Connection

        Connection(int(sys.argv[1])).send_bytes(json.dumps({"problem": problem}).encode())
        return
    sys.meta_path.insert(0, SharedModules(options["packages"]))
    from importlib import import_module

    module, _, function = options["main"].partition(":")
    getattr(import_module(module), function)()


def list_missing_packages() -> str:
    """Return why a worker cannot run in this environment, or an empty text if it can."""
    found = sys.version.partition(" ")[0]
    if sys.version_info < OLDEST:
        return f"it is Python {found}; a simulator's Python must be {OLDEST[0]}.{OLDEST[1]} or newer"
    try:
        import numpy  # noqa: F401
    except ImportError as error:
        return f"NumPy cannot be imported there ({error}). Install it: {sys.executable} -m pip install numpy"
    return ""


class SharedModules:
    """An import hook that finds only the named top-level packages, in their folders."""

    def __init__(self, packages: dict):
        self._packages = packages

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if path is not None or name not in self._packages:
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [self._packages[name]])


if __name__ == "__main__":
    main()
