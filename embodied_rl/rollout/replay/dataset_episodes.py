"""LeRobotDatasets as offline experience: their episodes in a replay storage in memory, in control steps."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.actors.learning.memory_budget import find_machine_bytes, format_bytes
from embodied_rl.datasets.lerobot.dataset_reader import LeRobotDataset
from embodied_rl.datasets.lerobot.info import ACTION, REWARD, SOURCE, STATE, SUCCESS
from embodied_rl.interfaces.sim import Array, Camera, Episode, Observation, SimulatorSpec, Source, StepResult
from embodied_rl.rollout.replay.format import ReplayError, ReplayFormat
from embodied_rl.rollout.replay.storage import ReplayStorage


def read_dataset(folder: Path, spec: SimulatorSpec, pictures: bool = True) -> ReplayStorage:
    """Return a storage with the episodes of a LeRobotDataset; without `pictures` they are black, for checks.

    A frame is a decision of one control step. A dataset does not say why an episode ended, so all count as terminated.

    Raises:
        DatasetError: the dataset is damaged.
        ReplayError: it is of another robot or in other units, lacks rewards or outcomes, or is too large for this
            machine's memory.
    """
    with closing(LeRobotDataset(folder)) as dataset:
        check_dataset(dataset, spec)
        layout = ReplayFormat.of_simulator(replace(spec, privileged_names=()), 1, len(dataset) + 2, 1)
        if layout.nbytes > find_machine_bytes() / 2:
            raise ReplayError(
                f"{folder} needs {format_bytes(layout.nbytes)} in memory, more than half of this machine's. Give a "
                "smaller dataset, or a replay storage, which stays on the disk.",
                code="dataset-too-large",
            )
        storage, cameras = ReplayStorage(layout), list_cameras(spec)
        for number in range(len(dataset.episodes)):
            rows = np.arange(dataset.starts[number], dataset.stops[number])
            blank = {each.name: np.zeros((len(rows), each.height, each.width, 3), np.uint8) for each in cameras}
            images = {each.name: dataset.images(each.name, rows) for each in cameras} if pictures else blank
            write_rows(storage, dataset, rows, images, spec)
    return storage


def list_cameras(spec: SimulatorSpec) -> list[Camera]:
    """Return the cameras that a policy sees."""
    return [camera for camera in spec.cameras if camera.role == "policy"]


def check_dataset(dataset: LeRobotDataset, spec: SimulatorSpec) -> None:
    """Check that a dataset has the simulator's rate, cameras, state and actions, and rewards and outcomes.

    Raises:
        ReplayError: it has not; the message names the feature.
    """
    features, folder = dataset.info.features, dataset.folder
    if missing := [name for name in (STATE, ACTION, REWARD, SUCCESS) if name not in features]:
        raise ReplayError(
            f"{folder} has no {missing[0]}, which learning from it needs for each frame; `embodied-rl collect "
            "format=lerobot` writes it.",
            code="dataset-without-outcomes",
        )
    found: dict[str, Any] = {"fps": round(float(dataset.info.fps), 3)}
    expected: dict[str, Any] = {"fps": round(float(spec.control_hz), 3)}
    for name, entries in ((STATE, spec.state_names), (ACTION, spec.action_names)):
        names = features[name].names
        named = isinstance(names, list) and all(isinstance(each, str) for each in names)
        found[name] = names if named else int(np.prod(features[name].shape))
        expected[name] = list(entries) if named else len(entries)
    for camera in list_cameras(spec):
        key = dataset.cameras.get(camera.name)
        found[f"camera {camera.name}"] = None if key is None else features[key].memory_shape
        expected[f"camera {camera.name}"] = (camera.height, camera.width, 3)
    for name, value in expected.items():
        if found[name] != value:
            raise ReplayError(
                f"{folder}: {name} is {found[name]}, and {value} in the simulator. Choose the simulator, or the "
                "settings of it, that the dataset was recorded with.",
                code="replay-robot-mismatch",
            )


def check_values(dataset: LeRobotDataset, rows: Array, columns: dict[str, Array], sources: Array) -> None:
    """Check that the frames `rows` hold numbers that are finite as float32, a reward and an outcome each, and known
    sources.

    Raises:
        ReplayError: they do not; the message names the feature and the first frame.
    """
    one = {name: columns[name].shape[1] == 1 for name in (REWARD, SUCCESS)} | {SOURCE: sources.shape[1] == 1}
    choices = {SUCCESS: [0, 1], SOURCE: [*map(int, Source)]}
    for name, values in (columns | {SOURCE: sources}).items():
        with np.errstate(over="ignore"):
            good = np.isfinite(values.astype(np.float32)).all(axis=1) & one.get(name, True)
        if name in choices:
            good &= np.isin(values, choices[name]).all(axis=1)
        if not good.all():
            raise ReplayError(
                f"{dataset.folder}: {name} of frame {rows[~good][0]} is {values[~good][0].tolist()}, which is not what "
                "replay can hold: finite numbers, one reward and outcome, and a known source.",
                code="dataset-value-invalid",
            )


def write_rows(
    storage: ReplayStorage, dataset: LeRobotDataset, rows: Array, images: dict[str, Array], spec: SimulatorSpec
) -> None:
    """Write the frames `rows` of one episode, with their images."""
    columns = {name: dataset.column(name, rows).reshape(len(rows), -1) for name in (STATE, ACTION, REWARD, SUCCESS)}
    texts = dataset.read_instructions(rows)
    sources = np.full((len(rows), 1), Source.POLICY, np.uint8)
    if SOURCE in dataset.info.features:
        sources = dataset.column(SOURCE, rows).reshape(len(rows), -1)
    check_values(dataset, rows, columns, sources)
    seen = Observation(images, columns[STATE].astype(np.float32), tuple(texts))
    actions = columns[ACTION].astype(np.float32)[:, None]
    storage.format.check_executed(actions[sources == Source.POLICY], str(dataset.folder))
    last = np.arange(len(rows)) == len(rows) - 1
    result = StepResult(
        reward=columns[REWARD].astype(np.float32),
        success=columns[SUCCESS].astype(bool),
        steps=np.ones(len(rows), np.int64),
        executed=actions,
        source=sources.astype(np.uint8),
        terminated=last,
        truncated=np.zeros(len(rows), bool),
        observation=seen,
    )
    names = [task.name for task in spec.tasks]
    index = int(dataset.episode_of(rows[:1])[0])
    task = names.index(texts[0]) if texts[0] in names else 0
    storage.write_episode(0, Episode(index, task, index, split="dataset"), seen, actions, result)
