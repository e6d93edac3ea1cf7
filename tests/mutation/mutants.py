"""Lists the mutants of a Python file: one changed expression or statement each."""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
}  # fmt: skip
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
_DELETED = (ast.Expr, ast.AugAssign, ast.Raise)


@dataclass(frozen=True)
class Mutant:
    """A changed module: the function that was changed (qualified name), what was changed, the syntax tree."""

    function: str
    change: str
    tree: ast.Module


def list_mutants(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its lines; annotations and texts are not changed."""
    tree, found = ast.parse(source), list[Mutant]()
    for function, node, field, position in _walk(tree, ""):
        value = getattr(node, field)
        original = value if position is None else value[position]
        for mutated in _mutate(original):
            change = f"{_show(original)} → {_show(mutated)}"
            replace = _make_replacement(node, field, position, mutated)
            found.append(Mutant(function, change, replace(tree)))
    return found


def _walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST, str, int | None]]:
    """Yield (function, parent, field, position in a list) of each node below `node`."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for position, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST):
                continue
            yield function, node, field, position
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from _walk(child, f"{function}.{child.name}".lstrip(".") if named else function)


def _make_replacement(
    parent: ast.AST, field: str, position: int | None, mutated: ast.AST
) -> Callable[[ast.Module], ast.Module]:
    def replace(tree: ast.Module) -> ast.Module:
        value = getattr(parent, field)
        changed = mutated if position is None else [*value[:position], mutated, *value[position + 1 :]]
        setattr(parent, field, changed)
        try:
            return ast.fix_missing_locations(copy.deepcopy(tree))
        finally:
            setattr(parent, field, value)

    return replace


def _mutate(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.stmt):
        yield from _mutate_statement(node)
    elif isinstance(node, ast.Compare):
        for position, operator in enumerate(node.ops):
            for other in _COMPARED[type(operator)]:
                yield _change(node, ops=[*node.ops[:position], other(), *node.ops[position + 1 :]])
    elif isinstance(node, ast.BinOp) and type(node.op) in _COMPUTED and not _is_text(node):
        yield _change(node, op=_COMPUTED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _change(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield node.operand
    elif isinstance(node, ast.Call):
        yield from _mutate_call(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value * 10 or 1)


def _mutate_statement(node: ast.stmt) -> Iterator[ast.stmt]:
    if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield _change(node, value=ast.Constant(None))
    elif isinstance(node, ast.Assign):
        target, value = node.targets[0], node.value
        if isinstance(target, ast.Attribute | ast.Subscript):
            yield ast.Pass()
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for each in [n for n, element in enumerate(target.elts) if isinstance(element, ast.Attribute)]:
                rest = [place for place in range(len(target.elts)) if place != each]
                kept = _change(target, elts=[target.elts[n] for n in rest])
                yield _change(node, targets=[kept], value=_change(value, elts=[value.elts[n] for n in rest]))
    elif isinstance(node, _DELETED) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        yield ast.Pass()


def _mutate_call(node: ast.Call) -> Iterator[ast.AST]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in _CALLED:
        yield _change(node, func=ast.Name(_CALLED[function.id], ast.Load()))
    elif isinstance(function, ast.Attribute) and function.attr in _CALLED:
        yield _change(node, func=_change(function, attr=_CALLED[function.attr]))


def _change(node: ast.AST, **fields: object) -> ast.AST:
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(isinstance(each, ast.JoinedStr | ast.List | ast.Tuple) or _holds_text(each) for each in sides)


def _holds_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _show(node: ast.AST) -> str:
    return " ".join(ast.unparse(ast.fix_missing_locations(copy.deepcopy(node))).split())[:100]
