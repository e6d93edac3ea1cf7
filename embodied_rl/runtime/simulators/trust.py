"""Check the simulator settings in files. Policy files, run folders and benchmarks may come from strangers; opening such
a file must not run a program that it names.

`embodied_rl.interfaces.sim.trusted_setting` marks the settings that decide which code runs. Their values come from the
command line, or the configuration on this machine. `docs/security.md` lists what may come from a stranger or not.
"""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from embodied_rl.config import plugins
from embodied_rl.config.freeze import freeze_config, thaw_config
from embodied_rl.config.schema import SimChange, SimNode, TrainConfig
from embodied_rl.interfaces.errors import UserError
from embodied_rl.interfaces.sim import list_trusted_defaults
from embodied_rl.runs.untrusted_files import name_file

CLUSTERS = ("auto", "local")
"""Those that a run folder may name: this machine's own. Who connects to another one runs what it sends."""


def check_settings(said: Mapping[str, Any], typed: Collection[str], source: str) -> None:
    """Check that a file does not decide which code runs.

    Args:
        said: the `sim` node of the file.
        typed: keys of `sim` that the user gave; they replace those of the file.
        source: the file, for messages.

    Raises:
        UserError: the file names code to run (the message gives the text to type instead), or an unknown simulator.
    """
    try:
        trusted = list_trusted_settings(str(said.get("name")))
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    given = {key: said[key] for key in trusted if key in said and key not in typed}
    refused = {key: value for key, value in given.items() if value != _plain(trusted[key]) and not is_harmless(value)}
    if refused:
        keys = ", ".join(f"sim.{key}" for key in refused)
        overrides = " ".join(format_override(f"sim.{key}", value) for key, value in refused.items())
        raise UserError(
            f"{source} says which code to run ({keys}), and that is never taken from a file. "
            f"If you trust what it names, type it yourself: {overrides}"
        )


def list_trusted_settings(simulator: str) -> dict[str, Any]:
    """Return the keys of `sim` that only a trusted source may set, with their defaults.

    Raises:
        UserError: the simulator does not exist.
    """
    return list_trusted_defaults(SimNode) | list_trusted_defaults(plugins.find_plugin("sims", simulator).Config)


def repeat_trusted(stored: TrainConfig, typed: TrainConfig, file: Path) -> TrainConfig:
    """Return the configuration of a resumed run, with trusted settings taken from the command line.

    Args:
        stored: configuration in the folder of the run.
        typed: configuration composed from the command line that resumes the run.
        file: path of `stored`, for messages.

    Raises:
        UserError: the folder sets trusted settings or a cluster that the user did not type, or other keys were typed.
    """
    keys, said, given = list_typed_settings(typed.run.overrides), thaw_config(stored.sim), thaw_config(typed.sim)
    check_settings(said, keys, str(file))
    if other := keys - list_trusted_settings(stored.sim.name).keys():
        raise UserError(
            f"sim.{min(other)}: resume continues a run exactly as it was configured, so sim.{min(other)} cannot be "
            "changed. To start a new run from its weights: policy.checkpoint=<its folder>."
        )
    if stored.runtime == "ray" and stored.cluster not in CLUSTERS and not _is_typed("cluster", typed.run.overrides):
        remedy = format_override("cluster", stored.cluster)
        raise UserError(
            f"{file} names a cluster, which is never taken from a file. If you trust it, type it yourself: {remedy}"
        )
    cluster = typed.cluster if _is_typed("cluster", typed.run.overrides) else stored.cluster
    with name_file(file):
        sim = freeze_config(SimNode, said | {key: given[key] for key in keys if key in given}, "sim")
        plugins.configure_plugin("sims", sim, "sim")  # before ranks start
    return replace(stored, sim=sim, cluster=cluster)


def repeat_trusted_change(stored: SimChange, simulators: Collection[str], typed: SimChange, file: Path) -> SimChange:
    """Return the changed settings of a continued evaluation, with trusted settings taken from the command line.

    Args:
        stored: the change in the evaluation's folder.
        simulators: names of the simulators that it is applied to.
        typed: the change on the command line that continues the evaluation.
        file: the file of `stored`, for messages.

    Raises:
        UserError: the folder sets trusted settings that the user did not type, or other keys were typed.
    """
    for name in simulators:
        if typed.name is not None or (typed.options.keys() - list_trusted_settings(name).keys()):
            key = min(typed.options.keys() - list_trusted_settings(name).keys(), default="name")
            raise UserError(
                f"sim.{key}: resume continues an evaluation exactly as it was begun, so sim.{key} cannot be changed. "
                "Evaluate anew, without resume."
            )
        check_settings({"name": name, **stored.options}, typed.options, str(file))
    return SimChange(stored.name, {**stored.options, **typed.options})


def list_typed_settings(overrides: Sequence[str]) -> set[str]:
    """Return the keys of `sim` among typed overrides, such as "options" for `sim.options.reward_type=dense`."""
    names = [text.lstrip("+~").partition("=")[0] for text in overrides]
    return {name.split(".")[1] for name in names if name.startswith("sim.")}


def _is_typed(key: str, overrides: Sequence[str]) -> bool:
    return any(text.lstrip("+~").partition("=")[0] == key for text in overrides)


def is_harmless(value: Any) -> bool:
    """Return whether a value cannot name code: None, numbers, and mappings and lists of them."""
    if isinstance(value, Mapping):
        return all(is_harmless(each) for each in value.values())
    if isinstance(value, list | tuple):
        return all(is_harmless(each) for each in value)
    return value is None or isinstance(value, bool | int | float)


def format_override(key: str, value: Any) -> str:
    """Return the shell text that sets a key; control characters are escaped, not sent to the terminal."""
    text = value if isinstance(value, str) and value.isprintable() and not set(value) & set("{}[],='\" ") else None
    return shlex.quote(f"{key}={text or _written(value)}")


def _written(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_written(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_written, value)) + "]"
    return json.dumps(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
