"""Freeze, check, describe and run a composed configuration."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from importlib import import_module
from typing import Any

from embodied_rl.cli import torchrun_plan
from embodied_rl.cli.options import Options
from embodied_rl.cli.table import Command
from embodied_rl.cli.text import print_columns
from embodied_rl.config import plugins, schema
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
    TrainLoop,
)
from embodied_rl.runtime.simulators.kind import SimulatorKind

Plugins = dict[str, type[Any]]
"""Node of the configuration → the plug-in's class."""


def execute_command(command: Command, mapping: dict[str, Any], options: Options) -> int:
    """Check one composed configuration, then show it, describe it or run it, as the options say."""
    config = torchrun_plan.place_on_torchrun(command.name, read_config(command, mapping, options.overrides))
    if options.show:
        print(to_yaml(find_plugins(config)[0]), end="")
        return 0
    config, found = prepare_config(config)
    if options.dry_run:
        more = () if command.check is None else find_function(command.check)(config) or ()
        print_config(command, config, found, more)
        return 0
    return find_function(command.body)(config) or 0


def find_function(path: str) -> Callable[..., Any]:
    """Import and return the function of a path "module:function"."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def read_config(command: Command, mapping: dict[str, Any], overrides: Sequence[str]) -> Any:
    """Freeze a composed mapping, with the experiment's name and the overrides filled in."""
    kind = getattr(schema, command.schema)
    mapping = drop_keys_of_other_algorithm(mapping, overrides)
    run_node = mapping.get("run", {})
    names = {item.name for item in fields(kind)}
    if "overrides" in names:
        mapping = {**mapping, "overrides": list(overrides)}
    if "run" in names and isinstance(run_node, dict):
        run_node = {**run_node, "overrides": list(overrides)}
        experiment = run_node.get("experiment") or command.name.replace(" ", "_")
        mapping = {**mapping, "run": {**run_node, "experiment": experiment}}
    return freeze_config(kind, mapping)


def drop_keys_of_other_algorithm(mapping: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return the mapping without keys of `algo` that an experiment sets, but the `algo=<name>` typed beside it lacks;
    print which. Typed keys stay, so that a misspelt one is refused.
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


def prepare_config(config: Any) -> tuple[Any, Plugins]:
    """Check a configuration and find its plug-ins, so that nothing can be misspelt once workers start.

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
        check_episodes(
            SimulatorKind.find(config.sim).spec, getattr(config, "split", None), getattr(config, "task", None)
        )
    return config, found


def find_plugins(config: Any) -> tuple[Any, Plugins]:
    """Find the plug-ins that a configuration names, and fill in their defaults."""
    found: Plugins = {}
    for item in fields(config):
        node = getattr(config, item.name)
        if isinstance(node, SimNode | PolicyNode | AlgoNode | CurriculumNode):
            found[item.name], own = plugins.configure_plugin(node.kind, node, item.name)
            if getattr(node, "checkpoint", None) is None:  # a checkpoint holds the sizes of its network itself
                config = replace(config, **{item.name: replace(node, options=thaw_config(own))})
    return config, found


def print_config(command: Command, config: Any, found: Plugins, more: Sequence[tuple[str, str]] = ()) -> None:
    """Print the command and the plug-ins, plan and run folder that it would use, then what its check told."""
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
