"""Of which classes an exception is here that was raised elsewhere: known by their names, nothing is imported for it."""

from __future__ import annotations

import builtins
import sys
from typing import Any

_OWN_WAYS: tuple[type[BaseException], ...] = (StopIteration, StopAsyncIteration)
if hasattr(builtins, "BaseExceptionGroup"):
    _OWN_WAYS += (getattr(builtins, "BaseExceptionGroup"),)  # noqa: B009 Python 3.10 has none

_RUN_BY_MAKING = frozenset({"__new__", "__init_subclass__", "__setattr__", "__set_name__"})


def class_here(name: str, base: str) -> type[Exception] | None:
    """What programs catch it as: the class of this name, of this session or a module that is loaded here; else the
    builtin one. `base`: the name of the builtin class that it is, or derives from.
    """
    return _builtin(name) or _of_module(name) or _builtin(base)


def _builtin(name: str) -> type[Exception] | None:
    """The builtin class of this name that can be made of a text alone, or one that it derives from."""
    found = getattr(builtins, name.removeprefix("builtins."), None)
    if not isinstance(found, type) or not issubclass(found, Exception) or found is Exception:
        return None
    if issubclass(found, UnicodeError):
        return UnicodeError if found is UnicodeError else ValueError
    return None if issubclass(found, _OWN_WAYS) else found


def _of_module(name: str) -> type[Exception] | None:
    """The class of this name, where a class of ours can derive from it without any code of its own being run."""
    module, _, qualname = name.rpartition(".")
    while module and module not in sys.modules:  # a class in a class
        module, _, outer = module.rpartition(".")
        qualname = f"{outer}.{qualname}"
    found: Any = sys.modules.get(module or "__main__")
    for step in qualname.split("."):
        found = vars(found).get(step) if hasattr(found, "__dict__") else None
    if not isinstance(found, type) or not issubclass(found, Exception) or issubclass(found, (*_OWN_WAYS, UnicodeError)):
        return None
    own = [kind for kind in found.__mro__ if kind.__module__ != "builtins"]
    if type(found) is not type or any(_RUN_BY_MAKING & vars(kind).keys() for kind in own):
        return None
    return found
