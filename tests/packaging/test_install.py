"""What is built works where it is installed: a wheel, the wheel made from the sdist, an editable checkout.

Each runs from an unrelated folder that has `sims/`, `policies/` and `configs/` of its own, without the network. The
heavy packages are not installed again: the new environments see those of the one that runs the tests.
"""

import json
import zipfile
from pathlib import Path

import pytest

from tests.support.packaging import CHECKOUT, install, run

pytestmark = [pytest.mark.packaging, pytest.mark.process]

TINY = (
    "train.iterations=1",
    "train.decisions=2",
    "train.eval_every=0",
    "train.final_episodes=8",
    "sim.num_envs=8",
    "seed=3",
)


@pytest.fixture(scope="session", params=["wheel", "wheel_of_sdist", "editable"])
def installed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that has the package in one of the three ways."""
    folder = tmp_path_factory.mktemp(request.param)
    return install(folder, CHECKOUT if request.param == "editable" else request.getfixturevalue(request.param))


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
