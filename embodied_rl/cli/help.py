"""Print the help texts of `--help` and `--help-all`. Imports no torch, and no plug-in."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from embodied_rl.cli.command import Command, list_commands, parse_arguments
from embodied_rl.cli.documentation import Key, list_plugin_keys, list_schema_keys
from embodied_rl.cli.run_command import load_preparation
from embodied_rl.cli.text import print_columns, print_hanging, print_keys
from embodied_rl.config import plugins
from embodied_rl.config.option_files import list_default_choices, list_experiments, list_groups, list_options

HELP_ALL = "--help-all"
HELP_OPTIONS = ("--help", "-h", HELP_ALL)
_OPTIONS = [
    ("--help", "this text; with sim=, policy= or algo= also the chosen plug-in's keys"),
    (HELP_ALL, "the same with every key"),
    ("--cfg job", "print the whole configuration, defaults included, and stop"),
    ("--dry-run", "compose, check, find the plug-ins, print what would run and its memory, and stop"),
    ("--json", "print the result as JSON (eval, compare, doctor, list)"),
    ("--config-dir DIR", "also choose from YAML in DIR (sim/, policy/, algo/, experiment/ …)"),
    ("-m", "sweep: run every combination of comma-separated values, such as seed=0,1,2"),
]
KINDS = {
    "sim": "sims",
    "policy": "policies",
    "algo": "algorithms",
    "curriculum": "curricula",
    "reward": "scorers",
    "logger": "loggers",
}
"""Node of the configuration → kind of the plug-in that it names."""


def print_overview() -> None:
    """Print the help of `embodied-rl --help`."""
    print("Online reinforcement learning for vision-language-action policies.\n")
    print("usage: embodied-rl <command> [key=value ...] [options]\n\ncommands")
    print_columns([(name, command.summary) for name, command in list_commands().items()])
    print("\noptions of every command")
    print_columns(_OPTIONS)
    print("\nA command's keys: embodied-rl <command> --help")
    print("A first run:      embodied-rl train experiment=demo")


def print_group_help(group: str) -> None:
    """Print the help of `embodied-rl <group>`, the first word of several commands."""
    print(f"usage: embodied-rl {group} <command> [key=value ...] [options]\n\ncommands")
    print_columns([(name, command.summary) for name, command in list_commands().items() if name.split()[0] == group])
    print(f"\nA command's keys: embodied-rl {group} <command> --help")


def print_command_help(command: Command, arguments: Sequence[str] = ()) -> None:
    """Print the help of `embodied-rl <command> [key=value ...] --help`, or `--help-all`.

    Args:
        command: the command.
        arguments: all words typed after it; they decide which plug-ins' keys and which values are shown.

    Raises:
        UserError: an argument is wrong.
    """
    typed = [word for word in arguments if word not in HELP_OPTIONS]
    values = compose_values(command, typed)
    words = f" <{command.words.called}>{' ...' if command.words.many else ''}" if command.words else ""
    print_hanging("", command.summary, 0)
    print(f"\nusage: embodied-rl {command.name}{words} [key=value ...] [options]\n\nexamples")
    for example in command.examples:
        print(f"  embodied-rl {command.name} {example}".rstrip())
    rows = list[tuple[str, str]]()
    for group, default in list_default_choices(command.config).items() if command.config else ():
        names = [option.name for option in list_options(group)]
        if group == "experiment":
            names = [each.name for each in list_experiments() if each.command in (command.name, command.config)]
        if names:
            rows.append((f"{group}={values.get(f'choice of {group}', default)}", ", ".join(names)))
    if rows:
        print("\nchoices, by name; `embodied-rl list` describes them")
        print_keys(rows)
    keys = [_with_value(key, values) for key in list_schema_keys(str(command.schema))]
    common = [key for name in command.common for key in keys if key.name == name]
    shown = keys if HELP_ALL in arguments or not common else common
    print("\nkeys, with their values" if shown is keys else "\ncommon keys, with their values")
    print_keys([(_as_typed(key), key.doc) for key in shown])
    nodes = {text.lstrip("+").partition("=")[0].partition(".")[0] for text in typed if "=" in text}
    for node in KINDS:  # those that a typed word chooses or changes
        if node not in nodes or not (plugin := values.get(f"{node}.name")):
            continue
        path = plugins.find_path(KINDS[node], str(plugin))
        print(f"\nkeys of {node}.name={plugin}")
        print_keys([(_as_typed(_with_value(key, values)), key.doc) for key in list_plugin_keys(path, node)])
    if shown is not keys:
        print()
        print_hanging("", f"All {len(keys)} keys: embodied-rl {command.name} {HELP_ALL}", 0)
    print("\noptions")
    print_columns(_OPTIONS)


def compose_values(command: Command, typed: Sequence[str]) -> dict[str, Any]:
    """Return the values that a command with these words would use, by full key, and the typed choices.

    Empty for a sweep, which has several values, and for a command without YAML.

    Raises:
        UserError: a word is wrong.
    """
    options = parse_arguments(command, typed)
    if options.sweep or command.config is None:
        return {}
    composed = load_preparation(command).compose(command, options)
    pairs = (text.lstrip("+").partition("=") for text in options.overrides)
    chosen = {f"choice of {key}": value for key, _, value in pairs if key in list_groups(options.config_dir)}
    return {**_flatten(composed, ""), **chosen}


def _flatten(mapping: Mapping[str, Any], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in mapping.items():
        found[f"{where}{key}"] = value
        if isinstance(value, Mapping):
            found |= _flatten(value, f"{where}{key}.")
    return found


def _with_value(key: Key, values: Mapping[str, Any]) -> Key:
    value = values.get(key.name, values)
    return key if value is values or isinstance(value, Mapping) else replace(key, default=_format(value))


def _format(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{','.join(_format(item) for item in value)}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _as_typed(key: Key) -> str:
    return f"{key.name} (required)" if key.default == "required" else f"{key.name}={key.default}"
