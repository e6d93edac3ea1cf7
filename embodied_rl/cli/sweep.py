"""Run sweeps and Hydra's own options through Hydra's main function."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from omegaconf import DictConfig

from embodied_rl.cli import execution
from embodied_rl.cli.options import Options
from embodied_rl.cli.table import Command
from embodied_rl.config import compose as composition
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs.folder import note_new_folders
from embodied_rl.runs.stops import count_stops

# Runs make their own folders: Hydra makes only the folder of the sweep's record, and configures no logging.
_QUIET = (
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.subdir=.",
)
_TRACEBACKS = "HYDRA_FULL_ERROR"
_RECORD = "hydra.sweep.dir=${oc.select:run.root,runs}/sweeps/${now:%Y-%m-%d_%H-%M-%S}"


def run_sweep(command: Command, options: Options) -> int:
    """Check all combinations of a sweep, run them one after another, and compare what they reported; or handle one of
    Hydra's own options.

    Raises:
        UserError: the arguments are wrong; a sweep raises it before its first run starts.
        KeyboardInterrupt: a run was told to stop, so that those after it are not started.
    """
    if options.hydra:
        with composition.explain_files():
            _hydra(command, options, list(options.hydra), lambda mapping, overrides: None)
        return 0

    checked: list[list[str]] = []

    def check(mapping: dict[str, object], overrides: list[str]) -> None:
        checked.append(overrides)
        execution.prepare_config(execution.read_config(command, mapping, overrides))

    def start(mapping: dict[str, object], overrides: list[str]) -> None:
        print(f"embodied-rl {command.name} {' '.join(overrides)}", flush=True)
        stops = count_stops()
        execution.execute_command(command, mapping, replace(options, overrides=tuple(overrides)))
        if count_stops() > stops:
            print("The sweep ends with the run that was stopped; no other one is started.", file=sys.stderr, flush=True)
            raise KeyboardInterrupt

    with TemporaryDirectory() as nowhere:
        with composition.explain_files():
            _hydra(command, options, ["--multirun", "hydra/launcher=basic", f"hydra.sweep.dir={nowhere}"], check)
        if not checked:
            raise UserError("-m finds nothing to run: a range is empty, or no name fits a glob(…).")
        if options.dry_run or options.show:
            _hydra(command, options, ["--multirun", f"hydra.sweep.dir={nowhere}"], start)
            return 0
    with note_new_folders() as folders:
        record = _hydra(command, options, ["--multirun", _RECORD], start)
    if command.compare is not None:
        execution.find_function(command.compare)(folders, record)
    return 0


def _hydra(
    command: Command, options: Options, flags: list[str], job: Callable[[dict[str, object], list[str]], None]
) -> Path:
    """Let Hydra expand the overrides and call `job` with each composed configuration; return the sweep's folder."""
    words, folders = sys.argv, [Path()]

    def task(composed: DictConfig) -> None:
        sys.argv = words  # as typed, for the run's provenance
        chosen = HydraConfig.get()
        folders[:] = [Path(chosen.sweep.dir)]
        typed = [text.removeprefix("++").removeprefix(composition.VALUE_OF) for text in chosen.overrides.task]
        job(composition.make_plain(composed, chosen.runtime.choices.get("experiment")), typed)

    told = composition.make_hydra_overrides(options.overrides, command.values, options.config_dir)
    folder = ["--config-dir", str(options.config_dir)] if options.config_dir else []
    quiet = () if options.hydra else _QUIET
    Plugins.instance().register(composition.ConfigPackages)
    main = hydra.main(version_base="1.3", config_path=str(composition.find_config_folder()), config_name=command.config)
    with _hand_to_hydra([*folder, *flags, *quiet, *told]), composition.explain_errors():
        main(task)()
    return folders[0]


@contextmanager
def _hand_to_hydra(words: list[str]) -> Iterator[None]:
    """Hydra reads the process's arguments, and hides tracebacks unless a variable says not to."""
    before, variable = sys.argv, os.environ.get(_TRACEBACKS)
    sys.argv, os.environ[_TRACEBACKS] = ["embodied-rl", *words], "1"
    try:
        yield
    finally:
        sys.argv = before
        del os.environ[_TRACEBACKS]
        if variable is not None:
            os.environ[_TRACEBACKS] = variable
