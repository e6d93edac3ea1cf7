"""Compose YAML and overrides into a plain mapping with Hydra."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from embodied_rl.config.freeze import RENAMED, describe_renamed, suggest_name
from embodied_rl.config.option_files import (
    READ_AS_DATA,
    check_key,
    find_config_folder,
    find_data_file,
    list_groups,
    list_third_party,
)
from embodied_rl.interfaces.errors import UserError

VALUE_OF = "value_of_"
"""Prefix that hides a key from Hydra, where a folder of that name would make it choose a file."""


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
    groups = list_groups(config_dir)
    return [_make_hydra_override(text, groups, values, config_dir) for text in overrides]


def _make_hydra_override(text: str, groups: set[str], values: Sequence[str], config_dir: Path | None) -> str:
    text, override = _parse_override(text)
    key = override.key_or_group
    if text.startswith(("+", "~")) or key.startswith(("hydra.", "hydra/")):
        return text
    check_key(text, key)
    group = key.partition("/")[0].partition("@")[0]
    if group not in groups:
        return f"++{text}"
    if group in values:
        if group in READ_AS_DATA and (file := find_data_file(group, text.partition("=")[2], config_dir)) is not None:
            text = f"{group}='{file}'"
        return f"++{VALUE_OF}{text}"
    value = override.value()
    names = value.list if isinstance(value, ChoiceSweep) else [value]
    if any(item is None or isinstance(item, bool | int | float | list | dict) for item in names):
        raise UserError(
            f"{text}: {key} is chosen by name, such as {key}=<name>. Its keys are set one by one.",
            code="choice-not-a-name",
        )
    return text


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
    Plugins.instance().register(ConfigPackages)
    with (
        explain_errors(),
        explain_files(),
        initialize_config_dir(config_dir=str(find_config_folder()), version_base="1.3", job_name="embodied-rl"),
    ):
        composed = hydra_compose(name, hydra_overrides, return_hydra_config=True)
        choice = OmegaConf.select(composed, "hydra.runtime.choices.experiment")
        return make_plain(OmegaConf.masked_copy(composed, [str(key) for key in composed if key != "hydra"]), choice)


def make_plain(composed: DictConfig, experiment: str | None) -> dict[str, Any]:
    """Convert a composed configuration to plain values; `experiment` becomes `run.experiment` if that is not set."""
    result = cast("dict[str, Any]", OmegaConf.to_container(composed, resolve=True))
    if experiment and isinstance(result.setdefault("run", {}), dict):
        result["run"].setdefault("experiment", experiment)
    return {key.removeprefix(VALUE_OF): value for key, value in result.items()}


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
        suggestion = suggest_name(name, known)
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
