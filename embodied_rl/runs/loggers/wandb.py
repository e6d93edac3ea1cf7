"""Logger that sends a run to Weights & Biases (`pip install 'embodied-rl[wandb]'`).

With `logger.mode=offline` nothing is sent: `wandb sync <run folder>/wandb/offline-run-*` does it later.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

import wandb

from embodied_rl.interfaces.logger import LoggedRun, Logger
from embodied_rl.interfaces.trust import Address


@dataclass(frozen=True)
class WandBConfig:
    project: Address = "embodied-rl"
    """Project of Weights & Biases."""
    entity: Address | None = None
    """User or team; null takes that of the login."""
    mode: Literal["online", "offline"] = "online"
    """offline writes into the run's folder and sends nothing."""


class WandB(Logger):
    """One run of Weights & Biases for each run folder; a resumed run continues it."""

    Config = WandBConfig

    def __init__(self, config: WandBConfig, run: LoggedRun) -> None:
        name = f"{run.experiment}-{run.folder.name}"
        self._run: Any = wandb.init(
            project=config.project, entity=config.entity, mode=config.mode, id=name, name=name, resume="allow",
            dir=run.folder, config=dict(run.settings), settings=wandb.Settings(console="off"),
        )  # fmt: skip
        self._run.define_metric("*", step_metric="iteration")  # W&B's own step may not return to a checkpoint's

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        self._run.log({"iteration": step, **scalars})

    def write_text(self, step: int, text: str) -> None:
        self._run.log({"iteration": step, "text": wandb.Html(f"<pre>{escape(text)}</pre>", inject=False)})

    def write_film(self, step: int, path: Path) -> None:
        self._run.log({"iteration": step, f"films/{path.stem}": wandb.Video(str(path), format="mp4")})

    def close(self, success: bool) -> None:
        self._run.finish(exit_code=0 if success else 1)
        wandb.teardown()  # its process has written the file when this returns
