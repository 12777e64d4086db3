"""Whether a function is still what was captured of it, told in some microseconds.

A capture parses source and follows names; a call may take less than that. So what a capture looked at is remembered:
the names of the session that the function uses, through its helpers, and the very objects that they stood for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any

from gpulayer.source.capture.unwrapping import plain

_MISSING = object()
_OF_EVERY_CLASS = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__", "__module__"})
_FIXED = frozenset({type(None), bool, int, float, complex, str, bytes, range, type(...)})


class Watch:
    """What a function was made of when it was looked at."""

    def __init__(self, root: Any, data: Mapping[str, Any], pack: Callable[[Mapping[str, Any]], bytes]):
        """Arguments:

        root: the function or class; what it wraps is followed too.
        data: the values that were captured.
        pack: makes bytes of some of them, to see whether one changed that stayed the same object.
        """
        self._names: list[tuple[Mapping[str, Any], str, Any]] = []
        self._codes: list[tuple[FunctionType, CodeType, Any, Any]] = []
        self._cells: list[tuple[Any, Any]] = []
        self._classes: list[tuple[type, list[str]]] = []
        self._modules = {"__main__", "__mp_main__", getattr(root, "__module__", None)}
        self._seen: dict[int, Any] = {}  # kept, so that each keeps its id
        self._follow(root)
        self._changing = {name: value for name, value in data.items() if not _fixed(value)}
        self._pack = pack
        self._packed = pack(self._changing) if self._changing else b""

    def unchanged(self) -> bool:
        """Whether all of it is as it was."""
        for names, name, value in self._names:
            if names.get(name, _MISSING) is not value:
                return False
        for function, code, defaults, keywords in self._codes:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not keywords:
                return False
        for cell, value in self._cells:
            if _held(cell) is not value:
                return False
        for made, names in self._classes:
            if _own(made) != names:
                return False
        return not self._changing or self._pack(self._changing) == self._packed

    # ---------------------------------------------------------------- the look

    def _follow(self, root: Any) -> None:
        pending = [root]
        while pending:
            each = plain(pending.pop())
            if id(each) in self._seen:
                continue
            self._seen[id(each)] = each
            if isinstance(each, FunctionType):
                pending.extend(self._function(each) if self._is_near(each) else ())
            elif isinstance(each, type):
                pending.extend(self._class(each) if self._is_near(each) else ())
            elif isinstance(each, (staticmethod, classmethod)):
                pending.append(each.__func__)
            elif isinstance(each, property):
                pending += [part for part in (each.fget, each.fset, each.fdel) if part is not None]
            elif isinstance(each, functools.cached_property):
                pending.append(each.func)
            else:
                pending += _wrapped(each)

    def _is_near(self, value: Any) -> bool:
        """Whether its source travels, and may be replaced at any time; others are imported: files tell of these."""
        return getattr(value, "__module__", None) in self._modules

    def _function(self, function: FunctionType) -> Iterator[Any]:
        self._codes.append((function, function.__code__, function.__defaults__, function.__kwdefaults__))
        for cell in function.__closure__ or ():
            self._cells.append((cell, _held(cell)))
            yield _held(cell)
        yield from (function.__defaults__ or ())
        yield from (function.__kwdefaults__ or {}).values()
        yield from _wrapped(function)
        for name in sorted(_names(function.__code__)):
            value = function.__globals__.get(name, _MISSING)
            self._names.append((function.__globals__, name, value))
            yield value

    def _class(self, made: type) -> Iterator[Any]:
        self._classes.append((made, _own(made)))
        for name, value in made.__dict__.items():
            if name not in _OF_EVERY_CLASS:
                self._names.append((made.__dict__, name, value))
                yield value
        yield from made.__bases__


def _own(made: type) -> list[str]:
    """The attributes that a class has by itself, but those that Python adds and changes on its own account."""
    return [name for name in made.__dict__ if not name.startswith("__")]


def _wrapped(value: Any) -> list[Any]:
    """What a decorator says that it wraps; asked without calling anything of a stranger's."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return []
    return [own["__wrapped__"]] if isinstance(own, dict) and "__wrapped__" in own else []


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for each in code.co_consts:
        if isinstance(each, CodeType):
            names |= _names(each)
    return names


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


def _fixed(value: Any) -> bool:
    """Whether a value can't change while it stays the same object."""
    kind = type(value)
    return kind in _FIXED or (kind in (tuple, frozenset) and all(map(_fixed, value)))
