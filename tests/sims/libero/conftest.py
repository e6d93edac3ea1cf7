"""What tests of LIBERO share: its environment, light stand-ins for its assets, and a way to run in that environment."""

import os
import tarfile
from pathlib import Path

import pytest

from embodied_rl.interfaces.sim import Array
from tests.support.environments import Call, python_of, run_inside
from tests.support.libero import Run


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
    python_of("libero")
    script = Path(__file__).with_name("inside.py")

    def execute(*calls: Call) -> list[dict[str, Array]]:
        return run_inside("libero", script, tmp_path_factory.mktemp("inside") / "arrays.npz", calls)

    return execute
