"""Preparation of commands with simulators, policies, plans and runs."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from embodied_rl.cli.command import Command
from embodied_rl.cli.options import Options
from embodied_rl.cli.preparation import Plugins, Preparation, Rows
from embodied_rl.config import plugins
from embodied_rl.config.freeze import freeze_config, thaw_config
from embodied_rl.config.option_files import list_experiments
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import (
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
from embodied_rl.schema.checks import check_episodes, validate_config
from embodied_rl.schema.compose import compose_config
from embodied_rl.training.planner.stored import expand_stored_plan


class TrainingPreparation(Preparation):
    """The steps for every command of the platform: each does what its configuration has keys for."""

    def check_options(self, command: Command, options: Options) -> Options:
        """Replace `plan=<file>.json` by the stored plan; check the experiment, and overrides without effect."""
        options = replace(options, overrides=expand_stored_plan(options.overrides))
        check_experiment(command, options)
        for override in () if options.hydra else options.overrides:
            check_override(override, options.sweep)
        return options

    def compose(self, command: Command, options: Options) -> dict[str, Any]:
        """Compose YAML and overrides with Hydra."""
        return compose_config(command.config, options.overrides, command.values, options.config_dir)

    def sweep(self, command: Command, options: Options) -> int:
        """Run every combination of a sweep, or handle an option of Hydra's."""
        from embodied_rl.commands import sweep  # most commands are no sweep

        return sweep.run_sweep(command, options)

    def freeze(self, name: str, kind: type[Any], mapping: dict[str, Any], overrides: Sequence[str]) -> Any:
        """Freeze a composed mapping, after adding the experiment's name and the overrides."""
        mapping = drop_keys_of_other_algorithm(mapping, overrides)
        run_node = mapping.get("run", {})
        names = {item.name for item in fields(kind)}
        if "overrides" in names:
            mapping = {**mapping, "overrides": list(overrides)}
        if "run" in names and isinstance(run_node, dict):
            experiment = run_node.get("experiment") or name.replace(" ", "_")
            mapping = {**mapping, "run": {**run_node, "overrides": list(overrides), "experiment": experiment}}
        return freeze_config(kind, mapping)

    def adapt(self, name: str, config: Any) -> Any:
        """Return the configuration with torchrun's processes as ranks."""
        return set_torchrun_ranks(name, config)

    def find_plugins(self, config: Any) -> tuple[Any, Plugins]:
        """Find the plug-ins that a configuration names, and fill in their defaults."""
        found: Plugins = {}
        for item in fields(config):
            node = getattr(config, item.name)
            if isinstance(node, SimNode | PolicyNode | AlgoNode | CurriculumNode):
                found[item.name], own = plugins.configure_plugin(node.kind, node, item.name)
                if getattr(node, "checkpoint", None) is None:  # a checkpoint holds the sizes of its network
                    config = replace(config, **{item.name: replace(node, options=thaw_config(own))})
        return config, found

    def check(self, config: Any) -> tuple[Any, Plugins]:
        """Check a configuration and find its plug-ins before any worker starts.

        Raises:
            UserError: a key is wrong; the message names it.
        """
        validate_config(config)
        if getattr(config, "resume", None) is not None:  # the run uses its stored configuration, not the composed one
            return config, {}
        config, found = self.find_plugins(config)
        if "sim" in found and not isinstance(config, DoctorConfig):  # doctor reports why a simulator cannot start
            spec = SimulatorKind.find(config.sim).spec
            check_episodes(spec, getattr(config, "split", None), getattr(config, "task", None))
        return config, found

    def describe(self, config: Any, found: Plugins) -> Rows:
        """Return the plug-ins, plan, size and run folder."""
        rows: Rows = []
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
        return rows


def check_experiment(command: Command, options: Options) -> None:
    """Check that a chosen experiment was written for this command, or for one with the same YAML."""
    known = {item.name: item for item in list_experiments(options.config_dir)}
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
