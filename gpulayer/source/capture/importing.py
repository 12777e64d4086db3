"""Imports that give, over there, what a name means here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from gpulayer.source.capture.modules import SESSIONS, attribute, import_name, place_of, public_place
from gpulayer.source.capture.unwrapping import plain

__all__ = ["Imported", "find_import", "importable", "submodules"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Imported:
    """A module, or something in one."""

    module: str
    qualname: str  # '' for the module itself
    folder: str | None  # that has to be on sys.path there

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.module}.{self.qualname}" if self.qualname else self.module

    def statement(self, name: str) -> str:
        """The statement that binds it to `name`."""
        if not self.qualname:
            return f"import {name}" if name == self.module else f"import {self.module} as {name}"
        if "." in self.qualname:
            return f"{name} = __import__('importlib').import_module({self.module!r}).{self.qualname}"
        return f"from {self.module} import {self.qualname}" + (f" as {name}" if name != self.qualname else "")


def find_import(value: Any, name: str, *, anything: bool = False) -> Imported | None:
    """The import that gives a module, a function or a class; None if there is none.

    Args:
        value: what has to come out, the very object.
        name: what it is called here: it may have that name in its module too.
        anything: look for objects of other kinds too, which are found only by their name.
    """
    if isinstance(value, ModuleType):
        found = import_name(value)
        return None if found is None else _at(found, "")
    own = importable(value)
    names = tuple({name, own[1] if own else str(getattr(value, "__name__", name))})
    if own is not None and _is_public(own[0]):
        return _at(_shortest(value, *own), own[1])
    if own is None and not anything and (not callable(value) or getattr(value, "__module__", None) in SESSIONS):
        return None
    place = public_place(value, names)
    if place is not None and own is not None and place[0].partition(".")[0] != own[0].partition(".")[0]:
        place = None  # some other package has it too
    place = place or own
    return None if place is None else _at(*place)


def importable(value: Any) -> tuple[str, str] | None:
    """The module and the attribute path in it that a function or class says it has, if it is there."""
    module = getattr(value, "__module__", None)
    qualname = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None
    if plain(attribute(module, qualname)) is not value:
        return None
    return ("os.path" if module == os.path.__name__ else module), qualname


def submodules(name: str, module: ModuleType, steps: str) -> Iterator[str]:
    """Statements that import the submodules on the way along attributes of a module: `xml.dom.minidom`."""
    path = import_name(module)
    for step in steps.split("."):
        below = module.__dict__.get(step)
        if path is None or not isinstance(below, ModuleType) or import_name(below) != f"{path}.{step}":
            return
        module, path = below, f"{path}.{step}"
        yield f"import {path}" if path.partition(".")[0] == name else f"__import__({path!r})"


def _at(module: str, qualname: str) -> Imported | None:
    place = place_of(sys.modules[module])
    return None if place is None else Imported(module=module, qualname=qualname, folder=place.folder)


def _shortest(value: Any, module: str, qualname: str) -> str:
    """The package above a module that gives the same: `pandas` for `pandas.core.frame`."""
    steps = module.split(".")
    for count in range(1, len(steps)):
        above = ".".join(steps[:count])
        if plain(attribute(above, qualname)) is value:
            return above
    return module


def _is_public(module: str) -> bool:
    return not any(step.startswith("_") for step in module.split("."))
