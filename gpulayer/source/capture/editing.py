"""A definition's text as it travels: own decorators and evaluated defaults replaced, every line where it was."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from gpulayer.source.capture.finding import Definition, parsed
from gpulayer.source.capture.records import CaptureError

__all__ = ["DEFAULT", "FACTORY", "OBJECT", "Text", "cut"]

DEFAULT = "gpulayer_default_"
"""What names of defaults begin with: their values travel."""
FACTORY = "gpulayer_closure"
"""What a function of closure variables that gives the definition is called."""
OBJECT = "gpulayer_object"
"""What a lambda, or a value that is made anew, is bound to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """The text of a piece."""

    first_line: int
    text: str
    defines: str


def cut(
    definition: Definition,
    *,
    without: list[ast.expr],
    replaced: list[tuple[ast.expr, str]],
    closure: tuple[str, ...] | None,
    name: str,
) -> Text:
    """The text of a definition.

    Args:
        definition: where it stands.
        without: decorators that are left out.
        replaced: expressions in it, and the names that stand for them.
        closure: makes it a function of these names, `FACTORY`, which returns the definition; None: a plain one.
        name: of the function or class, for errors.
    """
    node = definition.node
    lines = [line.encode() for line in definition.lines]
    for decorator in without:
        for number in range(decorator.lineno, (decorator.end_lineno or decorator.lineno) + 1):
            lines[number - 1] = b""
    if isinstance(node, ast.Lambda):
        last = (node.end_lineno or node.lineno) - 1
        lines[last] = lines[last][: node.end_col_offset]
    for expression, instead in sorted(replaced, key=lambda pair: (pair[0].lineno, pair[0].col_offset), reverse=True):
        _replace(lines, expression, instead)
    made = _lambda(lines, node, closure) if isinstance(node, ast.Lambda) else _def(lines, definition, closure)
    try:
        parsed(made.text)
    except SyntaxError:
        raise CaptureError(
            f"{name} can't be cut out of its source ({definition.where}): "
            "write each of its decorators on lines of its own"
        ) from None
    return made


def _replace(lines: list[bytes], node: Any, instead: str) -> None:
    first, last = node.lineno - 1, node.end_lineno - 1
    tail = lines[last][node.end_col_offset :]
    head = lines[first][: node.col_offset] + instead.encode()
    if first == last:
        lines[first] = head + tail
        return
    lines[first] = head
    for number in range(first + 1, last):
        lines[number] = b""
    lines[last] = tail


def _lambda(lines: list[bytes], node: Any, closure: tuple[str, ...] | None) -> Text:
    first, last = node.lineno - 1, node.end_lineno - 1
    part = lines[first : last + 1]
    part[0] = part[0][node.col_offset :]
    text = b"\n".join(part).decode()
    if closure is None:
        return Text(first_line=node.lineno, text=f"{OBJECT} = ({text})", defines=OBJECT)
    head = f"def {FACTORY}({', '.join(closure)}): return "
    return Text(first_line=node.lineno, text=f"{head}({text})", defines=FACTORY)


def _def(lines: list[bytes], definition: Definition, closure: tuple[str, ...] | None) -> Text:
    node: Any = definition.node
    text = b"\n".join(lines[definition.first_line - 1 : node.end_lineno]).decode()
    if closure is None and node.col_offset == 0:
        return Text(first_line=definition.first_line, text=text, defines=node.name)
    indent = definition.lines[node.lineno - 1][: node.col_offset]  # white space: one byte each
    if closure is None:
        return Text(first_line=definition.first_line - 1, text=f"if True:\n{text}", defines=node.name)
    head = f"def {FACTORY}({', '.join(closure)}):\n"
    tail = f"\n{indent}return {node.name}"
    return Text(first_line=definition.first_line - 1, text=f"{head}{text}{tail}", defines=FACTORY)
