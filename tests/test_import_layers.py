"""Imports by a name in a string obey the layers that import-linter checks for `import` statements."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

CHECKOUT = Path(__file__).parents[1]
NAME = re.compile(r"(embodied_rl(?:\.\w+)+)(?::\w+)?")
PREFIX = re.compile(r"(embodied_rl(?:\.\w+)+)[.:]")


@cache
def read_settings() -> dict[str, Any]:
    return tomllib.loads((CHECKOUT / "pyproject.toml").read_text())


@cache
def read_layers() -> dict[str, dict[str, int]]:
    """Container → its packages → their layer, counted from above, for every contract of the type `layers`."""
    return {
        contract["containers"][0]: {
            name.strip(): level for level, names in enumerate(contract["layers"]) for name in names.split("|")
        }
        for contract in read_settings()["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
    }


def find_module(name: str) -> Path | None:
    path = CHECKOUT / name.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)


@cache
def list_named_modules(source: str) -> list[tuple[int, str]]:
    """Line and module of each string that is the name of a module, or of something in one, and of no entry point.

    Of an f-string, the module that it begins with.
    """
    result: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr) and isinstance(start := node.values[0], ast.Constant):
            found = PREFIX.match(str(start.value))
            if found and find_module(found[1]) is not None:
                result.append((node.lineno, found[1]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = NAME.fullmatch(node.value)
            groups = read_settings()["project"]["entry-points"]
            if found and node.value not in groups and find_module(found[1]) is not None:
                result.append((node.lineno, found[1]))
    return result


def find_upward(module: str, source: str) -> list[str]:
    """The strings in a module that name a module of a higher layer, or of another package of its own layer."""
    upward = []
    for container, layers in read_layers().items():
        own = module.removeprefix(f"{container}.").partition(".")[0]
        for line, named in list_named_modules(source):
            other = named.removeprefix(f"{container}.").partition(".")[0]
            inside = module.startswith(f"{container}.") and named.startswith(f"{container}.")
            if inside and own != other and {own, other} <= layers.keys() and layers[other] <= layers[own]:
                upward.append(f"{module}:{line} {named}")
    return upward


def list_modules() -> Iterator[tuple[str, str]]:
    for path in sorted((CHECKOUT / "embodied_rl").rglob("*.py")):
        name = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts).removesuffix(".__init__")
        yield name, path.read_text()


def test_no_string_names_a_module_of_a_higher_layer() -> None:
    assert [each for name, source in list_modules() for each in find_upward(name, source)] == []


def test_the_strings_are_found() -> None:
    named = {module for _, source in list_modules() for _, module in list_named_modules(source)}
    assert {"embodied_rl.commands", "embodied_rl.training.algorithms.ppo", "embodied_rl.schema"} <= named


@pytest.mark.parametrize(
    ("module", "named", "count"),
    [
        ("embodied_rl.config.plugins", "embodied_rl.commands.train", 1),
        ("embodied_rl.runtime.ray.handle", "embodied_rl.serving.listening:find_token", 1),
        ("embodied_rl.judge.prompts.prompt", "embodied_rl.judge.reward", 1),
        ("embodied_rl.commands.table", "embodied_rl.config.plugins:find", 0),
    ],
)
def test_an_upward_name_is_reported(module: str, named: str, count: int) -> None:
    assert len(find_upward(module, f'X = "{named}"')) == count
