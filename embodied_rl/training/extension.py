"""Resume a run, with changes to its configuration: another device, or more iterations."""

from dataclasses import replace
from pathlib import Path

import torch

from embodied_rl.actors.learning import checkpoint
from embodied_rl.actors.placement import resolve_placement
from embodied_rl.assembly import build
from embodied_rl.config import assets, hub
from embodied_rl.config import freeze as configuration
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.runs.folder import RunFolder
from embodied_rl.schema import TrainConfig, config_file, untrusted_settings
from embodied_rl.training.device_memory import choose_micro_batch
from embodied_rl.training.final_report import PAGE

KEY = "train.iterations"
SCHEDULES = ("lr_final", "noise_final")
"""Settings of the algorithms here that spread a change over the whole run, unless they are 1."""
UNREAD = ("run.root", "reward.examined")
"""Settings that a run reads only before it starts."""
ORIGIN = ("policy.checkpoint", "policy.statistics", "policy.tokenizer")
"""Settings that a run reads until it has a checkpoint of its own."""


def list_unread(folder: RunFolder) -> tuple[str, ...]:
    """Return the keys of a run's configuration that are not read when the run is continued."""
    return UNREAD + (ORIGIN if checkpoint.list_steps(folder.checkpoints) else ())


def describe_resume(config: TrainConfig, folder: RunFolder) -> str:
    """Return the command that continues a run, with the settings that are never taken from its folder.

    Its storages are named by absolute paths, so that it may be typed in another folder.
    """
    unread, node = list_unread(folder), config.replay
    root = None if node.root is None else str(Path(node.root).absolute())
    named = node.preload is None or node.preload.startswith((assets.PREFIX, hub.PREFIX))
    preload = node.preload if named else str(Path(str(node.preload)).absolute())
    located = replace(config, replay=replace(node, root=root, preload=preload))
    settings = untrusted_settings.list_settings(TrainConfig, configuration.thaw_config(located))
    again = untrusted_settings.list_refused([each for each in settings if each.key not in unread], folder.path)
    return untrusted_settings.format_resume("train", folder.path, again)


def extend_config(old: TrainConfig, typed: TrainConfig) -> TrainConfig:
    """Return a run's configuration with the number of iterations typed with `resume`; unchanged if none was.

    Raises:
        UserError: the number is below that of the run.
    """
    if not any(word.lstrip("+~").partition("=")[0] == KEY for word in typed.run.overrides):
        return old
    number, before = typed.train.iterations, old.train.iterations
    if number < before:
        message = f"{KEY}={number} is below the run's {before}: resume can extend a run, not shorten it."
        raise UserError(message, code="run-shortened")
    return replace(old, train=replace(old.train, iterations=number))


def move_device(old: TrainConfig, typed: TrainConfig) -> TrainConfig:
    """Return a run's configuration with the `policy.device` typed with `resume`, or the CPU if its GPU is not here.

    Precision stays what it was.

    Raises:
        UserError: the device does not exist.
    """
    if old.policy.device == "auto":
        old = replace(old, policy=resolve_placement(old.policy))
    if any(word.lstrip("+~").partition("=")[0] == "policy.device" for word in typed.run.overrides):
        device = resolve_placement(typed.policy).device
    elif old.policy.device.startswith("cuda") and not torch.cuda.is_available():
        device = "cpu"
    else:
        device = resolve_placement(old.policy).device
    if device == old.policy.device:
        return old
    return choose_micro_batch(replace(old, policy=replace(old.policy, device=device)), None)


def extend_run(folder: RunFolder, iterations: int) -> str | None:
    """Write a run's new number of iterations to its folder; return a note for the user, or None if it is unchanged.

    Other changes typed with `resume` are not written. The report is removed, because it marks a run as finished.
    """
    old = config_file.load_config(TrainConfig, folder.config)
    if old.train.iterations == iterations:
        return None
    options = build.find_method(old.algo).options
    known = {f"algo.{name}": getattr(options, name) for name in SCHEDULES if hasattr(options, name)}
    changing = [f"{name}={value:g}" for name, value in known.items() if value != 1]
    exact = "It equals a run of this length from its start, except for the evaluation at its first end."
    if len(known) < len(SCHEDULES):
        exact = f"Whether it equals a run of this length from its start is up to algo.name={old.algo.name}."
    elif changing:
        exact = (
            f"It differs from a run of this length from its start: {' and '.join(changing)} spread over all "
            "iterations, so that the iterations done so far were further along than they would have been."
        )
    note = f"Extended from {old.train.iterations} to {iterations} iterations. {exact}"
    provenance.add_note(folder.path, note)
    (folder.path / PAGE).unlink(missing_ok=True)
    longer = replace(old, train=replace(old.train, iterations=iterations))
    folder.write_config(configuration.to_yaml(longer), folder.overrides())
    return note
