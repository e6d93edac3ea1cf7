"""Compose YAML and overrides into a plain mapping with Hydra. Only this module decides where the YAML files are."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.resources import files
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

from embodied_rl.config.freeze import RENAMED, describe_renamed, read_text, suggest_name
from embodied_rl.config.plugins import make_import_error
from embodied_rl.interfaces.errors import UserError

VALUE_OF = "value_of_"
"""Prefix that hides a key from Hydra, where a folder of that name would make it choose a file."""
READ_AS_DATA = ("robot",)
"""Groups whose files are not composed."""


def find_config_folder() -> Path:
    """Return the folder of our own YAML: `configs/` in a checkout, inside the package in a wheel."""
    package = Path(__file__).parents[1]
    packaged = package / "_configs"
    return packaged if packaged.is_dir() else package.parent / "configs"


def list_third_party() -> dict[str, Path]:
    """Return package name → folder of YAML for other distributions with an entry point in `embodied_rl.configs`.

    Raises:
        UserError: the package of an entry point cannot be imported.
    """
    found: dict[str, Path] = {}
    for entry in entry_points(group="embodied_rl.configs"):
        try:
            found[entry.value] = Path(str(files(entry.value)))
        except ModuleNotFoundError as error:
            raise make_import_error(entry, error) from error
    return found


def list_config_folders(config_dir: Path | None = None) -> list[Path]:
    """Return all folders that are searched for YAML, in order."""
    return [find_config_folder(), *list_third_party().values(), *([config_dir] if config_dir else [])]


class ConfigPackages(SearchPathPlugin):
    """A Hydra plug-in that adds the YAML of other distributions to the search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for package in list_third_party():
            search_path.append("embodied-rl", f"pkg://{package}")


@dataclass(frozen=True)
class GroupOption:
    """A file that an override such as `algo=flow_sde` chooses; its first comment describes it.

    Attributes:
        name: the name to type. plugin: the value of its key `name`, or empty. summary: the comment.
    """

    name: str
    plugin: str
    summary: str


@dataclass(frozen=True)
class Experiment:
    """A file in `configs/experiment/`. Its first comment reads `# <command>: <summary>`."""

    name: str
    command: str
    summary: str


def list_options(group: str, config_dir: Path | None = None) -> list[GroupOption]:
    """Return all files of a group, sorted by name."""
    paths = {
        path.stem: path for folder in list_config_folders(config_dir) for path in sorted(folder.glob(f"{group}/*.yaml"))
    }
    options: list[GroupOption] = []
    for name, path in sorted(paths.items()):
        lines = read_text(path).splitlines()
        plugin = next((line.partition(":")[2].strip() for line in lines if line.startswith("name:")), "")
        comments = (line[1:].strip() for line in lines if line.startswith("#"))
        options.append(GroupOption(name, plugin, next((line for line in comments if not line.startswith("@")), "")))
    return options


def list_experiments(config_dir: Path | None = None) -> list[Experiment]:
    """Return all experiments that can be chosen, sorted by name."""
    experiments: list[Experiment] = []
    for option in list_options("experiment", config_dir):
        command, colon, summary = option.summary.partition(": ")
        experiments.append(Experiment(option.name, *((command, summary) if colon else ("train", option.summary))))
    return experiments


def find_option_file(group: str, name: str, config_dir: Path | None = None) -> Path:
    """Return the file of an option that `list_options` returned."""
    paths = (folder / group / f"{name}.yaml" for folder in reversed(list_config_folders(config_dir)))
    return next(path for path in paths if path.is_file())


def list_default_choices(name: str) -> dict[str, str]:
    """Return the choices that `configs/<name>.yaml` starts from: group → name of a file, or null."""
    lines = (find_config_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    pairs = (line.strip().removeprefix("- ").partition(": ") for line in lines if line.strip().startswith("- "))
    return {group: choice.strip("'\"") for group, colon, choice in pairs if colon}


def list_groups(config_dir: Path | None = None) -> set[str]:
    """Return the names of all groups: folders of YAML that an override such as `sim=tabletop` chooses a file from."""
    return {
        folder.name for top in list_config_folders(config_dir) for folder in top.iterdir() if any(folder.glob("*.yaml"))
    }


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
    if (data := key.partition(".")[0]) in READ_AS_DATA and key != data:
        raise UserError(
            f"{text}: copy the {data}'s YAML file, change it there, and type {data}=<file>.", code="key-only-in-file"
        )
    group = key.partition("/")[0].partition("@")[0]
    if group not in groups:
        return f"++{text}"
    if group in values:
        if group in READ_AS_DATA and config_dir is not None:  # the file is read where `config_dir` is not known
            file = (config_dir / group / f"{text.partition('=')[2]}.yaml").resolve()
            text = f"{group}='{file}'" if file.is_file() else text
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
