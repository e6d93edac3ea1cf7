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

from embodied_rl.cli import run_command
from embodied_rl.cli.command import Command, Options
from embodied_rl.commands import preparation
from embodied_rl.config.option_files import find_config_folder
from embodied_rl.interfaces.errors import UserError
from embodied_rl.system.atomic_write import note_new_folders
from embodied_rl.system.signals import count_stops

# Hydra makes only the sweep's folder, with multirun.yaml, and configures no logging: runs make their own folders.
_QUIET = (
    "hydra/job_logging=none",
    "hydra/hydra_logging=none",
    "hydra.output_subdir=null",
    "hydra.run.dir=.",
    "hydra.sweep.subdir=.",
)
_SWEEP_FOLDER = "hydra.sweep.dir=${oc.select:run.root,runs}/sweeps/${now:%Y-%m-%d_%H-%M-%S}"


def run_sweep(command: Command, options: Options) -> int:
    """Check all combinations of a sweep, run them in order, and compare their reports; or handle an option of Hydra's.

    Raises:
        UserError: the arguments are wrong; a sweep raises it before its first run starts.
        KeyboardInterrupt: a run was stopped by the user, and the runs after it are not started.
    """
    if options.hydra:
        with preparation.explain_files():
            _run_hydra(command, options, list(options.hydra), lambda mapping, overrides: None)
        return 0

    checked: list[list[str]] = []

    def check(mapping: dict[str, object], overrides: list[str]) -> None:
        checked.append(overrides)
        config = run_command.freeze_command_config(command, mapping, overrides, download=not options.show)
        if not options.show:  # to print a configuration starts no simulator
            run_command.load_preparation(command).check(config)

    def start(mapping: dict[str, object], overrides: list[str]) -> None:
        print(f"embodied-rl {command.name} {' '.join(overrides)}", flush=True)
        stops = count_stops()
        run_command.execute_command(command, mapping, replace(options, overrides=tuple(overrides)))
        if count_stops() > stops:
            print("The sweep ends with the run that was stopped; no other one is started.", file=sys.stderr, flush=True)
            raise KeyboardInterrupt

    with TemporaryDirectory() as temporary:
        with preparation.explain_files():
            _run_hydra(command, options, ["--multirun", "hydra/launcher=basic", f"hydra.sweep.dir={temporary}"], check)
        if not checked:
            raise UserError("-m finds nothing to run: a range is empty, or no name fits a glob(…).", code="sweep-empty")
        if options.dry_run or options.show:
            _run_hydra(command, options, ["--multirun", f"hydra.sweep.dir={temporary}"], start)
            return 0
    with note_new_folders() as folders:
        sweep_folder = _run_hydra(command, options, ["--multirun", _SWEEP_FOLDER], start)
    if command.compare is not None:
        run_command.import_name(command.compare)(folders, sweep_folder)
    return 0


def _run_hydra(
    command: Command, options: Options, flags: list[str], job: Callable[[dict[str, object], list[str]], None]
) -> Path:
    """Let Hydra expand the overrides and call `job` with each composed configuration; return the sweep's folder."""
    words, folders = sys.argv, [Path()]

    def task(composed: DictConfig) -> None:
        sys.argv = words  # as typed, for the run's provenance
        hydra_config = HydraConfig.get()
        folders[:] = [Path(hydra_config.sweep.dir)]
        typed = [text.removeprefix("++").removeprefix(preparation.VALUE_OF) for text in hydra_config.overrides.task]
        job(preparation.make_plain(composed, hydra_config.runtime.choices), typed)

    overrides = preparation.make_hydra_overrides(options.overrides, command.values, options.config_dir)
    folder = ["--config-dir", str(options.config_dir)] if options.config_dir else []
    quiet = () if options.hydra else _QUIET
    Plugins.instance().register(preparation.ConfigPackages)
    main = hydra.main(version_base="1.3", config_path=str(find_config_folder()), config_name=command.config)
    with _set_hydra_arguments([*folder, *flags, *quiet, *overrides]), preparation.explain_errors():
        main(task)()
    return folders[0]


@contextmanager
def _set_hydra_arguments(words: list[str]) -> Iterator[None]:
    """Set the process's arguments, which Hydra reads, and the variable that keeps it from hiding tracebacks."""
    name = "HYDRA_FULL_ERROR"
    arguments, variable = sys.argv, os.environ.get(name)
    sys.argv, os.environ[name] = ["embodied-rl", *words], "1"
    try:
        yield
    finally:
        sys.argv = arguments
        del os.environ[name]
        if variable is not None:
            os.environ[name] = variable
