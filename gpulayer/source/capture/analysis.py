"""Which names a piece of source needs from its module: by symtable, over all nested scopes."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from gpulayer.source.capture.editing import DEFAULT, FACTORY
from gpulayer.source.capture.finding import parsed

__all__ = ["Names", "is_builtin", "names_of", "scopes"]

_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
_AT_ONCE = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr", "lambda", FACTORY})
_BUILTIN_MODULES = frozenset({"builtins", "_sitebuiltins", "io", "_io", "site"})
_CONSTANTS = frozenset({"None", "True", "False", "Ellipsis", "NotImplemented", "__debug__"})
_OF_MODULES = frozenset({"__name__", "__doc__", "__builtins__", "__spec__", "__package__", "__loader__", "__dict__"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Names:
    """What a text needs of its module."""

    evaluated: frozenset[str]  # when it is executed: decorators, defaults, bases, class bodies
    called: frozenset[str]  # when what it defines is called
    soft: frozenset[str]  # in annotations, or where a NameError is caught: may be missing
    stored: frozenset[str]  # bound in the module by functions, with `global`
    chains: frozenset[tuple[str, str]]  # attributes of names: ('os', 'path.join')
    strings: frozenset[str]  # constants that may be paths
    imports: frozenset[str]  # modules that are imported inside of functions; relative ones with their dots


@lru_cache(maxsize=256)
def names_of(text: str) -> Names:
    """Analyse the text of a piece. Names that Python or every module has are left out."""
    tree = parsed(text)
    annotations: list[ast.expr] = []
    soft = set(_guarded(tree))
    chains, strings, imports = frozenset(_chains(tree)), frozenset(_strings(tree)), frozenset(_imports(tree))
    found = _Found(set(), set(), set(), soft)
    found.scan(scopes(tree, annotations), top=True)
    noted = {node.id for each in annotations for node in ast.walk(each) if isinstance(node, ast.Name)}
    found.evaluated |= noted & found.called  # annotations of what is needed anyway are evaluated, too
    ours = found.defined
    return Names(
        evaluated=_needed(found.evaluated - ours - soft),
        called=_needed(found.called - found.evaluated - soft),  # what it defines too: a function may call itself
        soft=_needed((soft | (noted - found.evaluated)) - ours),
        stored=frozenset(found.stored),
        chains=chains,
        strings=strings,
        imports=imports,
    )


def scopes(tree: ast.AST, annotations: list[ast.expr]) -> symtable.SymbolTable:
    """The scopes of a tree, which is changed by this: its annotations are taken out of it, into `annotations`."""
    bare: Any = _Bare(annotations).visit(tree)
    return symtable.symtable(ast.unparse(ast.fix_missing_locations(bare)), "<capture>", "exec")


def is_builtin(name: str) -> bool:
    """Whether a name is Python's own: notebooks put some of their own among the builtins."""
    if name in _CONSTANTS:
        return True
    value = getattr(builtins, name, None)
    return value is not None and getattr(value, "__module__", None) in _BUILTIN_MODULES


def _needed(names: Iterable[str]) -> frozenset[str]:
    return frozenset(name for name in names if name not in _OF_MODULES and not name.startswith(DEFAULT))


class _Found:
    """Names, as the walk over the scopes finds them."""

    def __init__(self, evaluated: set[str], called: set[str], stored: set[str], soft: set[str]) -> None:
        self.evaluated = evaluated
        self.called = called
        self.stored = stored
        self.soft = soft
        self.defined: set[str] = set()

    def scan(self, table: symtable.SymbolTable, *, top: bool = False, now: bool = True) -> None:
        """`now`: the scope runs when the text is executed."""
        is_class = table.get_type() == "class"
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if top:
                if symbol.is_assigned():
                    self.defined.add(name)
                elif symbol.is_referenced():
                    self.evaluated.add(name)
            elif symbol.is_global():
                self._add(symbol, now)
            elif is_class and symbol.is_referenced() and symbol.is_assigned():
                self.soft.add(name)  # `x = x` in a class looks in the module, `x = 1; y = x` does not
        for child in table.get_children():
            name = child.get_name()
            waits = str(child.get_type()) == "function" and name not in _AT_ONCE
            self.scan(child, now=now and not waits)

    def _add(self, symbol: symtable.Symbol, now: bool) -> None:
        name = symbol.get_name()
        if symbol.is_assigned():
            self.stored.add(name)
        if symbol.is_referenced():
            (self.evaluated if now else self.called).add(name)


class _Bare(ast.NodeTransformer):
    """Takes annotations out of a tree, since they may be missing there, and texts, which can be hard to write again."""

    def __init__(self, found: list[ast.expr]) -> None:
        self._found = found

    def visit_arg(self, node: ast.arg) -> ast.arg:
        if node.annotation is not None:
            self._found.append(node.annotation)
            node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._function(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self._found.append(node.annotation)
        node.annotation = ast.Constant(value=0)  # the statement stays: it makes the name a local one
        return self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        formatted = [each for each in node.values if isinstance(each, ast.FormattedValue)]
        inner = [part for each in formatted for part in (each.value, each.format_spec) if part is not None]
        return ast.Tuple(elts=[self.visit(part) for part in inner], ctx=ast.Load())

    def _function(self, node: _Function) -> ast.AST:
        if node.returns is not None:
            self._found.append(node.returns)
            node.returns = None
        return self.generic_visit(node)


def _chains(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        steps: list[str] = []
        while isinstance(node, ast.Attribute):
            steps.append(node.attr)
            node = node.value
        if steps and isinstance(node, ast.Name):
            yield node.id, ".".join(reversed(steps))


def _strings(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
            if 0 < len(text) <= 255 and text.isprintable():
                yield text


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield module
            yield from (f"{module}.{each.name}" for each in node.names if not node.level and each.name != "*")


def _guarded(tree: ast.AST) -> Iterator[str]:
    """Names that are loaded where a NameError is caught."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Try) and any(map(_catches_name_error, node.handlers)):
            for statement in node.body:
                for each in ast.walk(statement):
                    if isinstance(each, ast.Name):
                        yield each.id


def _catches_name_error(handler: ast.ExceptHandler) -> bool:
    kind: Any = handler.type
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    return any(isinstance(each, ast.Name) and each.id == "NameError" for each in kinds)
