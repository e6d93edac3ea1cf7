"""What tests of LIBERO share: its environment, light stand-ins for its assets, and a way to run in that environment."""

import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from tests.sims.environments import python_of

_ROOT = Path(__file__).parents[3]
_DEADLINE = 240.0

Run = Callable[..., dict[str, Array]]


@pytest.fixture(scope="session")
def assets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Assets with LIBERO's own shapes for contact and coarse ones to look at: nothing for published numbers."""
    python_of("libero")
    data = os.environ.get("EMBODIED_RL_TEST_DATA")
    archive = Path(data or "") / "libero_assets_light.tgz"
    if not data or not archive.is_file():
        pytest.skip("no assets for LIBERO: EMBODIED_RL_TEST_DATA names no folder with libero_assets_light.tgz")
    place = tmp_path_factory.mktemp("libero_assets")
    with tarfile.open(archive) as packed:
        packed.extractall(place, filter="data")
    return place


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs a function of inside.py in LIBERO's environment: `run("chunks", assets=…)` gives its arrays."""
    python = python_of("libero")

    def execute(function: str, **arguments: Any) -> dict[str, Array]:
        out = tmp_path_factory.mktemp("inside") / "arrays.npz"
        script = Path(__file__).with_name("inside.py")
        paths = os.pathsep.join(str(_ROOT / part) for part in (".", "sims"))
        given = json.dumps({name: str(v) if isinstance(v, Path) else v for name, v in arguments.items()})
        subprocess.run(
            [str(python), str(script), function, str(out), given],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            timeout=_DEADLINE,
            check=True,
        )
        with np.load(out) as arrays:
            return dict(arrays)

    return execute
