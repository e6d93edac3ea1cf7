"""Tests of the adapter run in the interpreter that has Gymnasium, in a process of their own."""

import json
import os
import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import python_of

INSIDE = Path(__file__).parent / "inside.py"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """Runs a function of `inside.py` over there: `inside(name, environ={}, **arguments)`."""
    python = str(python_of("gymnasium"))

    def run(name: str, environ: dict[str, str] | None = None, **arguments: Any) -> Any:
        result = tmp_path_factory.mktemp("inside") / "result"
        paths = os.pathsep.join(str(ROOT / folder) for folder in ("", "sims"))
        started = subprocess.run(
            [python, str(INSIDE), name, str(result), json.dumps(arguments)],
            env={**os.environ, "PYTHONPATH": paths, **(environ or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1100,
        )
        assert started.returncode == 0, started.stderr
        return pickle.loads(result.read_bytes())

    return run
