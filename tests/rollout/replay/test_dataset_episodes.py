"""LeRobotDatasets as offline experience: what they hold is what the simulator gave, and others are refused."""

from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.commands.collect import run
from embodied_rl.interfaces.sim import Array, SimulatorSpec, Source
from embodied_rl.rollout.replay import dataset_episodes
from embodied_rl.rollout.replay.experience import open_offline
from embodied_rl.rollout.replay.storage import ReplayStorage
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import CollectConfig, SimNode
from tests.support.refusals import refuses

pytest.importorskip("pyarrow")
SIM = SimNode("tabletop", options={"image_size": 16, "horizon": 12})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, and the same episodes in a replay storage beside it."""
    root = tmp_path_factory.mktemp("collected")
    for words in ({"format": "lerobot", "images": "png"}, {"format": "replay"}):
        run(CollectConfig(SIM, episodes=4, out=str(root / words["format"]), **words))
    return root


@pytest.fixture
def spec() -> SimulatorSpec:
    return SimulatorKind.find(SIM).spec


@pytest.mark.thorough
def test_it_holds_what_a_replay_storage_of_the_same_episodes_holds(folder: Path, spec: SimulatorSpec) -> None:
    """But for privileged state, seeds, and why an episode ended."""
    (storage,) = open_offline(folder / "lerobot", spec)
    (stored,) = open_offline(folder / "replay", spec)
    assert storage.format.privileged_names == ()
    found, expected = [*storage.episodes()], [*stored.episodes()]
    assert len(found) == len(expected) == 4
    for mine, other in zip(found, expected, strict=True):
        for name in ("executed", "reward", "success", "source", "steps"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(other, name), err_msg=name)
        np.testing.assert_array_equal(mine.observation.state, other.observation.state)
        np.testing.assert_array_equal(mine.observation.images["front"], other.observation.images["front"])
        assert mine.observation.instruction == other.observation.instruction
        assert mine.terminated.tolist() == [False] * (len(mine) - 1) + [True]
    outcomes = [[each.success for each in part.list_episodes()] for part in (storage, stored)]
    assert outcomes[0] == outcomes[1] and any(outcomes[0])


def test_checks_read_no_pictures(folder: Path, spec: SimulatorSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

    monkeypatch.setattr(LeRobotDataset, "images", None)
    (storage,) = open_offline(folder / "lerobot", spec, pictures=False)
    assert len(storage.list_episodes()) == 4 and not next(storage.episodes()).observation.images["front"].any()


def test_what_another_robot_did_is_refused(folder: Path, spec: SimulatorSpec) -> None:
    camera = replace(spec.cameras[0], height=8)
    others = {
        "fps": replace(spec, control_hz=7.0),
        "observation.state": replace(spec, state_names=("a", *spec.state_names[1:])),
        "action": replace(spec, action_names=spec.action_names[::-1]),
        f"camera {camera.name}": replace(spec, cameras=(camera, *spec.cameras[1:])),
    }
    for name, other in others.items():
        with refuses("replay-robot-mismatch", "lerobot", name):
            open_offline(folder / "lerobot", other)


def test_what_is_still_written_and_what_is_no_experience_are_refused(folder: Path, spec: SimulatorSpec) -> None:
    layout = open_offline(folder / "replay", spec)[0].format
    with closing(ReplayStorage(layout, folder / "replay")), refuses("replay-locked", "replay"):
        open_offline(folder / "replay", spec)
    with refuses("replay-missing", folder / "replay"):
        open_offline(folder, spec)  # as the folder of a run
    with refuses("replay-missing", "nothing"):
        open_offline(folder / "nothing", spec)


@pytest.mark.parametrize(
    ("file", "remedy"),
    [
        ("episode_000000.npz", "collect … format=replay"),
        ("bag_0.mcap", "collect from={} format=replay out="),
        ("bag_0.db3", "collect from={} format=replay out="),
    ],
)
def test_other_episodes_are_refused_with_the_command_that_makes_a_storage(
    tmp_path: Path, spec: SimulatorSpec, file: str, remedy: str
) -> None:
    (tmp_path / file).touch()
    with refuses("replay-missing", tmp_path, remedy.format(tmp_path)):
        open_offline(tmp_path, spec)


@pytest.mark.parametrize("column", ["next.reward", "next.success"])
def test_demonstrations_without_outcomes_are_refused(folder: Path, spec: SimulatorSpec, column: str) -> None:
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

    dataset = LeRobotDataset(folder / "lerobot")
    dataset.info.features.pop(column)
    with refuses("dataset-without-outcomes", column):
        dataset_episodes.check_dataset(dataset, spec)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("action", np.nan),
        ("observation.state", np.inf),
        ("next.reward", np.nan),
        ("source", 9),
        ("source", -1),
        ("action", 1e300),
        ("next.success", 0.3),
        ("next.success", -5),
    ],
)
def test_values_that_mean_nothing_are_refused(
    folder: Path, spec: SimulatorSpec, column: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their feature and the first frame."""
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

    read = LeRobotDataset.column

    def spoil(dataset: LeRobotDataset, name: str, rows: Array) -> Array:
        values = read(dataset, name, rows)
        values = values.astype(np.float64) if name == column else values
        values[np.asarray(rows) == 3] = value if name == column else values[np.asarray(rows) == 3]
        return values

    monkeypatch.setattr(LeRobotDataset, "column", spoil)
    with refuses("dataset-value-invalid", column, "frame 3"):
        open_offline(folder / "lerobot", spec, pictures=False)


@pytest.mark.parametrize("source", [Source.POLICY, Source.HUMAN])
def test_actions_of_a_policy_in_other_units_are_refused(
    folder: Path, spec: SimulatorSpec, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a replay storage; a human's may be beyond the limits."""
    from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset

    read, factors = LeRobotDataset.column, {"action": 57.3, "source": 0}
    monkeypatch.setattr(
        LeRobotDataset,
        "column",
        lambda self, name, rows: read(self, name, rows) * factors.get(name, 1) + source * (name == "source"),
    )
    with refuses("replay-damaged", "lerobot", "executed") if source == Source.POLICY else nullcontext():
        open_offline(folder / "lerobot", spec, pictures=False)


def test_one_that_memory_does_not_hold_is_refused(
    folder: Path, spec: SimulatorSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_episodes, "find_machine_bytes", lambda: 10_000)
    with refuses("dataset-too-large", "lerobot"):
        open_offline(folder / "lerobot", spec)
