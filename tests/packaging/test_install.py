"""What is built works where it is installed: a wheel, the wheel made from the sdist, an editable checkout.

Each runs from an unrelated folder that has `sims/`, `policies/` and `configs/` of its own, without the network. The
packages that are required are not installed again: the new environments see those of the one that runs the tests, and
none that only an extra requires, unless editable.
"""

import json
import subprocess
import tarfile
import zipfile
from importlib.metadata import requires
from pathlib import Path

import pytest

from embodied_rl import __version__
from tests.support.packaging import CHECKOUT, ROBOT, install, list_requirements, run

pytestmark = [pytest.mark.packaging, pytest.mark.process]

TINY = (
    "train.iterations=1",
    "train.decisions=2",
    "train.eval_every=0",
    "train.eval_episodes=8",
    "train.final_episodes=8",
    "sim.num_envs=8",
    "seed=3",
)


@pytest.fixture(scope="session", params=["wheel", "wheel_of_sdist", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has both packages in one of the three ways."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "editable":
        return install(folder, ROBOT, CHECKOUT)
    wheels = [request.getfixturevalue(name) for name in (f"robot_{request.param}", request.param)]
    return install(folder, *wheels, only=list_requirements("embodied-rl") - {"embodied-rl-robot"})


def read_contents(wheel: Path) -> dict[str, int]:
    """File name → check sum."""
    return {info.filename: info.CRC for info in zipfile.ZipFile(wheel).infolist() if ".dist-info/" not in info.filename}


def test_the_sdist_holds_all_files_of_the_repository(sdist: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=CHECKOUT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {name for name in listed.stdout.split("\0") if name and (CHECKOUT / name).is_file()}
    assert held == wanted | {"PKG-INFO"}
    assert {name.partition("/")[0] for name in wanted} >= {"assets", "configs", "docs", "results", "tests"}


def test_the_wheels_hold_all_files_once(
    wheel: Path, wheel_of_sdist: Path, robot_wheel: Path, robot_wheel_of_sdist: Path
) -> None:
    assert read_contents(wheel) == read_contents(wheel_of_sdist)
    assert read_contents(robot_wheel) == read_contents(robot_wheel_of_sdist)
    platform, robot = set(read_contents(wheel)), set(read_contents(robot_wheel))
    assert not platform & robot, "files of both would be lost when one is removed"
    roots = {"embodied_rl": "", "embodied_rl_sims": "sims", "embodied_rl_policies": "policies"}
    assert {name.partition("/")[0] for name in platform | robot} == set(roots)
    sources = {
        path.relative_to(CHECKOUT / above).as_posix()
        for top, above in roots.items()
        for path in (CHECKOUT / above / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for folder in ("configs", "assets"):
        files = [path for path in (CHECKOUT / folder).rglob("*") if path.is_file() and "media" not in path.parts]
        sources |= {f"embodied_rl/_{folder}/{path.relative_to(CHECKOUT / folder).as_posix()}" for path in files}
    assert platform | robot == sources | {"embodied_rl/LICENSE"}
    assert "embodied_rl_sims/isaaclab/shapes/cartpole.usda" in platform, "what Isaac Lab is started with off line"


def test_both_packages_have_the_same_version() -> None:
    assert f"embodied-rl-robot=={__version__}" in (requires("embodied-rl") or [])


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
