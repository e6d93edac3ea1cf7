"""Print the help texts of `--help`. Imports neither Hydra nor torch."""

from embodied_rl.cli.documentation import list_schema_keys
from embodied_rl.cli.table import COMMANDS, LIST_SUMMARY, Command
from embodied_rl.cli.text import print_columns

_OPTIONS = [
    ("--help", "this text"),
    ("--cfg job", "print the whole configuration, defaults included, and stop"),
    ("--dry-run", "compose, check, find the plug-ins, print what would run, and stop"),
    ("--config-dir DIR", "also choose from YAML in DIR (sim/, policy/, algo/, experiment/ …)"),
    ("-m", "sweep: run every combination of comma-separated values, such as seed=0,1,2"),
]


def make_overview() -> None:
    """Print the help of `embodied-rl --help`."""
    print("Online reinforcement learning for vision-language-action policies.\n")
    print("usage: embodied-rl <command> [key=value ...] [options]\n\ncommands")
    print_columns([*((name, command.summary) for name, command in COMMANDS.items()), ("list", LIST_SUMMARY)])
    print("\noptions")
    print_columns(_OPTIONS)
    print("\nembodied-rl <command> --help shows its keys. A first run: embodied-rl train experiment=demo")


def make_command_help(command: Command) -> None:
    """Print the help of `embodied-rl <command> --help`."""
    words = f" <{command.words.called}>{' ...' if command.words.many else ''}" if command.words else ""
    print(f"{command.summary}\n\nusage: embodied-rl {command.name}{words} [key=value ...] [options]\n\nexamples")
    for example in command.examples:
        print(f"  embodied-rl {command.name} {example}".rstrip())
    print("\nkeys")
    print_columns([(key.name, key.default, key.doc) for key in list_schema_keys(command.schema)])
    if command.config in ("train", "sft"):
        kinds, groups = ("|curricula|rewards", "curriculum=, reward=, ") if command.config == "train" else ("", "")
        print(f"\nPlug-ins have keys of their own: embodied-rl list sims|policies|algos{kinds} <name>.")
        print(f"sim=, policy=, algo=, {groups}plan= and experiment= choose a file: embodied-rl list.")
    print("\noptions")
    print_columns(_OPTIONS)
