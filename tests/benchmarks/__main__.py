"""Run one benchmark from the repository root: `python -m tests.benchmarks <name> key=value…`.

Each benchmark is a module of this package with a function `run(config)`, which returns figures. They are printed as
JSON, and written to `<out>/<name>.json`. Keys are those of `train`, and those of `BenchmarkConfig`. If the figures
have a "problem", it is the exit message.
"""

import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from embodied_rl.commands.preparation import TrainingPreparation, compose_config
from embodied_rl.config.freeze import freeze_config
from embodied_rl.interfaces.errors import UserError
from embodied_rl.runs import provenance
from embodied_rl.system.atomic_write import make_folder, write_text
from tests.benchmarks.settings import BenchmarkConfig

NAMES = (
    "async_collection", "cpu_utilisation", "critic_server", "fuzz", "model_memory", "overlap", "pages", "peers",
    "pipeline", "plan_validation", "policy_server", "prefix_cache", "ray_overhead", "recovery", "scoring", "transport",
)  # fmt: skip


def configure(arguments: Sequence[str]) -> tuple[str, BenchmarkConfig]:
    """Return the benchmark that the first argument names, and the configuration that the others make.

    Raises:
        UserError: a key is wrong, or there is no such benchmark.
    """
    if not arguments or arguments[0] not in NAMES:
        usage = f"usage: python -m tests.benchmarks <name> key=value…\nnames: {', '.join(NAMES)}"
        raise UserError(usage, code="benchmark-unknown")
    name, *overrides = arguments
    mapping = compose_config("train", ["run.experiment=benchmark", *overrides])
    config, _ = TrainingPreparation().check(freeze_config(BenchmarkConfig, mapping))
    return name, config


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark that the first argument names, with the others as configuration keys."""
    try:
        name, config = configure(arguments)
        file = make_folder(Path(config.out), "out") / f"{name}.json"
        found = import_module(f"tests.benchmarks.{name}").run(config)
    except UserError as error:
        sys.exit(str(error))
    text = json.dumps(found | {"hardware": provenance.describe_hardware()}, indent=2)
    write_text(file, text + "\n")
    print(text, f"Written: {file}", sep="\n")
    if problem := found.get("problem"):
        sys.exit(problem)


if __name__ == "__main__":
    main(sys.argv[1:])
