"""Whether a function takes these arguments: told here, before anything is sent."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from types import FunctionType
from typing import Any

from gpulayer.functions.options import CallRefused
from gpulayer.tables import cut

_SHOWN_LETTERS = 120


class Signature:
    """What a function takes. What can't be told without calling it takes everything here: it is told there."""

    def __init__(self, name: str, function: Any, *, bound: bool = False):
        """`name`: as people know it; `bound`: its first parameter is an object, which they do not give."""
        own = isinstance(function, FunctionType) and "__signature__" not in vars(function)
        self._function: FunctionType | None = function if own else None
        self._name = name
        self._bound = int(bound)

    @classmethod
    def of_class(cls, name: str, made: type) -> Signature:
        """Of what makes its objects."""
        plain = type(made).__call__ is type.__call__ and made.__new__ is object.__new__
        return cls(name, getattr(made, "__init__", None) if plain else None, bound=True)

    @classmethod
    def of_method(cls, name: str, made: type, method: str) -> Signature:
        """Of a method of its objects."""
        found = inspect.getattr_static(made, method, None)
        if isinstance(found, (staticmethod, classmethod)):
            return cls(name, found.__func__, bound=isinstance(found, classmethod))
        return cls(name, found, bound=True)

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], call: int | None = None) -> None:
        """Raises `CallRefused`, a TypeError, where these are not what it takes; `call`: its number in a map."""
        function = self._function
        if function is None:
            return
        code = function.__code__
        if not kwargs and not code.co_kwonlyargcount and not code.co_flags & inspect.CO_VARARGS:
            most = code.co_argcount - self._bound
            if most - len(function.__defaults__ or ()) <= len(args) <= most:
                return
        signature = inspect.signature(function, follow_wrapped=False)
        try:
            signature.bind(*(None,) * self._bound, *args, **kwargs)
        except TypeError as error:
            where = "" if call is None else f" (call {call})"
            raise CallRefused(f"{self._name}{where}: {error}; it is {self._shown(signature)}") from None

    def _shown(self, signature: inspect.Signature) -> str:
        given = list(signature.parameters.values())[self._bound :]
        bare = [each.replace(annotation=inspect.Parameter.empty) for each in given]
        shown = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
        return cut(f"{self._name}{shown}", _SHOWN_LETTERS)
