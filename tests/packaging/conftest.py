"""What tests of packages share: our wheel, and a folder that is not ours."""

import tarfile
from pathlib import Path

import pytest

from tests.support.packaging import CHECKOUT, build


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", CHECKOUT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def wheel_of_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(build("sdist", CHECKOUT, folder)) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12's Python has none yet
        archive.extractall(folder)
    (source,) = (item for item in folder.iterdir() if item.is_dir())
    return build("wheel", source, tmp_path_factory.mktemp("wheel_of_sdist"))


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of somebody else's research code, whose names are ours and whose contents would break us."""
    for name in ("sims", "policies", "configs", "assets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package was imported')\n")
    (tmp_path / "configs" / "train.yaml").write_text("this: [is, not, ours]\n")
    return tmp_path
