"""The source of functions and classes: the statement that defines them, in the text of a cell or a file.

`inspect.getsource` knows nothing of a notebook's classes, and of a lambda gives the whole statement; so the text comes
from linecache, where notebooks put their cells, and the statement is found in its syntax tree.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from gpulayer.source.capture.records import CaptureError
from gpulayer.source.capture.unwrapping import inner_function

__all__ = ["Definition", "class_definition", "function_definition", "is_cell", "parsed", "shown_file"]

Node: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda
_BASES_THAT_GO = {"NamedTuple", "TypedDict", "Protocol", "Generic", "object"}  # may not be bases of what is made
_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Definition:
    """A def, class or lambda in its file."""

    filename: str  # as the code object has it
    lines: tuple[str, ...]  # of the whole file, without their ends
    node: Node
    around: tuple[Node, ...]  # the defs and classes that it stands in, the outermost first

    @property
    def first_line(self) -> int:
        """Where it begins, decorators included."""
        return _first_line(self.node)

    @property
    def where(self) -> str:
        """'cell 3, line 2'."""
        return f"{shown_file(self.filename)}, line {self.node.lineno}"


def function_definition(function: FunctionType) -> Definition:
    """The statement or lambda that made a function (not one that it wraps). Raises `CaptureError`."""
    code = function.__code__
    name = _name(function)
    file = _file(code.co_filename, name, function.__globals__)
    found = [each for each in file.at.get(code.co_firstlineno, ()) if _fits(each.node, code)]
    if len(found) > 1:
        raise CaptureError(
            f"{name} is one of {len(found)} lambdas on one line ({found[0].where}): write it as a function with def"
        )
    if not found:
        raise CaptureError(
            f"the source of {name} is not what it was when it was defined "
            f"({shown_file(code.co_filename)}, line {code.co_firstlineno}): run what defines it again"
        )
    return found[0]


def class_definition(cls: type) -> Definition:
    """The statement that made a class. Raises `CaptureError`."""
    codes = list(_method_codes(cls))
    for code in codes:
        file = _parsed_or_none(code.co_filename)
        for each in file.classes.get(cls.__qualname__, ()) if file else ():
            if _first_line(each.node) <= code.co_firstlineno <= (each.node.end_lineno or 0):
                return each
    for filename in _newest_first(cls):
        file = _parsed_or_none(filename)
        for each in reversed(file.classes.get(cls.__qualname__, ())) if file else ():
            if _made_by(each.node, cls):
                return each
    raise CaptureError(
        f"class {cls.__qualname__} was made by no class statement that can be found: "
        "write one in a cell, a script or a module"
    )


def shown_file(filename: str) -> str:
    """A file's name for people and for tracebacks: ipykernel's names of cells hold a process id and a hash."""
    number = _cell_number(filename)
    return filename if number is None or filename.startswith("<") else f"cell {number}"


def is_cell(filename: str) -> bool:
    """Whether it stands for a notebook's cell or an input of a shell, and has another name when that runs again."""
    return _cell_number(filename) is not None or filename.startswith(("<ipython-input-", "<python-input-"))


def parsed(text: str) -> ast.Module:
    """The syntax tree of a text; what Python warns of was shown when it was defined."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


# -------------------------------------------------------------------------------------------------------------- texts


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _File:
    """A text, and what it defines."""

    lines: list[str]
    at: dict[int, list[Definition]]  # by first line
    classes: dict[str, list[Definition]]  # by qualified name


_MOST_FILES = 64
_files: dict[str, _File] = {}  # the oldest first
_lock = threading.Lock()


def _file(filename: str, name: str, module: dict[str, Any]) -> _File:
    if filename == "<stdin>":
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise CaptureError(
            f"{name} was typed at the prompt of Python {version}, which keeps no source: "
            "put it into a file or a notebook"
        )
    if filename.startswith("<timed "):
        raise CaptureError(f"the source of {name} can't be found: define it in a cell without %%time")
    lines = _lines(filename, module)
    if not lines:
        raise CaptureError(
            f"the source of {name} can't be found (it was made in {filename!r}): "
            "define it in a cell, a script or a module"
        )
    try:
        return _parsed(filename, lines)
    except SyntaxError as error:
        raise CaptureError(
            f"the source of {name} can't be read: {shown_file(filename)}, line {error.lineno}: {error.msg}; "
            "run what defines it again"
        ) from None


def _parsed_or_none(filename: str) -> _File | None:
    lines = _lines(filename, None)
    try:
        return _parsed(filename, lines) if lines else None
    except SyntaxError:  # a cell that never ran, or one of another language
        return None


def _lines(filename: str, module: dict[str, Any] | None) -> list[str]:
    linecache.checkcache(filename)
    return linecache.getlines(filename, module)


def _parsed(filename: str, lines: list[str]) -> _File:
    """What a file defines; `lines` is linecache's own list, another one when the file is another one."""
    known = _files.get(filename)
    if known is not None and known.lines is lines:
        return known
    file = _File(lines=lines, at={}, classes={})
    for each in _definitions(filename, tuple(line.rstrip("\r\n") for line in lines)):
        file.at.setdefault(each.first_line, []).append(each)
        if isinstance(each.node, ast.ClassDef):
            file.classes.setdefault(_qualname(each), []).append(each)
    with _lock:
        while len(_files) >= _MOST_FILES:
            del _files[next(iter(_files))]
        _files[filename] = file
    return file


def _definitions(filename: str, lines: tuple[str, ...]) -> Iterator[Definition]:
    pending: list[tuple[ast.AST, tuple[Node, ...]]] = [(parsed("\n".join(lines)), ())]
    while pending:
        node, around = pending.pop()
        inside = around
        if isinstance(node, _NODES):
            yield Definition(filename=filename, lines=lines, node=node, around=around)
            inside = (*around, node)
        pending += [(child, inside) for child in reversed(list(ast.iter_child_nodes(node)))]


def _qualname(definition: Definition) -> str:
    parts = [
        f"{node.name}.<locals>" if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) else node.name
        for node in definition.around
        if not isinstance(node, ast.Lambda)
    ]
    return ".".join([*parts, definition.node.name if not isinstance(definition.node, ast.Lambda) else "<lambda>"])


def _first_line(node: Node) -> int:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return decorators[0].lineno if decorators else node.lineno


def _fits(node: Node, code: CodeType) -> bool:
    if isinstance(node, ast.ClassDef):
        return False
    name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    names = [each.arg for each in (*positional, *arguments.kwonlyargs)]
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return name == code.co_name and len(names) == len(known) and all(map(_same_name, names, known))


def _same_name(written: str, compiled: str) -> bool:
    return written == compiled or (written.startswith("__") and compiled.endswith(written))  # mangled in a class


# ------------------------------------------------------------------------------------------------------------ classes


def _method_codes(cls: type) -> Iterator[CodeType]:
    for value in vars(cls).values():
        function = inner_function(value)
        if function is not None and function.__module__ == cls.__module__:  # enum copies methods of its own classes
            yield function.__code__


def _made_by(node: Node, cls: type) -> bool:
    """Whether a class has the bases, and what the statement's body binds: another cell may have one of its name."""
    if not isinstance(node, ast.ClassDef):
        return False
    bases = {base.id for base in node.bases if isinstance(base, ast.Name)} - _BASES_THAT_GO
    names: set[str] = set()
    annotated: set[str] = set()
    for each in node.body:
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(each.name)
        elif isinstance(each, ast.Assign):
            names |= {target.id for target in each.targets if isinstance(target, ast.Name)} - {"_ignore_"}
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            annotated.add(each.target.id)
    plain = cls.__bases__ == (object,)
    if (bases and plain) or (not plain and not node.bases and not getattr(node, "type_params", ())):
        return False
    return _annotated(cls) in (None, annotated) and all(hasattr(cls, name) for name in names if name[:2] != "__")


def _annotated(cls: type) -> set[str] | None:
    try:
        return set(inspect.get_annotations(cls))
    except NameError:  # Python 3.14 evaluates them only now
        return None


def _newest_first(cls: type) -> Iterator[str]:
    module = sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if isinstance(file, str):
        yield file
    texts = [filename for filename in list(linecache.cache) if filename.startswith("<") or _cell_number(filename)]
    numbered = [(_cell_number(filename) or 0, index, filename) for index, filename in enumerate(texts)]
    for _, _, filename in sorted(numbered, reverse=True):
        yield filename


def _cell_number(filename: str) -> int | None:
    """The number of the notebook's cell that a file name stands for, as IPython knows it."""
    interactive = sys.modules.get("IPython.core.interactiveshell")
    shell: Any = getattr(getattr(interactive, "InteractiveShell", None), "_instance", None)
    numbers = getattr(getattr(shell, "compile", None), "_filename_map", None)
    number = numbers.get(filename) if isinstance(numbers, dict) else None
    return number if isinstance(number, int) else None


def _name(function: FunctionType) -> str:
    name = function.__qualname__.replace("<locals>.", "")
    return "a lambda" if name.endswith("<lambda>") else name
