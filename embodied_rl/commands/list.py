"""The command `embodied-rl list`. It imports no plug-ins, except simulators to list their tasks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied_rl.cli.command import make_option_parser, read_config_folder
from embodied_rl.cli.documentation import list_plugin_keys, read_summary
from embodied_rl.cli.help import HELP_OPTIONS
from embodied_rl.cli.text import print_columns, print_hanging
from embodied_rl.config import plugins
from embodied_rl.config.freeze import suggest_name
from embodied_rl.config.option_files import list_experiments, list_options
from embodied_rl.interfaces.errors import UserError
from embodied_rl.judge.prompts.prompt import find_prompt, list_prompts
from embodied_rl.runtime.simulators.kind import SimulatorKind
from embodied_rl.runtime.simulators.python_environments import find_recipe_file
from embodied_rl.schema import SimNode

_KINDS = {
    "sims": ("sims", "sim"),
    "policies": ("policies", "policy"),
    "algos": ("algorithms", "algo"),
    "curricula": ("curricula", "curriculum"),
    "rewards": ("scorers", "reward"),
    "loggers": ("loggers", "logger"),
}
SECTIONS = (*_KINDS, "prompts", "plans", "benchmarks", "recipes", "robots", "experiments", "tasks")


def list_choices(words: Sequence[str]) -> int:
    """Print all sections, one section, or the keys of one choice (`list algos flow_sde`).

    Raises:
        UserError: an unknown section, name or option.
    """
    words = [] if any(word in HELP_OPTIONS for word in words) else words
    parser = make_option_parser()
    parser.add_argument("--json", action="store_true")
    typed, words = parser.parse_known_args(words)
    if unknown := [text for text in words if text.startswith("-")]:
        raise UserError(
            f"unknown option '{unknown[0]}': list takes only --json and --config-dir DIR.", code="option-unknown"
        )
    config_dir = read_config_folder(typed.config_dir)
    if words:
        _check_words(*words)
    if typed.json:
        print(json.dumps(_collect(words, config_dir), ensure_ascii=False))
    elif not words:
        _print_all(config_dir)
    else:
        _print_section(config_dir, *words)
    return 0


def _check_words(section: str, *more: str) -> None:
    if section not in SECTIONS:
        raise UserError(f"unknown list '{section}'.{suggest_name(section, SECTIONS)}", code="list-unknown")
    if section != "tasks" and (excess := more[1 if section in (*_KINDS, "prompts") else 0 :]):
        raise UserError(f"list {section} cannot show '{excess[0]}': leave it out.", code="too-many-words")


def _print_all(config_dir: Path | None) -> None:
    for section in SECTIONS[:-1]:
        print(section)
        print_columns(_list_rows(section, config_dir))
    print("tasks")
    print_hanging("  ", f"embodied-rl list tasks <sim>: {', '.join(plugins.list_names('sims'))}", 2)


def _print_section(config_dir: Path | None, section: str, *more: str) -> None:
    if section == "tasks":
        for name in more or plugins.list_names("sims"):
            if not more and find_recipe_file(name) is not None:
                print(f"embodied-rl list tasks {name}")
            else:
                print_columns(_list_tasks(name), indent=0)
    elif more and section == "prompts":
        print(_read_prompt(more[0]), end="")
    elif more:
        keys = _list_keys(section, more[0], config_dir)
        print_columns(keys, indent=0)
        if not keys:
            print(f"{_KINDS[section][1]}={more[0]} has no keys.")
    else:
        print_columns(_list_rows(section, config_dir), indent=0)


def _collect(words: Sequence[str], config_dir: Path | None) -> dict[str, Any]:
    """Return section, or choice → rows: a name and what follows it in the text; for a prompt its text."""
    match words:
        case ["tasks", *sims]:
            here = sims or [name for name in plugins.list_names("sims") if find_recipe_file(name) is None]
            return {"tasks": [row for sim in here for row in _list_tasks(sim)]}
        case ["prompts", name]:
            return {name: _read_prompt(name)}
        case [section, name]:
            return {name: _list_keys(section, name, config_dir)}
        case _:
            return {section: _list_rows(section, config_dir) for section in words or SECTIONS[:-1]}


def _list_tasks(sim: str) -> list[tuple[str, ...]]:
    return [(task.name, task.family, sim) for task in SimulatorKind.find(SimNode(sim)).spec.tasks]


def _read_prompt(name: str) -> str:
    return find_prompt(name).read_text(encoding="utf-8")


def _list_keys(section: str, name: str, config_dir: Path | None) -> list[tuple[str, ...]]:
    """Return the keys of the plug-in that a choice uses, or of the plug-in of this name."""
    kind, node = _KINDS[section]
    chosen = (item.plugin for item in list_options(node, config_dir) if item.name == name and item.plugin)
    plugin = next(chosen, name)
    keys = [] if plugin == "null" else list_plugin_keys(plugins.find_path(kind, plugin), node)
    return [(key.name, key.default, key.doc) for key in keys]


def _list_rows(section: str, config_dir: Path | None) -> list[tuple[str, ...]]:
    if section == "experiments":
        return [(item.name, f"embodied-rl {item.command}", item.summary) for item in list_experiments(config_dir)]
    if section == "prompts":
        return list(list_prompts().items())
    if section in ("plans", "benchmarks", "recipes", "robots"):
        return [(item.name, item.summary) for item in list_options(section.removesuffix("s"), config_dir)]
    kind, group = _KINDS[section]
    paths, chosen = plugins.list_plugins(kind), list_options(group, config_dir)
    listed = [(item.name, path := paths.get(item.plugin, ""), item.summary or read_summary(path)) for item in chosen]
    others = [name for name in sorted(paths) if name not in {item.plugin for item in chosen}]
    return [*listed, *((name, paths[name], read_summary(paths[name])) for name in others)]
