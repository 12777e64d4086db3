"""Values that are no plain data, and that a short expression makes anew: paths, patterns, members of enums, …"""

from __future__ import annotations

import dataclasses
import enum
import pathlib
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Rebuilt", "rebuilt"]

_GIVEN = "gpulayer_given_{}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Rebuilt:
    """How to make a value anew."""

    expression: str
    given: tuple[tuple[str, Any], ...] = ()  # names in the expression, and values that have to travel for them


def rebuilt(value: Any) -> Rebuilt | None:
    """How to make a value anew; None if it is not of such a kind."""
    kind = type(value)
    if kind is object:
        return Rebuilt(expression="object()")  # a mark: it is compared by identity
    if isinstance(value, enum.Enum):
        name = value.name
        return None if name is None else _call("{0}[{1}]", kind, name)
    if isinstance(value, type):
        return _named_tuple(value) if issubclass(value, tuple) else None
    if dataclasses.is_dataclass(value):
        return _frozen(value)
    name = "numpy.dtype" if kind.__module__ == "numpy.dtypes" else f"{kind.__module__}.{kind.__qualname__}"
    make = _BY_TYPE.get(name)
    if make is not None:
        return make(value)
    if isinstance(value, (types.GenericAlias, types.UnionType)) or kind.__module__ == "typing":
        return _alias(value)
    return None


def holder(value: tuple[Any, ...]) -> Rebuilt | None:
    """How to make a tuple, or a named one, of things that are no plain data."""
    items = "".join(f"{{{index + 1}}}, " for index in range(len(value)))
    if type(value) is tuple:
        return _call(f"{{0}}(({items}))", tuple, *value)
    fields = getattr(value, "_fields", None)
    return _call(f"{{0}}({items})", type(value), *value) if isinstance(fields, tuple) else None


def _frozen(value: Any) -> Rebuilt | None:
    """An object of a frozen dataclass: nothing changes in it that would have to be noticed."""
    kind = type(value)
    fields = dataclasses.fields(value)
    makes_itself = getattr(getattr(kind.__init__, "__code__", None), "co_filename", "") == "<string>"
    if not kind.__dataclass_params__.frozen or not makes_itself or hasattr(kind, "__post_init__"):
        return None
    if not all(field.init for field in fields):
        return None
    items = ", ".join(f"{field.name}={{{index + 1}}}" for index, field in enumerate(fields))
    return _call(f"{{0}}({items})", kind, *(getattr(value, field.name) for field in fields))


def _call(template: str, *values: Any) -> Rebuilt:
    names = [_GIVEN.format(index) for index in range(len(values))]
    return Rebuilt(expression=template.format(*names), given=tuple(zip(names, values, strict=True)))


def _imported(module: str, template: str) -> Callable[[Any], Rebuilt]:
    return lambda value: Rebuilt(expression=f"__import__({module!r}).{template.format(str(value))}")


def _path(value: pathlib.PurePath) -> Rebuilt:
    name = type(value).__name__.replace("Posix", "").replace("Windows", "")  # that of the system there
    return Rebuilt(expression=f"__import__('pathlib').{name}({value.as_posix()!r})")


def _pattern(value: re.Pattern[Any]) -> Rebuilt:
    return Rebuilt(expression=f"__import__('re').compile({value.pattern!r}, {value.flags})")


def _logger(value: Any) -> Rebuilt:
    return Rebuilt(expression=f"__import__('logging').getLogger({value.name!r})")


def _type_variable(value: Any) -> Rebuilt | None:
    if value.__constraints__ or value.__bound__ is not None:
        return None
    ways = f"covariant={value.__covariant__}, contravariant={value.__contravariant__}"
    return Rebuilt(expression=f"__import__('typing').TypeVar({value.__name__!r}, {ways})")


def _dtype(value: Any) -> Rebuilt | None:
    simple = value.fields is None and value.subdtype is None and not value.hasobject
    return Rebuilt(expression=f"__import__('numpy').dtype({value.str!r})") if simple else None


def _range(value: range) -> Rebuilt:
    return Rebuilt(expression=f"range({value.start}, {value.stop}, {value.step})")


def _alias(value: Any) -> Rebuilt | None:
    origin = typing.get_origin(value)
    arguments = tuple(None if each is types.NoneType else each for each in typing.get_args(value))  # has no name in 3.9
    if isinstance(value, types.UnionType) or origin is typing.Union:
        return _call("__import__('typing').Union[{0}]", *arguments[:1]) if len(arguments) == 1 else _union(arguments)
    if isinstance(value, types.GenericAlias):
        items = [f"{{{index + 1}}}" for index in range(len(arguments))]
        return _call("{0}[" + ", ".join(items) + ("," if len(items) == 1 else "") + "]", origin, *arguments)
    return None


def _union(arguments: tuple[Any, ...]) -> Rebuilt:
    items = [f"{{{index}}}" for index in range(len(arguments))]
    return _call("__import__('typing').Union[" + ", ".join(items) + "]", *arguments)


def _named_tuple(cls: type) -> Rebuilt | None:
    """A class that `collections.namedtuple` made: it has no class statement."""
    fields = getattr(cls, "_fields", None)
    if cls.__bases__ != (tuple,) or not isinstance(fields, tuple) or "__annotations__" in vars(cls):
        return None
    defaults = getattr(cls, "_field_defaults", {})
    template = f"__import__('collections').namedtuple({cls.__name__!r}, {fields!r}, defaults="
    if not defaults:
        return Rebuilt(expression=f"{template}())")
    return _call(template + "{0})", tuple(defaults.values()))


_BY_TYPE: dict[str, Callable[[Any], Rebuilt | None]] = {
    "builtins.ellipsis": lambda value: Rebuilt(expression="..."),
    "builtins.range": _range,
    "datetime.timezone": lambda value: _call("__import__('datetime').timezone({0})", value.utcoffset(None)),
    "decimal.Decimal": _imported("decimal", "Decimal('{}')"),
    "fractions.Fraction": _imported("fractions", "Fraction('{}')"),
    "logging.Logger": _logger,
    "logging.RootLogger": _logger,
    "numpy.dtype": _dtype,
    "pathlib.PosixPath": _path,
    "pathlib.PurePosixPath": _path,
    "pathlib.PureWindowsPath": _path,
    "pathlib.WindowsPath": _path,
    "pathlib._local.PosixPath": _path,
    "pathlib._local.PurePosixPath": _path,
    "pathlib._local.PureWindowsPath": _path,
    "pathlib._local.WindowsPath": _path,
    "re.Pattern": _pattern,
    "torch.device": _imported("torch", "device('{}')"),
    "typing.NewType": lambda value: _call(
        f"__import__('typing').NewType({value.__name__!r}, {{0}})", value.__supertype__
    ),
    "typing.TypeVar": _type_variable,
    "uuid.UUID": _imported("uuid", "UUID('{}')"),
}
