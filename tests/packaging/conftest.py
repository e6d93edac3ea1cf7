"""What tests of packages share: our wheels, and a folder that is not ours."""

import tarfile
from pathlib import Path

import pytest

from tests.support.packaging import CHECKOUT, ROBOT, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", CHECKOUT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def robot_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROBOT, tmp_path_factory.mktemp("robot_wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", CHECKOUT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def wheel_of_sdist(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_from_sdist(sdist, tmp_path_factory.mktemp("wheel_of_sdist"))


@pytest.fixture(scope="session")
def robot_wheel_of_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robot_wheel_of_sdist")
    return build_from_sdist(build("sdist", ROBOT, folder), folder)


def build_from_sdist(sdist: Path, folder: Path) -> Path:
    """The wheel of an unpacked sdist."""
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none yet
        archive.extractall(folder)
    (unpacked,) = (item for item in folder.iterdir() if item.is_dir())
    (folder / "built").mkdir()
    return build("wheel", unpacked, folder / "built")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of somebody else's research code, whose names are ours and whose contents would break us."""
    for name in ("sims", "policies", "configs", "assets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package was imported')\n")
    (tmp_path / "configs" / "train.yaml").write_text("this: [is, not, ours]\n")
    return tmp_path
