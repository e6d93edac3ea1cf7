"""Preparation of commands with simulators, policies, plans and runs: composing with Hydra, freezing, checking."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.core.plugins import Plugins as HydraPlugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from embodied_rl.cli.command import Command, Options
from embodied_rl.cli.help import KINDS
from embodied_rl.cli.run_command import Plugins, Preparation, Rows
from embodied_rl.config import plugins
from embodied_rl.config.freeze import RENAMED, describe_renamed, freeze_config, suggest_name, thaw_config
from embodied_rl.config.option_files import (
    READ_AS_DATA,
    check_key,
    find_config_folder,
    find_data_file,
    list_experiments,
    list_groups,
    list_third_party,
)
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runtime.ranks.torchrun_launcher import TorchrunPlace
from embodied_rl.runtime.simulators import python_environments
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.schema import (
    AlgoNode,
    CurriculumNode,
    DoctorConfig,
    Plan,
    PolicyNode,
    RewardNode,
    RunConfig,
    SamplerNode,
    SimNode,
    TrainConfig,
    TrainLoop,
)
from embodied_rl.schema.checks import check_episodes, validate_config
from embodied_rl.training.planner.stored import expand_stored_plan

VALUE_OF = "value_of_"
"""Prefix that hides a key from Hydra, where a folder of that name would make it choose a file."""


class TrainingPreparation(Preparation):
    """The steps for every command of the platform: each does what its configuration has keys for."""

    def check_options(self, command: Command, options: Options) -> Options:
        """Replace `plan=<file>.json` by the stored plan; check the experiment, and overrides without effect."""
        options = replace(options, overrides=expand_stored_plan(options.overrides))
        own = ("robot=", "human=")  # as other commands call them
        found = next((word for word in options.overrides if word.startswith(own)), None)
        if found is not None and "sim=robot" in options.overrides:
            words = (f"sim.{word}" if word.startswith(own) else word for word in options.overrides)
            options = replace(options, overrides=tuple(words))
        elif found is not None and command.config in ("train", "eval", "collect"):
            raise UserError(f"{found} is a setting of sim=robot: add sim=robot.", code="robot-without-sim")
        known = {item.name: item.command for item in list_experiments(options.config_dir)}
        for override in options.overrides:
            key, _, value = override.partition("=")
            wanted = known.get(value, command.name) if key == "experiment" else command.name
            if wanted not in (command.name, command.config):
                raise UserError(
                    f"experiment={value} is for `{wanted}`, not for `{command.name}`. "
                    f"Type: embodied-rl {wanted} experiment={value}",
                    code="experiment-of-another-command",
                )
            if not options.hydra:
                check_override(override, options.sweep)
        chosen = [word for word in options.overrides if word.startswith(("experiment=", "recipe="))]
        if len({word.partition("=")[0] for word in chosen}) == 2:
            message = f"{' and '.join(chosen)} each choose all settings: leave one of them out."
            raise UserError(message, code="keys-contradict")
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
        config = freeze_config(kind, mapping)
        return choose_sampler(config, overrides) if isinstance(config, TrainConfig) else config

    def adapt(self, name: str, config: Any) -> Any:
        """Return the configuration with torchrun's processes as ranks; unchanged without torchrun.

        `plan=auto` becomes colocated, because torchrun has already started the ranks.

        Raises:
            UserError: the command has no ranks, or the given plan.ranks differs from the number of processes.
        """
        place = TorchrunPlace.find()
        if place is None:
            return config
        if not isinstance(config, TrainConfig) or name != "train":
            if place.size == 1:
                return config
            raise UserError(
                f"torchrun starts ranks of `train`; `{name}` is one process: type it without torchrun.",
                code="torchrun-not-train",
            )
        if config.resume is not None:
            return config  # the stored run sets the number of ranks
        if any(override.lstrip("+").partition("=")[0] == "plan.ranks" for override in config.run.overrides):
            place.check(config.plan.ranks, ", or leave plan.ranks out")
        auto = {"allocation": "colocated", "slices": 1} if config.plan.allocation == "auto" else {}
        return replace(config, plan=replace(config.plan, ranks=place.size, **auto))

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
            if other := python_environments.list_other_versions(config.sim):
                print(f"sim={config.sim.name} has versions that were not tested: {', '.join(other)}", file=sys.stderr)
        return config, found

    def describe(self, config: Any, found: Plugins) -> Rows:
        """Return the plug-ins, plan, size and run folder; nothing of what is resumed, which its own files describe."""
        rows: Rows = []
        if getattr(config, "resume", None) is not None:
            return rows
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
            rows.append(("train", describe_size(config, loop)))
        if isinstance(run_config := getattr(config, "run", None), RunConfig):
            rows.append(("run", f"{run_config.root}/{run_config.experiment}/<time>_s{getattr(config, 'seed', 0)}"))
        return rows


def describe_size(config: Any, loop: TrainLoop) -> str:
    """Return how many decisions a run makes, or episodes, where its algorithm collects whole ones, or neither."""
    if isinstance(config, TrainConfig) and not config.replay.collect:
        return f"{loop.iterations} iterations of learning from {config.replay.preload}"
    kind, options = plugins.configure_plugin("algorithms", config.algo, "algo")
    envs = config.sim.num_envs
    if cast("Any", kind).needs(options).fresh_episodes:
        size = f"{loop.iterations} iterations × {envs} whole episodes = {loop.iterations * envs:,} episodes"
        return f"{size}; train.decisions has no effect"
    size = f"{loop.iterations} iterations × {loop.decisions} decisions × {envs} environments"
    return f"{size} = {loop.iterations * loop.decisions * envs:,} decisions"


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
    """Remove keys of `algo` that a typed experiment or recipe sets and a typed `algo=<name>` lacks; print which.

    Typed keys stay, so that a misspelt one is refused.
    """
    typed = dict(override.split("=", 1) for override in overrides if "=" in override)
    node = mapping.get("algo")
    group = next((group for group in ("recipe", "experiment") if group in typed), None)
    if group is None or "algo" not in typed or not (isinstance(node, dict) and isinstance(node.get("name"), str)):
        return mapping
    kinds = (AlgoNode, plugins.find_plugin(AlgoNode.kind, node["name"]).Config)
    kept = {item.name for kind in kinds for item in fields(kind)}
    kept |= {key.split(".")[1] for key in typed if key.startswith("algo.")}
    if dropped := ", ".join(key for key in node if key not in kept):
        print(f"algo={typed['algo']} does without these of {group}={typed[group]}: {dropped}.", file=sys.stderr)
    return {**mapping, "algo": {key: value for key, value in node.items() if key in kept}}


def choose_sampler(config: TrainConfig, overrides: Sequence[str]) -> TrainConfig:
    """Replace the sampler that files set by that of the policy, where the policy has only one; print it.

    A typed `algo.sampler.name` or algorithm of flows, such as `algo=flow_sde`, stays, so that it is refused.
    """
    typed = dict(override.lstrip("+").split("=", 1) for override in overrides if "=" in override)
    if config.resume is not None or "algo.sampler.name" in typed or typed.get("algo", "").startswith("flow_"):
        return config
    from embodied_rl.actors.kinds import find_sampler  # imports torch, which --help does without

    name, given = find_sampler(plugins.find_plugin("policies", config.policy.name)), config.algo.sampler
    if name is None or given.name == name:
        return config
    algorithm, options = plugins.configure_plugin("algorithms", config.algo, "algo")
    needs = cast("Any", algorithm).needs(options)
    if needs.fixed_noise or needs.start_noise is not None:
        return config
    print(f"algo.sampler.name={name}, as policy.name={config.policy.name} needs it.", file=sys.stderr)
    sampler = SamplerNode(name, std=given.std, temperature=given.temperature)
    return replace(config, algo=replace(config.algo, sampler=sampler))


class ConfigPackages(SearchPathPlugin):
    """A Hydra plug-in that adds the YAML of other distributions to the search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in list_third_party():
            search_path.append("embodied-rl", f"pkg://{package}")


def make_hydra_overrides(overrides: Sequence[str], values: Sequence[str], config_dir: Path | None = None) -> list[str]:
    """Translate overrides into Hydra's syntax.

    A plain `key=value` becomes `++key=value`, because it may set a key that no YAML mentions; the dataclasses check
    later whether the key exists. Choices of a file, Hydra's own keys, and overrides that start with + or ~ stay.

    Args:
        overrides: as typed.
        values: keys that hold a plain value although a folder of YAML has the same name.
        config_dir: an extra folder of YAML.

    Raises:
        UserError: a text is not a valid override.
    """
    groups, result = list_groups(config_dir), list[str]()
    for text, override in map(_parse_override, overrides):
        key = override.key_or_group
        if text.startswith(("+", "~")) or key.startswith(("hydra.", "hydra/")):
            result.append(text)
            continue
        check_key(text, key)
        group = key.partition("/")[0].partition("@")[0]
        if group not in groups:
            result.append(f"++{text}")
        elif group in values:
            file = find_data_file(group, text.partition("=")[2], config_dir) if group in READ_AS_DATA else None
            result.append(f"++{VALUE_OF}{text}" if file is None else f"++{VALUE_OF}{group}='{file}'")
        else:
            value = override.value()
            names = value.list if isinstance(value, ChoiceSweep) else [value]
            if any(item is None or isinstance(item, bool | int | float | list | dict) for item in names):
                raise UserError(
                    f"{text}: {key} is chosen by name, such as {key}=<name>. Its keys are set one by one.",
                    code="choice-not-a-name",
                )
            result.append(text)
    return result


def _parse_override(text: str) -> tuple[str, Override]:
    """Parse an override with Hydra. A value that Hydra cannot parse, such as some paths, is quoted as text."""
    parser = OverridesParser.create()
    try:
        return text, parser.parse_override(text)
    except HydraException as error:
        key, equals, value = text.partition("=")
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        quoted = f"{key}{equals}'{escaped}'"
        try:
            return quoted, parser.parse_override(quoted)
        except HydraException:
            problem = str(error).partition("\n")[0]
            raise UserError(
                f"{text} is not a setting: {problem}. Settings are written key=value.", code="setting-invalid"
            ) from None


def compose_config(
    name: str | None, overrides: Sequence[str] = (), values: Sequence[str] = (), config_dir: Path | None = None
) -> dict[str, Any]:
    """Compose one configuration.

    Args:
        name: the YAML to start from, such as "train"; None starts from nothing.
        overrides: as typed on the command line.
        values: see `make_hydra_overrides`.
        config_dir: an extra folder of YAML, searched last.

    Raises:
        UserError: an unknown choice, or an override that cannot be parsed.
    """
    hydra_overrides = make_hydra_overrides(overrides, values, config_dir)
    if config_dir:
        hydra_overrides.append(f"hydra.searchpath=['file://{config_dir.resolve()}']")
    HydraPlugins.instance().register(ConfigPackages)
    with (
        explain_errors(),
        explain_files(),
        initialize_config_dir(config_dir=str(find_config_folder()), version_base="1.3", job_name="embodied-rl"),
    ):
        composed = hydra_compose(name, hydra_overrides, return_hydra_config=True)
        choices = OmegaConf.select(composed, "hydra.runtime.choices")
        return make_plain(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]), choices)


def make_plain(composed: DictConfig, choices: Mapping[str, str | None]) -> dict[str, Any]:
    """Convert a composed configuration to plain values; a chosen recipe or experiment names a run that has no name."""
    result = cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=True))
    experiment = choices.get("recipe") or choices.get("experiment")
    if experiment and isinstance(result.setdefault("run", {}), dict):
        result["run"].setdefault("experiment", experiment)
    return {key.removeprefix(VALUE_OF): value for key, value in result.items()}


def _suggest_plugin(group: str, name: str) -> str:
    """Return what to type for a plug-in that has no YAML file; empty if there is no such plug-in."""
    if group not in KINDS or name not in plugins.list_plugins(KINDS[group]):
        return ""
    return f" It is a plug-in without a file {group}/{name}.yaml: type {group}.name={name}."


@contextmanager
def explain_errors() -> Iterator[None]:
    """Convert errors of Hydra and OmegaConf to `UserError`; a context manager."""
    try:
        yield
    except MissingConfigException as error:
        group, _, name = (error.missing_cfg_file or "").removesuffix(".yaml").rpartition("/")
        if error.options is None:
            raise UserError(str(error), code="config-invalid") from None
        known = [option.rpartition("/")[2] for option in error.options]
        suggestion = _suggest_plugin(group, name) or suggest_name(name, known)
        raise UserError(f"unknown {group or 'configuration'} '{name}'.{suggestion}", code="choice-unknown") from None
    except (HydraException, OmegaConfBaseException) as error:
        if "No match in the defaults list" not in str(error):
            raise UserError(str(error), code="config-invalid") from None
        problem = str(error).partition("\n")[0]
        group = problem.partition("Could not override '")[2].partition("'")[0].partition("@")[0]
        remedy = describe_renamed(group, RENAMED.values()) or " This command has no such choice."
        raise UserError(f"{problem}{remedy}", code="choice-not-of-command") from None


@contextmanager
def explain_files() -> Iterator[None]:
    """Convert the errors of damaged YAML files to `UserError`; a context manager for composing, not for a run."""
    try:
        yield
    except YAMLError as error:
        problem = " ".join(str(error).split())
        raise UserError(f"A configuration file is not valid YAML: {problem}", code="config-damaged") from None
    except RecursionError:
        raise UserError(
            "The `defaults` of configuration files choose each other in a circle.", code="config-circular"
        ) from None
