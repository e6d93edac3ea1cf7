"""Read the documentation of configuration keys from source text, without importing any module.

A field of a configuration dataclass is documented by the string under it; its default is shown as it would be typed.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

from embodied_rl.config.freeze import join_key

Located = tuple[str, ast.ClassDef]
"""The module that defines a class, and the class."""


@dataclass(frozen=True)
class Key:
    """A configuration key: its full name, its default as typed on the command line, its documentation, its choices.

    Choices are those of a `Literal` or of a truth value, in order; empty for other types.
    """

    name: str
    default: str
    doc: str
    choices: tuple[str, ...] = ()


def list_schema_keys(path: str) -> list[Key]:
    """Return the keys of a dataclass "module:Class"."""
    found = _locate_class(path)
    assert found is not None, f"there is no {path}"
    return _list_keys(*found, "")


def list_plugin_keys(path: str, where: str) -> list[Key]:
    """Return the keys of a plug-in's own `Config`.

    Args:
        path: "module:Class" of the plug-in.
        where: the node that the keys belong to, such as "algo".
    """
    plugin = _locate_class(path)
    config = _find_config(*plugin) if plugin else None
    return _list_keys(*config, where) if config else []


def read_summary(path: str) -> str:
    """Return the first line of the docstring of "module:Class"."""
    plugin = _locate_class(path)
    return ((plugin and ast.get_docstring(plugin[1])) or "").partition("\n")[0]


def _locate_class(path: str) -> Located | None:
    module, _, name = path.partition(":")
    return _find_class(module, name)


def _find_config(module: str, plugin: ast.ClassDef) -> Located | None:
    """Return the `Config` of a plug-in's class: its own, or that of the first of its bases that has one."""
    if own := _find_class(module, "Config", plugin.body):
        return own
    bases = (_find_class(module, ast.unparse(base)) for base in plugin.bases)
    return next((config for base in bases if base and (config := _find_config(*base))), None)


def _find_class(module: str, name: str, body: Sequence[ast.stmt] | None = None) -> Located | None:
    """Return the class called `name` in `body`, or else in `module`: defined there, imported, or an alias."""
    for node in _parse_module(module) if body is None else body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return _find_class(module, ast.unparse(node.value))
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if name == (alias.asname or alias.name):
                    return _find_class(node.module, alias.name)
    return None


@cache
def _parse_module(module: str) -> list[ast.stmt]:
    """Return the top-level statements of a module, or none if it does not exist. Parent packages are not imported."""
    top, *inner = module.split(".")
    spec = find_spec(top)
    for name in inner:
        spec = PathFinder.find_spec(name, spec.submodule_search_locations) if spec else None
    if spec is None or spec.origin is None or not spec.has_location:
        return []
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body


def _list_keys(module: str, node: ast.ClassDef, where: str) -> list[Key]:
    """Return the keys of a dataclass, those of its bases first; for fields that are dataclasses, the nested keys."""
    bases = [found for base in node.bases if (found := _find_class(module, ast.unparse(base)))]
    result = [key for base in bases for key in _list_keys(*base, where)]
    for item, after in zip_longest(node.body, node.body[1:]):
        if not isinstance(item, ast.AnnAssign):
            continue
        name, kind = join_key(where, ast.unparse(item.target)), ast.unparse(item.annotation)
        if kind.startswith("ClassVar") or (item.value and ast.unparse(item.value) == "take_other_keys()"):
            continue
        group = _find_class(module, kind.removesuffix(" | None"))
        nested = _list_keys(*group, name) if group and group[1].decorator_list else []
        result += nested
        if not nested or kind.endswith(" | None"):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            documentation = " ".join(str(text).split())
            result.append(Key(name, _format_default(item.value), documentation, tuple(_list_choices(item.annotation))))
    return result


def _list_choices(annotation: ast.expr) -> list[str]:
    """Return the values of a `Literal`, or of `bool`, in an annotation, as they would be typed."""
    if isinstance(annotation, ast.BinOp):  # such as Literal["auto"] | None
        return [*_list_choices(annotation.left), *_list_choices(annotation.right)]
    if isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "Literal":
        values = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        return [_format_default(value) for value in values]
    return {"bool": ["true", "false"], "None": ["null"]}.get(ast.unparse(annotation), [])


def _format_default(node: ast.expr | None) -> str:
    """Return a default as it would be typed: `null`, `true`, text without quotes."""
    if isinstance(node, ast.Call):
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        positional = node.args[1] if len(node.args) > 1 else None  # of `at_least`
        return _format_default(arguments.get("default", positional or arguments.get("default_factory")))
    if node is None:
        return "required"
    if isinstance(node, ast.Tuple | ast.List):
        return f"[{','.join(_format_default(item) for item in node.elts)}]"
    if isinstance(node, ast.Constant):
        names = {"None": "null", "True": "true", "False": "false"}
        return names.get(str(node.value), str(node.value))
    return {"dict": "{}", "tuple": "[]"}.get(ast.unparse(node), ast.unparse(node))
