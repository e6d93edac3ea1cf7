"""Write the pages of the reference that come from the program itself: commands with their keys, choices, and plug-ins.

The pages lie in `docs/reference/`, are not committed, and are written by each build of the site.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from embodied_rl.cli.command import list_commands
from embodied_rl.cli.documentation import Key, list_plugin_keys, list_schema_keys, read_summary
from embodied_rl.cli.help import KINDS
from embodied_rl.config import plugins
from embodied_rl.config.option_files import find_config_folder

GROUPS = (
    "experiment",
    "recipe",
    "algo",
    "policy",
    "sim",
    "benchmark",
    "reward",
    "curriculum",
    "plan",
    "robot",
    "logger",
)
"""Folders of YAML whose files are choices on the command line."""


def write_pages(folder: Path) -> None:
    """Write `commands.md`, `choices.md` and `plugins.md` into a folder; files that do not change are left alone."""
    folder.mkdir(exist_ok=True)
    pages = {"commands": describe_commands(), "choices": describe_choices(), "plugins": describe_plugins()}
    for name, lines in pages.items():
        text = "\n".join(lines) + "\n"
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def describe_commands() -> Iterator[str]:
    """Describe each command: what it does, examples, and its keys with defaults."""
    yield "# Commands\n\n`embodied-rl <command> [key=value …]`. `--help` shows the most used keys of a command,"
    yield "`--help-all` all, `--cfg job` the whole configuration, `--dry-run` what would go wrong; `-m` runs a sweep.\n"
    for command in list_commands().values():
        yield f"## {command.name}\n\n{command.summary}\n\n```"
        yield from (f"embodied-rl {command.name} {example}".rstrip() for example in command.examples or ("",))
        yield "```\n"
        if command.schema is not None:
            yield from _describe_keys(list_schema_keys(command.schema))


def describe_choices() -> Iterator[str]:
    """List the YAML files of each group with the comment they begin with."""
    yield "# Choices\n\nWhat `<group>=<name>` chooses; the numbers are in `configs/<group>/<name>.yaml`.\n"
    for group in GROUPS:
        yield f"## {group}\n\n| `{group}=` | |\n|---|---|"
        for path in sorted(find_config_folder().joinpath(group).glob("*.yaml")):
            comments = [
                line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")
            ]
            summary = next((line for line in comments if not line.startswith("@package")), "")
            yield f"| `{path.stem}` | {summary.replace('|', '/').replace('<', '&lt;')} |"
        yield ""


def describe_plugins() -> Iterator[str]:
    """Describe each installed plug-in: what it is, where it is, and its own keys."""
    yield "# Plug-ins\n\nBy the node that names them, with the keys that each adds to it.\n"
    for node, kind in KINDS.items():
        for name, path in plugins.list_plugins(kind).items():
            yield f"## {node}.name={name}\n\n{read_summary(path)} `{path}`\n"
            yield from _describe_keys(list_plugin_keys(path, node))


def _describe_keys(keys: Sequence[Key]) -> Iterator[str]:
    if not keys:
        return
    yield "| key | default | |\n|---|---|---|"
    for key in keys:
        doc = " ".join(key.doc.split()).replace("|", "\\|").replace("<", "&lt;")
        yield f"| `{key.name}` | {f'`{key.default}`' if key.default else ''} | {doc} |"
    yield ""
