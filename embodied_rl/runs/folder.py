"""Folder of one run: `<root>/<experiment>/<YYYYmmdd-HHMMSS, in UTC>_s<seed>/`.

config.yaml  overrides.txt  provenance.json  git.diff  metrics.jsonl  checkpoints/  videos/  eval/
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.names import check_folder_name
from embodied_rl.interfaces.sim import Unavailable
from embodied_rl.runs import lock, provenance
from embodied_rl.system.atomic_write import explain_errors, note_folder, write_text
from embodied_rl.system.untrusted_files import check_inside, read_json, read_whole

PLAN = "plan.json"
"""In a run's folder: the chosen allocation, the alternatives, and their costs."""
_NAME = re.compile(r"(?P<time>\d{8}-\d{6})_s(?P<seed>\d+)(_\d+)?$")
_TRAINS = re.compile(r"^train:", re.MULTILINE)
_TIME = "%Y%m%d-%H%M%S"
_CLONES = re.compile(r"^eval_episodes:", re.MULTILINE)
"""A key of `sft` that `train` lacks; these two commands make run folders."""
_WRITTEN_BEFORE = ("config.yaml", "overrides.txt", "git.diff", provenance.FILE, PLAN, lock.FILE)


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run. Make it with `create`, `open` or `latest`."""

    path: Path

    @classmethod
    def create(cls, root: str | Path, experiment: str, seed: int, now: datetime | None = None) -> "RunFolder":
        """Create a new folder in UTC time; if the name is taken, add a suffix, so that nothing is overwritten.

        Raises:
            StorageError: `root` (the setting `run.root`) cannot be written, or its disk is full.
            UserError: the experiment's name is not a single folder name.
        """
        check_folder_name(experiment, "run.experiment")
        base = Path(root) / experiment / f"{_format_time(now)}_s{seed}"
        with explain_errors(base):
            base.parent.mkdir(parents=True, exist_ok=True)
            folder = cls(_claim(base))
            for part in (folder.checkpoints, folder.videos, folder.evaluations):
                part.mkdir()
        return folder

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """Open an existing run folder, recognised by its `config.yaml` or `checkpoints/`.

        Raises:
            UserError: `path` contains no run.
        """
        folder = cls(Path(path))
        if not (folder.config.is_file() or folder.checkpoints.is_dir()):
            message = f"No run in {path}: it holds neither config.yaml nor checkpoints/. Give a folder below run.root."
            raise UserError(message, code="run-missing")
        return folder

    @classmethod
    def latest(cls, root: str | Path) -> "RunFolder":
        """Return the newest training run below `root`, as for `resume=last`; it may have no checkpoint yet.

        Raises:
            UserError: there is no training run below `root`, or a newer configuration is damaged or a link out of its
                folder.
        """
        ages: dict[Path, tuple[datetime, int]] = {}
        for config in Path(root).glob("*/*/config.yaml"):
            if match := _NAME.match(config.parent.name):
                saved = [*config.parent.glob("checkpoints/[0-9]*/state.json")] or [config]
                ages[config] = _read_start(config.parent, match["time"]), max(file.stat().st_mtime_ns for file in saved)
        for config in sorted(ages, key=lambda config: ages[config], reverse=True):
            check_inside(config.parent, config)
            problem, text = "it ends before the keys of a command", ""
            try:
                text = read_whole(config).decode()
            except UnicodeDecodeError as error:
                problem = str(error)
            if _TRAINS.search(text):
                return cls(config.parent)
            if not _CLONES.search(text):
                raise UserError(
                    f"{config} is damaged: {problem}. Restore the file or remove that folder; or name the run with "
                    "resume=<its folder>.",
                    code="config-damaged",
                )
        message = f"No training run below {root} (run.root): nothing to resume. Start a run first."
        raise UserError(message, code="run-missing")

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def videos(self) -> Path:
        return self.path / "videos"

    @property
    def evaluations(self) -> Path:
        return self.path / "eval"

    @property
    def experiment(self) -> str:
        return self.path.resolve().parent.name

    @property
    def seed(self) -> int | None:
        """Return the seed in the folder's name; None for a renamed folder."""
        match = _NAME.match(self.path.resolve().name)
        return int(match["seed"]) if match else None

    def overrides(self) -> tuple[str, ...]:
        """Return the overrides that the user typed after the command.

        Raises:
            UserError: their file is not text in UTF-8, or a link that leads out of the folder.
        """
        file = self.path / "overrides.txt"
        check_inside(self.path, file)
        try:
            return tuple(file.read_text(encoding="utf-8").splitlines()) if file.is_file() else ()
        except UnicodeDecodeError as error:
            raise UserError(f"{file} is damaged: {error}.", code="overrides-damaged") from None

    def write_config(self, config_yaml: str, overrides: Sequence[str]) -> None:
        """Write the composed configuration and the overrides it was composed from."""
        write_text(self.config, config_yaml)
        write_text(self.path / "overrides.txt", "".join(f"{override}\n" for override in overrides))

    @contextmanager
    def removed_if_bare(self) -> Iterator[None]:
        """Remove the folder if a `UserError` ends the context before the run has made anything."""
        try:
            yield
        except (UserError, Unavailable):
            if self.path.is_dir() and self.is_bare():
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def is_bare(self) -> bool:
        """Return whether the run has written nothing but its configuration."""
        made = (file for file in self.path.rglob("*") if file.is_file() and "tensorboard" not in file.parts)
        return not any(file.stat().st_size for file in made if file.name not in _WRITTEN_BEFORE)

    def new_evaluation(self, split: str, now: datetime | None = None) -> Path:
        """Make a new folder `eval/<split>_<time>` and return its path."""
        return make_evaluation_folder(self.evaluations, split, now)


def make_evaluation_folder(parent: Path, split: str, now: datetime | None = None, key: str = "run.root") -> Path:
    """Make a new folder `<parent>/<split>_<time, UTC>` and return its path; a taken name gets a suffix.

    Raises:
        StorageError: it cannot be made; the message names the key that chose it.
    """
    with explain_errors(parent, key):
        parent.mkdir(parents=True, exist_ok=True)
        return _claim(parent / f"{split}_{_format_time(now)}")


def _claim(base: Path) -> Path:
    for number in count(1):
        path = base if number == 1 else base.with_name(f"{base.name}_{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return note_folder(path)
    raise AssertionError("count() does not end")


def _format_time(now: datetime | None) -> str:
    return (now or datetime.now(UTC)).strftime(_TIME)


def _read_start(run: Path, time: str) -> datetime:
    """Return when a run was started, by its provenance, else by the time in its name, which may be local time."""
    file = run / provenance.FILE
    check_inside(run, file)
    try:
        started = read_json(file).get("started") if file.is_file() else None
        if started is None:
            return datetime.strptime(time, _TIME).replace(tzinfo=UTC)
        return datetime.fromisoformat(started)
    except (ValueError, AttributeError, TypeError) as error:
        message = f"{file} is damaged: {error}. Give the run's folder instead of last."
        raise UserError(message, code="provenance-damaged") from error
