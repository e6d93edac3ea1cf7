"""What is built works where it is installed: a wheel, the wheel made from the sdist, an editable checkout.

Each runs from an unrelated folder that has `sims/`, `policies/` and `configs/` of its own, without the network. The
heavy packages are not installed again: the new environments see those of the one that runs the tests.
"""

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.process]

CHECKOUT = Path(__file__).parents[2]
OFFLINE = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
TINY = (
    "train.iterations=1",
    "train.decisions=2",
    "train.eval_every=0",
    "train.final_episodes=8",
    "sim.num_envs=8",
    "seed=3",
)


def run(arguments: Sequence[str | Path], folder: Path, timeout: float = 240) -> str:
    """Run a program without the network and without our own paths; returns what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        [str(item) for item in arguments],
        cwd=folder,
        env={**kept, **OFFLINE, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ""},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """The wheel or sdist of a source folder."""
    run([sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", folder, source], folder)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


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


@pytest.fixture(scope="session", params=["wheel", "wheel_of_sdist", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the package in one of the three ways."""
    environment = tmp_path_factory.mktemp(request.param) / "venv"
    run([sys.executable, "-m", "venv", "--without-pip", environment], environment.parent)
    (packages,) = environment.glob("lib/python*/site-packages")
    heavy = [path for path in sys.path if Path(path).name == "site-packages"]
    (packages / "heavy.pth").write_text("\n".join(heavy))
    what = ["--editable", CHECKOUT] if request.param == "editable" else [request.getfixturevalue(request.param)]
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, *what], environment.parent)
    where = Path(run([python, "-c", "import embodied_rl; print(embodied_rl.__file__)"], environment.parent).strip())
    assert where.is_relative_to(CHECKOUT if request.param == "editable" else packages)
    return environment / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A folder of somebody else's research code, whose names are ours and whose contents would break us."""
    for name in ("sims", "policies", "configs", "assets"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the wrong package was imported')\n")
    (tmp_path / "configs" / "train.yaml").write_text("this: [is, not, ours]\n")
    return tmp_path


def test_a_wheel_holds_what_it_needs_and_nothing_else(wheel: Path, wheel_of_sdist: Path) -> None:
    contents = [set(zipfile.ZipFile(path).namelist()) for path in (wheel, wheel_of_sdist)]
    assert contents[0] == contents[1]
    top = {name.partition("/")[0] for name in contents[0]}
    assert {name for name in top if not name.endswith(".dist-info")} == {
        "embodied_rl", "embodied_rl_sims", "embodied_rl_policies"
    }  # fmt: skip
    for folder, inside in (("configs", "_configs"), ("assets", "_assets")):
        files = [path for path in (CHECKOUT / folder).rglob("*") if path.is_file() and "media" not in path.parts]
        wanted = {f"embodied_rl/{inside}/{path.relative_to(CHECKOUT / folder).as_posix()}" for path in files}
        assert wanted <= contents[0]
    assert {f"{name}/py.typed" for name in top if not name.endswith(".dist-info")} <= contents[0]


def test_list_from_an_unrelated_folder(installed: Path, elsewhere: Path) -> None:
    listed = run([installed / "embodied-rl", "list"], elsewhere)
    for name in ("tabletop", "pocket", "ppo", "grpo", "demo"):
        assert name in listed


def test_an_iteration_of_the_demo_from_an_unrelated_folder(installed: Path, elsewhere: Path) -> None:
    run([installed / "embodied-rl", "train", "experiment=demo", *TINY], elsewhere)
    (folder,) = elsewhere.glob("runs/demo/*_s3")
    report = json.loads((folder / "report.json").read_text())
    assert report["success"]["episodes"] == 8
    assert (folder / "metrics.jsonl").read_text().count("\n") >= 1
