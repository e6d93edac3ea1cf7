"""What can be typed after a command: the YAML files that can be chosen by name, and `key=value` without Hydra."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from embodied_rl.config.freeze import read_text
from embodied_rl.config.plugins import make_import_error
from embodied_rl.interfaces.errors import UserError

READ_AS_DATA = ("robot",)
"""Groups whose files are not composed."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WORDS = {"null": None, "true": True, "false": False}


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
            spec = find_spec(entry.value)  # of a folder without __init__.py, too
        except ModuleNotFoundError as error:
            raise make_import_error(entry, error) from error
        if spec is None or not spec.submodule_search_locations:
            raise make_import_error(entry, ModuleNotFoundError(f"No package named {entry.value!r}", name=entry.value))
        found[entry.value] = Path(next(iter(spec.submodule_search_locations)))
    return found


def list_config_folders(config_dir: Path | None = None) -> list[Path]:
    """Return all folders that are searched for YAML, in order."""
    return [find_config_folder(), *list_third_party().values(), *([config_dir] if config_dir else [])]


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


def check_key(text: str, key: str) -> None:
    """Refuse an override of a key inside a file that is read as data, such as `robot.rate=10`."""
    data = key.partition(".")[0]
    if data in READ_AS_DATA and key != data:
        raise UserError(
            f"{text}: copy the {data}'s YAML file, change it there, and type {data}=<file>.", code="key-only-in-file"
        )


def find_data_file(group: str, name: str, config_dir: Path | None) -> Path | None:
    """Return the file in an extra folder of YAML that a name means, because its reader does not know that folder."""
    file = None if config_dir is None else (config_dir / group / f"{name}.yaml").resolve()
    return file if file is not None and file.is_file() else None


def parse_overrides(overrides: Sequence[str], config_dir: Path | None = None) -> dict[str, Any]:
    """Return the nested mapping that overrides such as `server.deadline=2` describe.

    Values are written as in Hydra's overrides: numbers, true, false, null, text, [a,b] and {key: value}.

    Args:
        overrides: as typed.
        config_dir: an extra folder of YAML, in which files that are read as data are looked for first.

    Raises:
        UserError: no `key=value`, a key is set twice, or brackets do not close.
    """
    result: dict[str, Any] = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z_][\w-]*(\.[\w-]+)*", key):
            raise UserError(f"{text} is not a setting. Settings are written key=value.", code="setting-invalid")
        check_key(text, key)
        node = result
        *parents, last = key.split(".")
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise UserError(f"{text}: another setting gives {parent} a value.", code="key-set-twice")
        if last in node:
            raise UserError(f"{key} is set twice: leave one of them out.", code="key-set-twice")
        file = find_data_file(key, value, config_dir) if key in READ_AS_DATA else None
        node[last] = parse_value(value, text) if file is None else str(file)
    return result


def parse_value(value: str, text: str) -> Any:
    """Return the value of an override; `text` is the whole of it, for messages.

    Raises:
        UserError: brackets do not close.
    """
    if value[:1] not in ("[", "{"):
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        return value[1:-1] if quoted else _resolve(value)
    try:
        return _build(yaml.compose(value, yaml.BaseLoader))
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise UserError(f"{text} is not a setting: {problem}", code="setting-invalid") from None


def _build(node: yaml.Node | None) -> Any:
    """Return the value of a YAML node; text in quotes stays text. Raises `YAMLError` if a key is set twice."""
    if isinstance(node, yaml.SequenceNode):
        return [_build(item) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        result = {str(key.value): _build(item) for key, item in node.value}
        if len(result) < len(node.value):
            raise yaml.YAMLError("a key is set twice")
        return result
    assert isinstance(node, yaml.ScalarNode)
    return node.value if node.style in ("'", '"') else _resolve(node.value)


def _resolve(value: str) -> Any:
    """Return what a word means: a number, true, false, null or text."""
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    if _NUMBER.fullmatch(value):
        return int(value) if value.lstrip("+-").isdigit() else float(value)
    return value
