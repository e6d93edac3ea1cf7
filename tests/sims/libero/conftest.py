"""What tests of LIBERO share: its environment, light stand-ins for its assets, and a way to run in that environment."""

import json
import os
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.interfaces.sim import Array
from tests.support.environments import python_of
from tests.support.libero import Call, Run

_ROOT = Path(__file__).parents[3]
_DEADLINE = 1100.0


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
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # not in every Python 3.11
        packed.extractall(place)
    return place


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs functions of inside.py in one process of LIBERO's environment, because importing it takes seconds:
    `run(("starts", {"assets": …}), …)` gives the arrays of each.
    """
    python = python_of("libero")

    def execute(*calls: Call) -> list[dict[str, Array]]:
        out = tmp_path_factory.mktemp("inside") / "arrays.npz"
        script = Path(__file__).with_name("inside.py")
        paths = os.pathsep.join(str(_ROOT / part) for part in (".", "sims"))
        subprocess.run(
            [str(python), str(script), str(out), json.dumps(calls, default=str)],
            env={**os.environ, "PYTHONPATH": paths},
            stdin=subprocess.DEVNULL,
            timeout=_DEADLINE,
            check=True,
        )
        with np.load(out) as arrays:
            found = {name: arrays[name] for name in arrays.files}
        return [
            {name.removeprefix(f"{number}/"): found[name] for name in found if name.startswith(f"{number}/")}
            for number in range(len(calls))
        ]

    return execute
