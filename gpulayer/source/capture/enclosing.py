"""The functions around a definition: their variables are gone when it is captured, but for those in its closure."""

from __future__ import annotations

import ast
import copy
import sys
from typing import Any

from gpulayer.source.capture.analysis import scopes
from gpulayer.source.capture.finding import Definition

__all__ = ["bound_around", "imported_around"]


def bound_around(definition: Definition) -> frozenset[str]:
    """Names of local variables of the functions around a definition."""
    functions = [each for each in definition.around if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
    if not functions:
        return frozenset()
    names: set[str] = set()
    table = scopes(copy.deepcopy(functions[0]), [])
    for function in functions:
        children = {child.get_name(): child for child in table.get_children()}
        child = children.get(function.name)
        if child is None:
            break
        table = child
        names |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_local()}
    return frozenset(names - {definition.node.name} if not isinstance(definition.node, ast.Lambda) else names)


def imported_around(definition: Definition, name: str) -> Any:
    """What a name means that a function around the definition imports; None if none does."""
    for around in reversed(definition.around):
        for node in ast.walk(around):
            if isinstance(node, ast.Import):
                for each in node.names:
                    if (each.asname or each.name.partition(".")[0]) == name:
                        return sys.modules.get(each.name if each.asname else each.name.partition(".")[0])
            elif isinstance(node, ast.ImportFrom) and node.module:
                for each in node.names:
                    if (each.asname or each.name) == name:
                        return getattr(sys.modules.get(node.module), each.name, None)
    return None
