"""`embodied-rl list`: what can be chosen. Plug-ins are not imported, except a simulator to ask for its tasks."""

from collections.abc import Sequence
from pathlib import Path

from embodied_rl.cli.documentation import plugin_keys, summary
from embodied_rl.cli.options import existing_folder, option_parser
from embodied_rl.cli.text import columns
from embodied_rl.config import plugins
from embodied_rl.config.freeze import did_you_mean
from embodied_rl.config.schema import SimNode
from embodied_rl.interfaces.errors import UserError
from embodied_rl.simulators.environments import recipe_file
from embodied_rl.simulators.kind import SimulatorKind

_KINDS = {
    "sims": ("sims", "sim"),
    "policies": ("policies", "policy"),
    "algos": ("algorithms", "algo"),
    "episodes": ("episodes", "episodes"),
}
SECTIONS = (*_KINDS, "plans", "benchmarks", "experiments", "tasks")


def run(words: Sequence[str]) -> int:
    """Print everything, one section, or the keys of one choice (`list algos flow_sde`).

    Raises:
        UserError: an unknown section, name or option.
    """
    words, config_dir = _config_dir(words)
    if not words:
        for section in SECTIONS[:-1]:
            print(section)
            columns(_rows(section, config_dir))
        print(f"tasks\n  embodied-rl list tasks [{'|'.join(plugins.names('sims'))}]")
        return 0
    section, *more = words
    if section not in SECTIONS:
        raise UserError(f"unknown list '{section}'.{did_you_mean(section, SECTIONS)}")
    if section == "tasks":
        _tasks(more)
    elif more and section in _KINDS:
        kind, node = _KINDS[section]
        path = plugins.path(kind, _plugin(node, more[0], config_dir))
        columns([(key.name, key.default, key.doc) for key in plugin_keys(path, node)], indent=0)
    else:
        columns(_rows(section, config_dir), indent=0)
    return 0


def _config_dir(words: Sequence[str]) -> tuple[list[str], Path | None]:
    """The plain words, and the folder of `--config-dir`."""
    typed, rest = option_parser().parse_known_args(words)
    if unknown := [text for text in rest if text.startswith("-")]:
        raise UserError(f"unknown option '{unknown[0]}': list takes --config-dir DIR alone.")
    return rest, existing_folder(typed.config_dir)


def _plugin(group: str, name: str, config_dir: Path | None) -> str:
    """The plug-in that a choice names; or that has the name itself."""
    from embodied_rl.config.compose import options  # Hydra: only where it is needed

    return next((item.plugin for item in options(group, config_dir) if item.name == name and item.plugin), name)


def _rows(section: str, config_dir: Path | None) -> list[tuple[str, ...]]:
    from embodied_rl.config.compose import experiments, options

    if section == "experiments":
        return [(item.name, f"embodied-rl {item.command}", item.summary) for item in experiments(config_dir)]
    if section in ("plans", "benchmarks"):
        return [(item.name, item.summary) for item in options(section.removesuffix("s"), config_dir)]
    kind, group = _KINDS[section]
    paths, chosen = plugins.table(kind), options(group, config_dir)
    listed = [(item.name, path := paths.get(item.plugin, ""), item.summary or summary(path)) for item in chosen]
    others = [name for name in sorted(paths) if name not in {item.plugin for item in chosen}]
    return [*listed, *((name, paths[name], summary(paths[name])) for name in others)]


def _tasks(asked: Sequence[str]) -> None:
    """Of the simulators asked for; or of all, but that one in an environment of its own takes long to answer."""
    for name in asked or plugins.names("sims"):
        if not asked and recipe_file(name) is not None:
            print(f"embodied-rl list tasks {name}")
            continue
        spec = SimulatorKind.of(SimNode(name)).spec
        columns([(task.name, task.family, name) for task in spec.tasks], indent=0)
