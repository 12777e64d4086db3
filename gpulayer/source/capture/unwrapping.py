"""Through decorators to the function that a def statement made."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

__all__ = ["chain", "inner_function", "lost_there", "plain"]

_MOST_WRAPPERS = 100


def plain(value: Any) -> Any:
    """What one of our own remote functions or classes wraps; anything else as it is."""
    for _ in range(_MOST_WRAPPERS):
        if isinstance(value, FunctionType) or not _marks(value):  # functools.wraps copies marks onto functions
            return value
        value = value.__gpulayer_function__
    return value


def _marks(value: Any) -> bool:
    """Whether it has our mark: asked without calling anything of a stranger's."""
    if any("__gpulayer_function__" in vars(kind) for kind in type(value).__mro__):
        return True
    try:
        return "__gpulayer_function__" in object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False


def lost_there(value: Any, attribute: str) -> bool:
    """Whether it is one of ours, and has an attribute that it has not where it runs, since what it wraps has none."""
    if isinstance(value, FunctionType) or not _marks(value):
        return False
    return attribute in dir(type(value)) and not hasattr(plain(value), attribute)


def chain(value: Any) -> list[Any]:
    """A decorated object, what it wraps, and so on down, by `__wrapped__`."""
    links = [value]
    while len(links) < _MOST_WRAPPERS:
        try:
            below = vars(links[-1]).get("__wrapped__")
        except TypeError:  # has no __dict__
            below = None
        if below is None:
            return links
        links.append(plain(below))
    return links


def inner_function(value: Any) -> FunctionType | None:
    """The function that a def statement made, of a function, a method's descriptor or a wrapper around one."""
    if isinstance(value, (staticmethod, classmethod)):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, functools.cached_property):
        value = value.func
    last = chain(plain(value))[-1]
    return last if isinstance(last, FunctionType) else None
