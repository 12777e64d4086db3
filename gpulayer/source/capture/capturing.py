"""The entry: what kind of thing it is, whether its module is imported there or its source travels."""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

from gpulayer.source.capture import refusals
from gpulayer.source.capture.analysis import is_builtin, names_of
from gpulayer.source.capture.collecting import Collector
from gpulayer.source.capture.folders import names_files, roots, script_below, session_folder
from gpulayer.source.capture.importing import Imported, find_import
from gpulayer.source.capture.items import class_parts, function_parts, methods_of, readable
from gpulayer.source.capture.modules import project_root
from gpulayer.source.capture.ordering import in_order
from gpulayer.source.capture.records import Captured, CaptureError, Piece
from gpulayer.source.capture.unwrapping import chain, lost_there, plain

__all__ = ["capture"]


def capture(obj: Callable[..., Any] | type, *, data_limit_bytes: int = 1_000_000) -> Captured:
    """Take a function or class along, with all that it needs as it is now.

    Args:
        obj: a function, what decorators made of one, a class, or one of our own remote functions.
        data_limit_bytes: of the plain data that it uses, all together.

    Raises:
        CaptureError: it, or something that it uses, can't travel: one line names it and says what to do.
    """
    value = plain(obj)
    kind, is_async = _kind(value)
    found = find_import(value, _name(value)) if not _is_of_session(value) else None
    if found is not None and found.qualname:
        return _imported(value, found, kind, is_async)
    return _collected(value, kind, is_async, data_limit_bytes)


def _imported(value: Any, found: Imported, kind: str, is_async: bool) -> Captured:
    root, sys_path = None, ()
    if found.folder is not None:
        root, way = project_root(found.folder)
        sys_path = (way,)
        _refuse_missing(value)
    return Captured(
        name=readable(value),
        module=found.module,
        qualname=found.qualname,
        root=root,
        sys_path=sys_path,
        source="",
        pieces=(),
        data={},
        kind=kind,
        is_async=is_async,
    ).with_digest()


def _refuse_missing(value: Any) -> None:
    """The names that a function of a module uses must be there, too."""
    functions = list(methods_of(value)) if isinstance(value, type) else [chain(value)[-1]]
    for each in functions:
        for name, attribute in _attributes_loaded(each.__code__):
            known = each.__globals__.get(name)
            if lost_there(known, attribute):
                raise refusals.remote_inside(readable(value), name, attribute, is_class=isinstance(plain(known), type))
    loaded = {(name, id(each.__globals__)): each for each in functions for name in _loaded(each.__code__)}
    if all(name in each.__globals__ or is_builtin(name) for (name, _), each in loaded.items()):
        return
    try:  # the source tells more: names that may be missing, and those that are bound later
        parts = class_parts(value, {}) if isinstance(value, type) else function_parts(value)
        names = parts.names(parts.text([]))
        later = names_of("\n".join(parts.definition.lines)).stored
    except CaptureError:
        return  # there is none: Python says it there
    for name in sorted(names.evaluated | names.called):
        if name not in parts.namespace and not is_builtin(name) and name not in later:
            raise refusals.missing(readable(value), name, parts.namespace)


def _loaded(code: CodeType) -> Iterator[str]:
    """Names that a code looks up in its module, with all that is nested in it."""
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield each.argval
    for nested in code.co_consts:
        if isinstance(nested, CodeType):
            yield from _loaded(nested)


def _attributes_loaded(code: CodeType) -> Iterator[tuple[str, str]]:
    """Names that a code looks up in its module, with the attribute of them that it takes."""
    before: Any = None
    for each in dis.get_instructions(code):
        if before is not None and each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield before.argval, each.argval
        before = each if each.opname == "LOAD_GLOBAL" else None
    for nested in code.co_consts:
        if isinstance(nested, CodeType):
            yield from _attributes_loaded(nested)


def _collected(value: Any, kind: str, is_async: bool, data_limit_bytes: int) -> Captured:
    collector = Collector(data_limit_bytes)
    try:
        entry = collector.add(value)
    except RecursionError:
        name = readable(chain(value)[-1])
        raise CaptureError(f"{name} needs too long a chain of functions to follow: put them into a module") from None
    state = collector.state
    namespace = collector.session or vars(sys.modules["__main__"])
    name = readable(chain(value)[-1])
    session = session_folder(namespace)
    needs_files = state.needs_file or names_files(state.strings, session)
    found = roots(state.folders, session, name, needs_files=needs_files)
    pieces = _pieces(collector, name)
    return Captured(
        name=name,
        module="",
        qualname=entry.slot,
        root=found.root,
        sys_path=found.sys_path,
        source="\n\n".join(f"# {piece.filename}, line {piece.first_line}\n{piece.text}" for piece in pieces),
        cells=state.cells,
        pieces=pieces,
        data=state.data,
        kind=kind,
        is_async=is_async,
        file=script_below(namespace, found.root) if state.needs_file else "",
    ).with_digest()


def _pieces(collector: Collector, name: str) -> tuple[Piece, ...]:
    state = collector.state
    made: list[Piece] = []
    if state.imports:
        text = "\n".join(state.imports)
        names = tuple(sorted(state.imported))
        made.append(Piece(filename=f"<imports of {name}>", first_line=1, text=text, names=names))
    for item in in_order(state.items.values()):
        if item.piece is not None:
            made.append(replace(item.piece, names=tuple(item.names)))
    return tuple(made)


def _is_of_session(value: Any) -> bool:
    return getattr(value, "__module__", None) == "__main__"


def _name(value: Any) -> str:
    return str(getattr(value, "__name__", ""))


def _kind(value: Any) -> tuple[str, bool]:
    """'function', 'generator' or 'class', and whether it is a coroutine function. Raises `CaptureError`."""
    if isinstance(value, type):
        return "class", False
    function = chain(value)[-1]
    if isinstance(value, functools.partial):
        raise CaptureError(
            "a functools.partial can't travel: give the function, and the arguments in each call, "
            "or write a function with def"
        )
    if isinstance(value, (staticmethod, classmethod)):
        other = "write @gl.remote below @staticmethod" if isinstance(value, staticmethod) else "decorate the class"
        raise CaptureError(f"{readable(function)} is a {type(value).__name__}: {other}, or make it a function")
    if inspect.ismethod(value):
        raise CaptureError(f"{readable(value)} is a bound method: decorate the class, or make it a function")
    if inspect.isasyncgenfunction(function):
        raise CaptureError(
            f"{readable(function)} is an async generator, which can't run there: make it a generator (def with yield), "
            "or collect its items and return a list"
        )
    if not callable(value):
        raise CaptureError(f"{refusals.kind_of(value)} is no function: give a function or a class")
    if not isinstance(function, FunctionType) and find_import(value, _name(value)) is None:
        raise CaptureError(
            f"{refusals.kind_of(value)} can be called, but is no function: "
            "write a function with def that makes and calls it"
        )
    is_generator = inspect.isgeneratorfunction(function) and not _is_context_manager(value)
    return "generator" if is_generator else "function", inspect.iscoroutinefunction(function)


def _is_context_manager(value: Any) -> bool:
    files = [getattr(getattr(link, "__code__", None), "co_filename", None) for link in chain(value)[:-1]]
    return contextlib.contextmanager.__code__.co_filename in files
