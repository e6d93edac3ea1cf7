"""Loggers, each against the real package, offline."""

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.config.plugins import configure_plugin, list_names
from embodied_rl.interfaces.logger import LoggedRun, NoKeys
from embodied_rl.runs.folder import RunFolder
from embodied_rl.runs.log import RunLog, open_log
from embodied_rl.runs.loggers import LOGGERS
from embodied_rl.runs.loggers.tensorboard import TensorBoard
from embodied_rl.schema import LoggerNode
from embodied_rl.system.atomic_write import StorageError
from tests.support.refusals import refuses


@contextmanager
def logged(folder: Path, name: str, resumed: int | None = None, **options: Any) -> Iterator[RunLog]:
    folder.mkdir(exist_ok=True)
    found, config = configure_plugin("loggers", LoggerNode(name, options=options), "logger")
    run = LoggedRun(folder, "demo", {"seed": 3}, resumed)
    with open_log(
        RunFolder(folder), 9, resumed or 0, writes=True, live=False, make_logger=lambda: found(config, run)
    ) as log:
        yield log


def write(log: RunLog, *iterations: int) -> None:
    for iteration in iterations:
        log.write(iteration, {"rollout/success": iteration / 4, "reward/trouble": "text", "update/kl": float("nan")})


def test_every_logger_has_a_file_of_its_own_and_is_offered() -> None:
    assert list_names("loggers") == sorted(LOGGERS)


def test_tensorboard_hides_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    with logged(tmp_path / "run", "tensorboard") as log:
        write(log, 1, 2, 3)
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()  # of another process, earlier
    file.rename(file.with_name("events.out.tfevents.0000000001.machine.1"))
    with logged(tmp_path / "run", "tensorboard", resumed=2) as log:
        log.write(3, {"rollout/success": 1.0})
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["rollout/success"], "finite numbers alone"
    assert [(e.step, e.value) for e in events.Scalars("rollout/success")] == [(1, 0.25), (2, 0.5), (3, 1.0)]


def test_events_that_do_not_fit_on_the_disk_are_named(tmp_path: Path, files_up_to: Callable[[int], Any]) -> None:
    (tmp_path / "run").mkdir()
    board = TensorBoard(NoKeys(), LoggedRun(tmp_path / "run", "demo", {}))
    with files_up_to(200), refuses("disk-full", "events.out.tfevents", "run.root", kind=StorageError):
        for iteration in range(20):
            board.write(iteration, {"a": 1.0})
    board.close(success=False)


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return (tmp_path / "tracking").as_uri()


@pytest.mark.thorough
def test_mlflow_continues_a_resumed_run(tmp_path: Path, uri: str) -> None:
    film = tmp_path / "push.mp4"
    film.write_bytes(b"film")
    with logged(tmp_path / "run", "mlflow", uri=uri) as log:
        write(log, 1, 2)
        log.note("Simulator 1 was replaced.")
    with logged(tmp_path / "run", "mlflow", resumed=2, uri=uri) as log:
        write(log, 3)
        log.write_films([film])
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("embodied-rl")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "rollout/success")
    assert [(each.step, each.value) for each in history] == [(1, 0.25), (2, 0.5), (3, 0.75)]
    assert (run.info.run_name, run.info.status) == ("demo-run", "FINISHED")
    assert {each.path for each in client.list_artifacts(run.info.run_id)} == {"config.yaml", "texts.txt", "films"}


def test_mlflow_marks_a_run_that_ends_by_an_exception(tmp_path: Path, uri: str) -> None:
    with pytest.raises(ZeroDivisionError), logged(tmp_path / "run", "mlflow", uri=uri):
        raise ZeroDivisionError
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    (run,) = client.search_runs([each.experiment_id for each in client.search_experiments()])
    assert run.info.status == "FAILED"


def read_wandb_records(data: bytes) -> Iterator[Any]:
    """Read a file of W&B under 32 KiB: a header, then records in frames of LevelDB's log (CRC, length, type)."""
    from wandb.proto import wandb_internal_pb2

    position = 7
    while position < len(data):
        _, length, kind = struct.unpack_from("<IHB", data, position)
        assert kind == 1, "one whole record a frame"
        yield wandb_internal_pb2.Record.FromString(data[position + 7 : position + 7 + length])
        position += 7 + length


@pytest.mark.thorough
@pytest.mark.process
def test_wandb_keeps_a_run_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    with logged(tmp_path / "run", "wandb", mode="offline") as log:
        write(log, 1, 2)
        log.note("Simulator 1 was replaced.")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-demo-run.wandb")
    seen = []
    for record in read_wandb_records(file.read_bytes()):
        values = {each.key or "/".join(each.nested_key): each.value_json for each in record.history.item}
        if "rollout/success" in values:
            seen.append((values["iteration"], values["rollout/success"]))
    assert seen == [("1", "0.25"), ("2", "0.5")]


def test_an_old_key_is_refused_with_the_new_one() -> None:
    with refuses("key-unknown", "logger.tensorboard", "logger=tensorboard|json"):
        configure_plugin("loggers", LoggerNode(options={"tensorboard": False}), "logger")
