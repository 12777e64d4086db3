"""Functions and classes that were captured elsewhere, made again in this interpreter.

A `spec` is what `gpulayer.source.capture` makes of a function: either the name of a module to import, or pieces of
source that are executed in a module of their own. Nothing but the standard library is needed: this file is loaded by
its path, in the interpreter of a job (Python 3.9 or newer), and imports nothing of ours.
"""

from __future__ import annotations
import __future__

import importlib
import importlib.util
import linecache
import os
import sys
import types
import warnings
from typing import Any

__all__ = ["LoadError", "load"]

MAIN = "__gpulayer_main__"
"""What names of modules of sessions begin with here: a block for `__main__` does not run."""

_FACTORY = "gpulayer_closure.<locals>."
_MISSING = object()


class LoadError(ImportError):
    """A function or class that can't be made here. Its text is one line: what, where, what to do."""


def load(spec: dict[str, Any], data: dict[str, Any], bundle_folder: str | None) -> Any:
    """The function or class that a capture stands for.

    Args:
        spec: `Captured.spec()`.
        data: the values of its data, decoded, by key.
        bundle_folder: absolute; where the bundle lies, or None where none has come along.

    Raises:
        LoadError: it is not where the spec says.
        Exception: whatever the module, or a piece of source, raises when it is executed.
    """
    if "gpulayer" not in sys.modules and not any(isinstance(finder, _Gpulayer) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Gpulayer())
    _extend_path(spec, bundle_folder)
    if spec["module"]:
        return _of_module(spec)
    return _of_pieces(spec, data, bundle_folder)


def _extend_path(spec: dict[str, Any], bundle_folder: str | None) -> None:
    if not spec["sys_path"]:
        return
    if bundle_folder is None:
        raise LoadError(
            f"{spec['name']} needs the files of its project, and none have come along: send them with the call"
        )
    wanted = [os.path.normpath(os.path.join(bundle_folder, folder)) for folder in spec["sys_path"]]
    if sys.path[: len(wanted)] != wanted:
        sys.path[:] = [*wanted, *(folder for folder in sys.path if folder not in wanted)]
        importlib.invalidate_caches()


# ----------------------------------------------------------------------------------------------------- by their module


def _of_module(spec: dict[str, Any]) -> Any:
    value: Any = importlib.import_module(spec["module"])
    for step in spec["qualname"].split("."):
        value = getattr(value, step, _MISSING)
        if value is _MISSING:
            where = getattr(sys.modules[spec["module"]], "__file__", None) or spec["module"]
            raise LoadError(
                f"module {spec['module']} ({where}) has no {spec['qualname']} here: another version of it is installed"
            )
    return _plain(value)


def _plain(value: Any) -> Any:
    """What a remote function wraps: some are made by other ways than `gl.remote` of `_Gpulayer`."""
    if isinstance(value, types.FunctionType):  # functools.wraps copies the mark
        return value
    try:
        names = object.__getattribute__(value, "__dict__")  # getattr may run anything
    except AttributeError:
        return value
    return names.get("__gpulayer_function__", value)


class _Gpulayer:
    """Finds and loads `gpulayer` for the user's modules, with a `gl.remote` that leaves functions as they are.

    What is decorated is called here, where a call already runs, and need not have gpulayer installed.
    """

    def __init__(self) -> None:
        self._real: Any = None

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The spec of `gpulayer`, asked for once; None for all other modules."""
        if name != "gpulayer":
            return None
        sys.meta_path.remove(self)
        spec: Any = importlib.util.find_spec(name)
        if spec is None:
            loader: Any = self
            return importlib.util.spec_from_loader(name, loader)
        self._real, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: Any) -> Any:
        """The module as its own loader makes it."""
        return None if self._real is None else self._real.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Execute the real one, if there is one."""
        if self._real is None:
            module.__getattr__ = _not_here
        else:
            module.__spec__.loader = module.__loader__ = self._real
            self._real.exec_module(module)
        module.remote = _remote


def _remote(function: Any = None, **_options: Any) -> Any:
    """`gl.remote` where a call already runs."""
    return (lambda function: function) if function is None else function


def _not_here(name: str) -> Any:
    raise AttributeError(f"gpulayer.{name} needs gpulayer, which is not installed in this environment: add it there")


# ------------------------------------------------------------------------------------------------------ by their source


def _of_pieces(spec: dict[str, Any], data: dict[str, Any], bundle_folder: str | None) -> Any:
    name = f"{MAIN}{spec['digest'][:12]}"
    module = types.ModuleType(name)
    if spec["file"] and bundle_folder is not None:
        module.__file__ = os.path.normpath(os.path.join(bundle_folder, spec["file"]))
    sys.modules[name] = module  # dataclasses and enums look for the module of their class
    try:
        return _Making(spec, data, vars(module)).object()
    except BaseException:
        del sys.modules[name]
        raise


class _Making:
    """One module in the making."""

    def __init__(self, spec: dict[str, Any], data: dict[str, Any], names: dict[str, Any]) -> None:
        self._spec = spec
        self._data = data
        self._names = names
        self._slots: dict[str, Any] = {}

    def object(self) -> Any:
        """Execute all pieces; the function or class that was asked for."""
        pieces = self._spec["pieces"]
        _show(pieces)
        self._names.update({key: value for key, value in self._data.items() if key.isidentifier()})
        for piece in pieces:
            self._execute(piece)
        for piece in pieces:
            for name, reference in piece["attributes"]:
                setattr(self._slots[piece["slot"]], name, self._value(reference))
        return self._slots[self._spec["qualname"]]

    def _execute(self, piece: dict[str, Any]) -> None:
        flags = 0
        for feature in piece["future"]:
            flags |= getattr(__future__, feature).compiler_flag
        text = "\n" * (piece["first_line"] - 1) + piece["text"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they were shown where it was defined
            code = compile(text, piece["filename"], "exec", flags=flags, dont_inherit=True)
        names, defines = self._names, piece["defines"]
        given = {name: self._value(reference) for name, reference in piece["given"]}
        before = {name: names.get(name, _MISSING) for name in (*given, *([defines] if defines else []))}
        names.update(given)
        exec(code, names)
        made: Any = names.get(defines)
        if piece["closure"] is not None:
            made = _renamed(made(*[self._value(reference) for _, reference in piece["closure"]]))
        for name, value in before.items():
            if value is _MISSING:
                names.pop(name, None)
            else:
                names[name] = value
        if not piece["slot"]:
            for name in piece["names"]:
                names[name] = _plain(names[name])
            return
        self._slots[piece["slot"]] = made
        for name in piece["names"]:
            names[name] = made

    def _value(self, reference: str) -> Any:
        kind, _, key = reference.partition(":")
        return self._data[key] if kind == "data" else self._slots[key]


def _show(pieces: list[dict[str, Any]]) -> None:
    """Let tracebacks show the lines of the pieces, each at its place in the file that it comes from."""
    files: dict[str, dict[int, str]] = {}
    for piece in pieces:
        numbered = list(enumerate(piece["text"].split("\n"), piece["first_line"]))
        if piece["closure"] is not None and len(numbered) > 1:
            numbered = numbered[1:-1]  # the factory's own
        elif piece["text"].startswith("if True:\n"):
            numbered = numbered[1:]
        files.setdefault(piece["filename"], {}).update(numbered)
    for filename, lines in files.items():
        known = linecache.cache.get(filename)
        texts = list(known[2]) if known is not None and len(known) == 4 and known[1] is None else []
        texts += ["\n"] * (max(lines) - len(texts))
        for number, line in lines.items():
            texts[number - 1] = f"{line}\n"
        linecache.cache[filename] = (sum(map(len, texts)), None, texts, filename)  # no time: never looked for on disk


def _renamed(made: Any) -> Any:
    """A function or class without the name of its factory in its own."""
    values = [made, *vars(made).values()] if isinstance(made, type) else [made]
    for value in values:
        name = getattr(value, "__qualname__", None)
        if isinstance(name, str) and name.startswith(_FACTORY):
            value.__qualname__ = name[len(_FACTORY) :]
    return made
