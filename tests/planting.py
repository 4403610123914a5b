"""Changes of Python code, one at a time; see `mutants`."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
DELETED = (ast.Expr, ast.Raise, ast.AugAssign, ast.Break, ast.Continue, ast.Return, ast.Delete)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change."""

    file: str
    line: int
    change: str
    source: str
    """The changed source of the whole file."""
    code: str = ""
    """The line before the change, without its indentation."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.change}"


class Planter(ast.NodeTransformer):
    """Counts the places of a module that can change, and changes the one with a given number."""

    def __init__(self, chosen: int = -1) -> None:
        self.chosen = chosen
        self.count = 0
        self.line = 0
        self.change = ""

    def _is_chosen(self, node: Any, change: str) -> bool:
        self.count += 1
        if self.count - 1 != self.chosen:
            return False
        self.line, self.change = node.lineno, change
        return True

    def generic_visit(self, node: ast.AST) -> Any:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params", "format_spec"):
                continue
            if isinstance(value, list):
                value[:] = [self.visit(v) if isinstance(v, ast.AST) else v for v in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom)) or _is_typing(node):
            return node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _is_none(node.body[-1]):
            last = node.body.pop()  # A function returns None without it, too.
            self.generic_visit(node).body.append(last)
            return node
        if isinstance(node, DELETED) and not _is_text(node):
            text = ast.unparse(node).partition("\n")[0][:70]
            if self._is_chosen(node, f"delete {text!r}"):
                return ast.copy_location(ast.Pass(), node)
        if isinstance(node, ast.Call) and _is_error(node):
            return node
        if isinstance(node, (ast.If, ast.While, ast.IfExp)):
            self._negate(node)
        elif isinstance(node, ast.Constant):
            return self._change_constant(node)
        self._swap(node)
        return self.generic_visit(node)

    def _negate(self, node: Any) -> None:
        if self._is_chosen(node, f"negate {ast.unparse(node.test)[:70]!r}"):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)

    def _change_constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool):
            value: Any = not node.value
        elif isinstance(node.value, int):
            value = node.value + 1
        else:
            return node
        if self._is_chosen(node, f"{node.value} -> {value}"):
            return ast.copy_location(ast.Constant(value), node)
        return node

    def _swap(self, node: Any) -> None:
        if isinstance(node, ast.Compare):
            for index, operator in enumerate(node.ops):
                self._swap_operator(node, operator, node.ops, index)
        elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
            self._swap_operator(node, node.op, node.__dict__, "op")

    def _swap_operator(self, node: Any, operator: Any, holder: Any, key: Any) -> None:
        other = SWAPS.get(type(operator))
        if other is not None and self._is_chosen(
            node, f"{type(operator).__name__} -> {other.__name__} in {ast.unparse(node)[:60]!r}"
        ):
            holder[key] = other()


def _is_typing(node: ast.AST) -> bool:
    """Return whether a node only serves type checkers."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _is_none(node: ast.AST) -> bool:
    """Return whether a statement returns None."""
    return isinstance(node, ast.Return) and ast.unparse(node) in ("return", "return None")


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is a docstring or an ellipsis."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_error(node: ast.Call) -> bool:
    """Return whether a call makes an error: its arguments are words for people."""
    name = ast.unparse(node.func).rpartition(".")[2]
    return name.endswith(("Error", "error")) or name in ("debug", "info", "warning", "exception")


def plant(root: Path, file: str, number: int) -> Mutant | None:
    """Return the change with a number, or None if it leaves the code as it was."""
    source = (root / file).read_text()
    planter = Planter(number)
    lines = source.splitlines()
    tree = planter.visit(ast.parse(source))
    changed = ast.unparse(ast.fix_missing_locations(tree))
    if changed == ast.unparse(ast.parse(source)):
        return None
    return Mutant(file, planter.line, planter.change, changed, lines[planter.line - 1].strip())


def choose_mutants(root: Path, package: str, samples: int, seed: int) -> Iterator[Mutant]:
    """Yield a random sample of the changes to a folder or to the files that a pattern matches."""
    places: list[tuple[str, int]] = []
    path = root / package
    for file in sorted(path.rglob("*.py") if path.is_dir() else root.glob(package)):
        planter = Planter()
        planter.visit(ast.parse(file.read_text()))
        places += [(str(file.relative_to(root)), number) for number in range(planter.count)]
    print(f"{len(places)} places in {package}; seed {seed}", flush=True)
    random.Random(seed).shuffle(places)
    planted = 0
    for file, number in places:
        if planted < samples and (mutant := plant(root, file, number)) is not None:
            planted += 1
            yield mutant
