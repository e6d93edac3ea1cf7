"""What each configuration key means, read from the source of its dataclass: nothing heavy is imported to say it."""

import ast
import re
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from embodied_rl.config.freeze import join


@dataclass(frozen=True)
class Key:
    """One configuration key: its full name, its default as typed on the command line, and what it means."""

    name: str
    default: str
    doc: str


@dataclass(frozen=True)
class Source:
    """A module's text: its top-level classes, and where the names it imports come from."""

    classes: dict[str, ast.ClassDef]
    imported: dict[str, str]

    @staticmethod
    def of(module: str) -> "Source":
        """Read a module without running it. A module that cannot be found has no classes."""
        spec = _locate(module)
        text = Path(spec.origin).read_text(encoding="utf-8") if spec and spec.origin else ""
        body = ast.parse(text).body
        imports = [node for node in body if isinstance(node, ast.ImportFrom) and node.module and not node.level]
        return Source(
            {node.name: node for node in body if isinstance(node, ast.ClassDef)},
            {name.asname or name.name: str(node.module) for node in imports for name in node.names},
        )


def _locate(module: str) -> ModuleSpec | None:
    """Where a module lies. Unlike `find_spec`, this does not import the packages around it."""
    top, *inner = module.split(".")
    spec = find_spec(top)
    for name in inner:
        spec = PathFinder.find_spec(name, spec.submodule_search_locations) if spec else None
    return spec


def schema_keys(name: str) -> list[Key]:
    """The keys of a dataclass in `embodied_rl.config.schema`."""
    source, node = _find_class("embodied_rl.config.schema", name)
    assert node is not None, f"embodied_rl.config.schema has no {name}"
    return _keys(node, source, "")


def plugin_keys(path: str, where: str) -> list[Key]:
    """The keys of a plug-in's own `Config`.

    Args:
        path: "module:Class" of the plug-in.
        where: the node its keys belong to, such as "algo".
    """
    source, plugin = _find_class(*path.split(":"))
    for node in plugin.body if plugin else []:
        if isinstance(node, ast.ClassDef) and node.name == "Config":
            return _keys(node, source, where)
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Name)
            and ast.unparse(node.targets[0]) == "Config"
        ):
            config = _follow(source, node.value.id)
            return _keys(config[1], config[0], where) if config[1] else []
    return []


def summary(path: str) -> str:
    """First line of the docstring of "module:Class"."""
    _, plugin = _find_class(*path.split(":"))
    return ((plugin and ast.get_docstring(plugin)) or "").partition("\n")[0]


def _find_class(module: str, name: str) -> tuple[Source, ast.ClassDef | None]:
    return _follow(Source.of(module), name)


def _follow(source: Source, name: str) -> tuple[Source, ast.ClassDef | None]:
    """The class `name` as a module sees it, in the module that defines it."""
    if name in source.classes:
        return source, source.classes[name]
    return _find_class(source.imported[name], name) if name in source.imported else (source, None)


def _keys(node: ast.ClassDef, source: Source, where: str) -> list[Key]:
    annotated = [
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    listed = _attributes(ast.get_docstring(node) or "", annotated)
    result: list[Key] = []
    for base in node.bases:
        inherited, parent = _follow(source, ast.unparse(base))
        result += _keys(parent, inherited, where) if parent else []
    for item, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name, annotation = item.target.id, ast.unparse(item.annotation)
        around, nested = _nested(source, annotation.partition(" |")[0])
        if annotation.startswith("ClassVar") or (item.value and ast.unparse(item.value) == "rest()"):
            continue
        if nested:
            result += _keys(nested, around, join(where, name))
        if not nested or "None" in annotation:
            result.append(Key(join(where, name), _default(item.value), _string(after) or listed.get(name, "")))
    return result


def _nested(source: Source, name: str) -> tuple[Source, ast.ClassDef | None]:
    """The class of a field that is a group of keys, if it is one: a class of this module, or of another one of ours."""
    if name not in source.classes and not source.imported.get(name, "").startswith(f"{__name__.partition('.')[0]}."):
        return source, None
    return _follow(source, name)


def _string(node: ast.stmt | None) -> str:
    """The text of a statement that is nothing but a string."""
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def _attributes(docstring: str, fields: list[str]) -> dict[str, str]:
    """The entries of an `Attributes:` section. An entry may speak of several fields, a line hold several entries."""
    field = f"(?:{'|'.join(fields)})"
    parts = re.split(rf"(?:^ *|(?<=\. ))({field}(?:, {field})*): ", docstring.partition("Attributes:\n")[2], flags=re.M)
    texts = [" ".join(text.split()) for text in parts[2::2]]
    return {name: text for names, text in zip(parts[1::2], texts, strict=True) for name in names.split(", ")}


def _default(node: ast.expr | None) -> str:
    """A default as it would be typed: `null`, `true`, text without quotes."""
    if isinstance(node, ast.Call):
        arguments = {keyword.arg: keyword.value for keyword in node.keywords}
        given = arguments.get("default", node.args[1] if len(node.args) > 1 else arguments.get("default_factory"))
        return _default(given)
    if node is None:
        return "required"
    if isinstance(node, ast.Tuple | ast.List):
        return f"[{','.join(_default(item) for item in node.elts)}]"
    if isinstance(node, ast.Constant):
        names = {None: "null", True: "true", False: "false"}
        special = node.value is None or isinstance(node.value, bool)
        return names[node.value] if special else str(node.value)
    return ast.unparse(node)
