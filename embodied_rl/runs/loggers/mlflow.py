"""Logger that records a run by MLflow (`pip install 'embodied-rl[mlflow]'`).

`logger.uri` is the address of a tracking server or a database (`sqlite:///<file>`, which takes the whole `mlflow`).
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # importing mlflow sends usage statistics
from mlflow import MlflowClient
from mlflow.entities import Metric

from embodied_rl.interfaces.logger import LoggedRun, Logger
from embodied_rl.interfaces.trust import Address


@dataclass(frozen=True)
class MLflowConfig:
    experiment: Address = "embodied-rl"
    """Experiment of MLflow."""
    uri: Address | None = None
    """Tracking server; null takes MLFLOW_TRACKING_URI, or MLflow's own default."""


class MLflow(Logger):
    """One run of MLflow for each run folder; a resumed run continues it."""

    Config = MLflowConfig

    def __init__(self, config: MLflowConfig, run: LoggedRun) -> None:
        self._client = MlflowClient(config.uri)
        self._texts: list[str] = []
        name, known = f"{run.experiment}-{run.folder.name}", self._client.get_experiment_by_name(config.experiment)
        experiment = self._client.create_experiment(config.experiment) if known is None else known.experiment_id
        same = f"attributes.run_name = '{name}'"
        found = self._client.search_runs([experiment], same, max_results=1) if run.resumed is not None else []
        self._run = found[0].info.run_id if found else self._client.create_run(experiment, run_name=name).info.run_id
        self._client.update_run(self._run, status="RUNNING")
        self._client.log_dict(self._run, dict(run.settings), "config.yaml")

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in scalars.items()]
        self._client.log_batch(self._run, metrics)

    def write_text(self, step: int, text: str) -> None:
        self._texts.append(f"{step}: {text}")
        self._client.log_text(self._run, "\n".join(self._texts), "texts.txt")

    def write_film(self, step: int, path: Path) -> None:
        self._client.log_artifact(self._run, str(path), "films")

    def close(self, success: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if success else "FAILED")
