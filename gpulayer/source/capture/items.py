"""Functions and classes of a session, taken apart: what of their definition travels, and what it refers to."""

from __future__ import annotations
import __future__

import abc
import ast
import enum
import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

from gpulayer.source.capture import editing
from gpulayer.source.capture.analysis import Names, names_of
from gpulayer.source.capture.enclosing import bound_around, imported_around
from gpulayer.source.capture.finding import Definition, class_definition, function_definition
from gpulayer.source.capture.records import CaptureError
from gpulayer.source.capture.unwrapping import chain, inner_function, plain

__all__ = ["Parts", "class_parts", "function_parts", "methods_of", "readable"]

_Arguments: TypeAlias = list[tuple[ast.expr, str, Any]]


_FIXED = (type(None), bool, int, float, complex, str, bytes)


@dataclass(kw_only=True, slots=True)
class Parts:
    """A function or class taken apart; the collector fills in what its references are."""

    value: Any  # the object; kept, so that its id stays its own
    name: str  # as people know it
    namespace: Mapping[str, Any]  # its module's
    definition: Definition
    without: list[ast.expr]  # decorators that do not travel
    defaults: _Arguments  # expression, parameter, value: of defaults that are no literals
    cells: dict[str, Any]  # closure variables and what they hold
    attributes: dict[str, Any] = field(default_factory=dict)  # of a class: what it has now
    future: tuple[str, ...] = ()

    def text(self, replaced: list[tuple[ast.expr, str]]) -> editing.Text:
        """What travels, with names in place of some expressions."""
        closure = tuple(self.cells) if self.cells else None
        return editing.cut(self.definition, without=self.without, replaced=replaced, closure=closure, name=self.name)

    def names(self, text: editing.Text) -> Names:
        """What the text needs of its module. Raises `CaptureError` for what it needs of a function around it."""
        names = names_of(text.text)
        lost = sorted(name for name in bound_around(self.definition) if name in names.evaluated)
        if lost:
            raise CaptureError(
                f"the definition of {self.name} uses {lost[0]!r}, a variable of the function around it that is gone "
                f"({self.definition.where}): define {self.name.rpartition('.')[2]} outside of that function"
            )
        return names


def readable(value: Any) -> str:
    """A function's or class's name without the marks of nested scopes."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None) or type(value).__name__
    return str(name).replace("<locals>.", "").replace("<lambda>", "lambda")


# ---------------------------------------------------------------------------------------------------------- functions


def function_parts(value: Any) -> Parts:
    """Take a function apart, or what decorators made of one. Raises `CaptureError`."""
    links = chain(value)
    function: FunctionType = links[-1]
    if any(callable(getattr(link, "dispatch", None)) and hasattr(link, "registry") for link in links[:-1]):
        raise CaptureError(
            f"{readable(function)} is a single-dispatch function, and what is registered with it can't travel: "
            "put it into a module, or tell the types apart inside the function"
        )
    definition = function_definition(function)
    node: Any = definition.node
    decorators: list[ast.expr] = [] if isinstance(node, ast.Lambda) else node.decorator_list
    own = [each for each in decorators if _is_own(each, function.__globals__, definition)]
    kept = [each for each in decorators if each not in own]
    _refuse_other_wrappers(links, function, kept, definition)
    is_raw = len(links) == 1 and plain(function.__globals__.get(function.__name__)) is not function
    cells = dict(_cells(function))
    if not isinstance(node, ast.Lambda) and cells.get(node.name) in links:
        del cells[node.name]  # it calls itself: a local variable of the function around it
    return Parts(
        value=value,
        name=readable(function),
        namespace=function.__globals__,
        definition=definition,
        without=decorators if is_raw else own,
        defaults=list(_defaults(node.args, function)),
        cells=cells,
        future=_future(function),
    )


def _refuse_other_wrappers(
    links: list[Any], function: FunctionType, kept: list[ast.expr], definition: Definition
) -> None:
    """A wrapper that no decorator of the def makes would be lost."""
    named = plain(function.__globals__.get(function.__name__))
    if len(links) == 1 or named is links[0]:
        return
    if len(links) - 1 > len(kept) or any(named is link for link in links[1:]):
        name = readable(function)
        raise CaptureError(
            f"a wrapper around {name} was made by a call and not by a decorator ({name}: {definition.where}), "
            f"so its source does not tell what it does: decorate {name}, or call the wrapper inside of a function"
        )


def _cells(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if name == "__class__":
            continue
        try:
            yield name, plain(cell.cell_contents)
        except ValueError:  # an empty cell
            raise CaptureError(
                f"{readable(function)} uses {name!r} of the function around it, which has no value yet: "
                "define it before the call"
            ) from None


def _defaults(arguments: ast.arguments, function: FunctionType) -> Iterator[tuple[ast.expr, str, Any]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    values = function.__defaults__ or ()
    if len(values) == len(arguments.defaults):
        named = positional[len(positional) - len(values) :]
        for argument, expression, value in zip(named, arguments.defaults, values, strict=True):
            if not _is_literal(expression):
                yield expression, argument.arg, value
    by_name = function.__kwdefaults__ or {}
    for argument, expression in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if expression is not None and not _is_literal(expression) and argument.arg in by_name:
            yield expression, argument.arg, by_name[argument.arg]


def _is_literal(expression: ast.expr) -> bool:
    try:
        ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _future(function: FunctionType) -> tuple[str, ...]:
    return ("annotations",) if function.__code__.co_flags & __future__.annotations.compiler_flag else ()


# ------------------------------------------------------------------------------------------------------------ classes


def class_parts(cls: type, namespace: Mapping[str, Any]) -> Parts:
    """Take a class apart; `namespace` is that of whoever uses it, for classes without methods."""
    definition = class_definition(cls)
    node = definition.node
    if not isinstance(node, ast.ClassDef):
        raise TypeError("class_definition gives class statements")
    functions = [each for each in methods_of(cls) if each.__code__.co_filename == definition.filename]
    module = functions[0].__globals__ if functions else _namespace(cls, namespace)
    own = [each for each in node.decorator_list if _is_own(each, module, definition)]
    named = plain(module.get(cls.__name__))
    if isinstance(named, type) and named is not cls and issubclass(named, cls):
        own = node.decorator_list  # one of them made a class of this one
    cells: dict[str, Any] = {}
    for function in functions:
        cells.update(_cells(function))
    _refuse_foreign_methods(cls, node, functions, has_decorators=len(own) < len(node.decorator_list))
    return Parts(
        value=cls,
        name=readable(cls),
        namespace=module,
        definition=definition,
        without=[*own, *(each for each in _inner_decorators(node) if _is_own(each, module, definition))],
        defaults=[
            *_lost_bases(cls, module, definition),
            *(each for child, function in _method_nodes(node, functions) for each in _defaults(child.args, function)),
        ],
        cells={name: value for name, value in cells.items() if value is not cls},
        attributes=dict(_attributes(cls, node)),
        future=_future(functions[0]) if functions else (),
    )


def _namespace(cls: type, namespace: Mapping[str, Any]) -> Mapping[str, Any]:
    module = vars(sys.modules.get(cls.__module__, sys))
    return module if module.get(cls.__name__) is cls else namespace


def _lost_bases(cls: type, namespace: Mapping[str, Any], definition: Definition) -> Iterator[tuple[ast.expr, str, Any]]:
    """Bases that their expressions do not give any more: defined again since, or named by a variable that is gone."""
    node = definition.node
    if not isinstance(node, ast.ClassDef) or len(node.bases) != len(cls.__bases__):
        return
    around = bound_around(definition)
    for expression, base in zip(node.bases, cls.__bases__, strict=True):
        named = plain(_resolved(expression, namespace, definition))
        is_gone = isinstance(expression, ast.Name) and expression.id in around
        if is_gone or (isinstance(named, type) and named is not base and named.__qualname__ == base.__qualname__):
            yield expression, f"base {base.__name__}", base


def _inner_decorators(node: ast.ClassDef) -> Iterator[ast.expr]:
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield from child.decorator_list
        if isinstance(child, ast.ClassDef):
            yield from _inner_decorators(child)


def methods_of(cls: type) -> Iterator[FunctionType]:
    """The functions that the class statement defined."""
    prefix = f"{cls.__qualname__}."
    for value in vars(cls).values():
        if isinstance(value, type) and value.__qualname__.startswith(prefix):
            yield from methods_of(value)
        several = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)
        for each in several:
            function = inner_function(each)
            if (
                function is not None
                and function.__qualname__.startswith(prefix)
                and function.__module__ == cls.__module__
            ):
                yield function


def _method_nodes(node: ast.ClassDef, functions: list[FunctionType]) -> Iterator[tuple[Any, FunctionType]]:
    by_line = {(each.__code__.co_firstlineno, each.__code__.co_name): each for each in functions}
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = child.decorator_list[0].lineno if child.decorator_list else child.lineno
            function = by_line.get((first, child.name))
            if function is not None:
                yield child, function


def _refuse_foreign_methods(
    cls: type, node: ast.ClassDef, functions: list[FunctionType], *, has_decorators: bool
) -> None:
    """Methods that were set from outside are not in the source of the class."""
    hooks = any("__init_subclass__" in vars(base) for base in cls.__mro__[1:-1])
    if has_decorators or hooks or type(cls) not in (type, abc.ABCMeta):
        return  # these may add methods, there too
    bound = set(_bound(node))
    for name, value in vars(cls).items():
        foreign = isinstance(value, FunctionType) and value not in functions and value.__module__ == cls.__module__
        if foreign and name not in bound and not (name.startswith("__") and name.endswith("__")):
            raise CaptureError(
                f"method {name!r} of class {readable(cls)} was set from outside of the class: "
                "write it into the class, or into one that inherits from it"
            )


def _bound(node: ast.ClassDef) -> Iterator[str]:
    for each in ast.walk(node):
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield each.name
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id


def _attributes(cls: type, node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    """What is to be set on the class there: attributes that are not what the literals in its body say."""
    if issubclass(cls, (tuple, enum.Enum)):
        return
    literals = dict(_literals(node))
    for name, value in vars(cls).items():
        if name.startswith("__") and name.endswith("__"):
            continue
        if isinstance(value, (FunctionType, staticmethod, classmethod, property, type, functools.cached_property)):
            continue
        if inspect.isdatadescriptor(value) or name.startswith("_abc_"):
            continue
        if name in literals and isinstance(value, _FIXED) and _same(literals[name], value):
            continue
        yield name, value


def _literals(node: ast.ClassDef) -> Iterator[tuple[str, Any]]:
    for each in node.body:
        if not isinstance(each, (ast.Assign, ast.AnnAssign)) or each.value is None or not _is_literal(each.value):
            continue
        for target in each.targets if isinstance(each, ast.Assign) else [each.target]:
            if isinstance(target, ast.Name):
                yield target.id, ast.literal_eval(each.value)


def _same(written: Any, value: Any) -> bool:
    return type(written) is type(value) and repr(written) == repr(value)


# --------------------------------------------------------------------------------------------------------- decorators


def _is_own(decorator: ast.expr, namespace: Mapping[str, Any], definition: Definition) -> bool:
    """Whether a decorator is `gl.remote`, in whatever way it was imported."""
    while isinstance(decorator, ast.Call):
        decorator = decorator.func
    value = _resolved(decorator, namespace, definition)
    return inspect.getattr_static(value, "__gpulayer_decorator__", False) is True


def _resolved(expression: ast.expr, namespace: Mapping[str, Any], definition: Definition) -> Any:
    steps: list[str] = []
    while isinstance(expression, ast.Attribute):
        steps.append(expression.attr)
        expression = expression.value
    if not isinstance(expression, ast.Name):
        return None
    value = namespace.get(expression.id)
    if value is None:
        value = imported_around(definition, expression.id)
    for step in reversed(steps):
        look = getattr if isinstance(value, ModuleType) else inspect.getattr_static
        value = look(value, step, None)
    return value
