"""Parse the arguments of a command, freeze and check its configuration, and run it."""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from importlib import import_module
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from embodied_rl.cli.command_table import Command
from embodied_rl.cli.options import Options, parse_arguments
from embodied_rl.cli.text import print_columns
from embodied_rl.config import compose, plugins, schema
from embodied_rl.config.checks import check_episodes, validate_config
from embodied_rl.config.freeze import freeze_config, thaw_config, to_yaml
from embodied_rl.config.schema import (
    AlgoNode,
    CurriculumNode,
    DoctorConfig,
    Plan,
    PolicyNode,
    RewardNode,
    RunConfig,
    SimNode,
    TrainConfig,
    TrainLoop,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.ranks.torchrun_place import TorchrunPlace
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.training.planner import stored

Plugins = dict[str, type[Any]]
"""Node of the configuration → the plug-in's class."""


def run_command(command: Command, arguments: Sequence[str]) -> int:
    """Run one command with its arguments, once or for every combination of a sweep.

    Raises:
        UserError: the arguments are wrong.
    """
    options = parse_arguments(command, arguments)
    options = replace(options, overrides=stored.expand_stored_plan(options.overrides))
    check_experiment(command, options)
    if not options.hydra:
        for override in options.overrides:
            check_override(override, options.sweep)
    if options.sweep or options.hydra:
        from embodied_rl.cli import sweep

        return sweep.run_sweep(command, options)
    mapping = compose.compose_config(command.config, options.overrides, command.values, options.config_dir)
    return execute_command(command, mapping, options)


def check_experiment(command: Command, options: Options) -> None:
    """Check that a chosen experiment was written for this command, or for one with the same YAML."""
    known = {item.name: item for item in compose.list_experiments(options.config_dir)}
    for override in options.overrides:
        key, _, value = override.partition("=")
        if key == "experiment" and value in known and known[value].command not in (command.name, command.config):
            wanted = known[value].command
            raise UserError(
                f"experiment={value} is for `{wanted}`, not for `{command.name}`. "
                f"Type: embodied-rl {wanted} experiment={value}",
                code="experiment-of-another-command",
            )


def check_override(text: str, sweep: bool) -> None:
    """Refuse an override that would have no effect, and several values without `-m`."""
    key, _, value = text.partition("=")
    if key.startswith("~"):
        raise UserError(f"{text}: keys cannot be removed. Set {key[1:]} to another value.", code="override-removes-key")
    if key.startswith("hydra.") and not sweep:
        raise UserError(
            f"{text} has no effect here. run.root=<folder> chooses where runs are written.", code="override-no-effect"
        )
    with suppress(HydraException):  # what cannot be parsed is quoted, and checked, when it is composed
        if not sweep and OverridesParser.create().parse_override(text).is_sweep_override():
            raise UserError(
                f"{text} has several values: add -m to run each, or write {key}=[{value}] for a list.",
                code="override-several-values",
            )


def execute_command(command: Command, mapping: dict[str, Any], options: Options) -> int:
    """Check one composed configuration, then print it, describe it or run it, according to the options."""
    config = set_torchrun_ranks(command.name, freeze_command_config(command, mapping, options.overrides))
    if options.show:
        print(to_yaml(find_plugins(config)[0]), end="")
        return 0
    config, found = prepare_config(config)
    if options.dry_run:
        more = () if command.check is None else import_function(command.check)(config) or ()
        print_dry_run(command, config, found, more)
        return 0
    return import_function(command.body)(config) or 0


def import_function(path: str) -> Callable[..., Any]:
    """Import and return the function of a path "module:function"."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def freeze_command_config(command: Command, mapping: dict[str, Any], overrides: Sequence[str]) -> Any:
    """Freeze a composed mapping, after adding the experiment's name and the overrides."""
    kind = getattr(schema, command.schema)
    mapping = drop_keys_of_other_algorithm(mapping, overrides)
    run_node = mapping.get("run", {})
    names = {item.name for item in fields(kind)}
    if "overrides" in names:
        mapping = {**mapping, "overrides": list(overrides)}
    if "run" in names and isinstance(run_node, dict):
        experiment = run_node.get("experiment") or command.name.replace(" ", "_")
        mapping = {**mapping, "run": {**run_node, "overrides": list(overrides), "experiment": experiment}}
    return freeze_config(kind, mapping)


def drop_keys_of_other_algorithm(mapping: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Remove keys of `algo` that a typed experiment sets and a typed `algo=<name>` does not have; print which.

    Typed keys stay, so that a misspelt one is refused.
    """
    typed = dict(override.split("=", 1) for override in overrides if "=" in override)
    node = mapping.get("algo")
    if not typed.keys() >= {"experiment", "algo"} or not (isinstance(node, dict) and isinstance(node.get("name"), str)):
        return mapping
    kinds = (AlgoNode, plugins.find_plugin(AlgoNode.kind, node["name"]).Config)
    kept = {item.name for kind in kinds for item in fields(kind)}
    kept |= {key.split(".")[1] for key in typed if key.startswith("algo.")}
    if dropped := ", ".join(f"algo.{key}" for key in node if key not in kept):
        text = f"algo={typed['algo']} has no {dropped}, set by experiment={typed['experiment']}: ignored."
        print(text, file=sys.stderr)
    return {**mapping, "algo": {key: value for key, value in node.items() if key in kept}}


def set_torchrun_ranks(command: str, config: Any) -> Any:
    """Return the configuration with torchrun's processes as ranks; unchanged if torchrun did not start this process.

    `plan=auto` becomes colocated, because torchrun has already started the ranks.

    Raises:
        UserError: the command has no ranks, or the given plan.ranks differs from the number of processes.
    """
    place = TorchrunPlace.find()
    if place is None:
        return config
    if not isinstance(config, TrainConfig) or command != "train":
        if place.size == 1:
            return config
        raise UserError(
            f"torchrun starts ranks of `train`; `{command}` is one process: type it without torchrun.",
            code="torchrun-not-train",
        )
    if config.resume is not None:
        return config  # the stored run sets the number of ranks
    if any(override.lstrip("+").partition("=")[0] == "plan.ranks" for override in config.run.overrides):
        place.check(config.plan.ranks, ", or leave plan.ranks out")
    auto = {"allocation": "colocated", "slices": 1} if config.plan.allocation == "auto" else {}
    return replace(config, plan=replace(config.plan, ranks=place.size, **auto))


def prepare_config(config: Any) -> tuple[Any, Plugins]:
    """Check a configuration and find its plug-ins before any worker starts.

    Returns:
        The configuration with the plug-ins' defaults filled in, and node → class of the plug-in.

    Raises:
        UserError: a key is wrong; the message names it.
    """
    validate_config(config)
    if getattr(config, "resume", None) is not None:  # the run uses its stored configuration, not the composed one
        return config, {}
    config, found = find_plugins(config)
    if "sim" in found and not isinstance(config, DoctorConfig):  # doctor itself reports why a simulator cannot start
        spec = SimulatorKind.find(config.sim).spec
        check_episodes(spec, getattr(config, "split", None), getattr(config, "task", None))
    return config, found


def find_plugins(config: Any) -> tuple[Any, Plugins]:
    """Find the plug-ins that a configuration names, and fill in their defaults."""
    found: Plugins = {}
    for item in fields(config):
        node = getattr(config, item.name)
        if isinstance(node, SimNode | PolicyNode | AlgoNode | CurriculumNode):
            found[item.name], own = plugins.configure_plugin(node.kind, node, item.name)
            if getattr(node, "checkpoint", None) is None:  # a checkpoint holds the sizes of its network
                config = replace(config, **{item.name: replace(node, options=thaw_config(own))})
    return config, found


def print_dry_run(command: Command, config: Any, found: Plugins, more: Sequence[tuple[str, str]] = ()) -> None:
    """Print the command, its plug-ins, plan and run folder, and the rows that its check returned."""
    rows = [("command", f"{command.name} ({command.body})")]
    for where, plugin in found.items():
        rows.append((where, f"{getattr(config, where).name} ({plugin.__module__}:{plugin.__qualname__})"))
    if isinstance(plan := getattr(config, "plan", None), Plan) and plan.allocation == "auto":
        rows.append(("plan", "auto: chosen for this machine when training starts; embodied-rl plan shows it"))
    elif "sim" in found and isinstance(plan, Plan):
        each = config.sim.num_envs // plan.parts
        rows.append(("plan", f"{plan.allocation}: {plan.parts} simulators of {each} environments"))
    if isinstance(reward := getattr(config, "reward", None), RewardNode) and reward.name is not None:
        rows.append(("reward", f"{reward.name}, mode={reward.mode}"))
    if isinstance(loop := getattr(config, "train", None), TrainLoop):
        total = loop.iterations * loop.decisions * config.sim.num_envs
        size = f"{loop.iterations} iterations × {loop.decisions} decisions × {config.sim.num_envs} environments"
        rows.append(("train", f"{size} = {total:,} decisions"))
    if isinstance(run_config := getattr(config, "run", None), RunConfig):
        rows.append(("run", f"{run_config.root}/{run_config.experiment}/<time>_s{getattr(config, 'seed', 0)}"))
    print_columns([*rows, *more], indent=0)
    print("dry run: the configuration is sound, nothing was started")
