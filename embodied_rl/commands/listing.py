"""`embodied-rl list`: what can be chosen. Plug-ins are not imported, except a simulator to ask for its tasks."""

from collections.abc import Sequence

from embodied_rl import plugins
from embodied_rl.commands.documentation import plugin_keys, summary
from embodied_rl.commands.text import columns
from embodied_rl.config import did_you_mean

_KINDS = {"sims": ("sims", "sim"), "policies": ("policies", "policy"), "algos": ("algorithms", "algo")}
SECTIONS = (*_KINDS, "experiments", "tasks")


def run(words: Sequence[str]) -> int:
    """Print everything, one section, or the keys of one plug-in (`list algos ppo`).

    Raises:
        ValueError: an unknown section or name.
    """
    if not words:
        for section in SECTIONS[:-1]:
            print(section)
            columns(_rows(section))
        print(f"tasks\n  embodied-rl list tasks [{'|'.join(plugins.names('sims'))}]")
        return 0
    section, *more = words
    if section not in SECTIONS:
        raise ValueError(f"unknown list '{section}'.{did_you_mean(section, SECTIONS)}")
    if section == "tasks":
        _tasks(more or plugins.names("sims"))
    elif more and section in _KINDS:
        kind, node = _KINDS[section]
        columns([(key.name, key.default, key.doc) for key in plugin_keys(plugins.path(kind, more[0]), node)], indent=0)
    else:
        columns(_rows(section), indent=0)
    return 0


def _rows(section: str) -> list[tuple[str, ...]]:
    if section == "experiments":
        from embodied_rl.composition import experiments  # Hydra: only where it is needed

        return [(item.name, f"embodied-rl {item.command}", item.summary) for item in experiments()]
    kind = _KINDS[section][0]
    return [(name, path, summary(path)) for name, path in sorted(plugins.table(kind).items())]


def _tasks(simulators: Sequence[str]) -> None:
    for name in simulators:
        simulator = plugins.find("sims", name)
        spec = simulator.spec_of(simulator.Config())
        columns([(task.name, task.family, name) for task in spec.tasks], indent=0)
