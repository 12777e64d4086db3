"""Checks of what decoded heads hold."""

from __future__ import annotations

from typing import Any

from .errors import ValueDamaged


def fields(value: Any, *kinds: type | None) -> list[Any]:
    """The fields of a list whose length and exact types are known; None stands for any type.

    Raises:
        ValueDamaged: it is something else.
    """
    items = as_list(value)
    if len(items) != len(kinds):
        raise ValueDamaged(f"{len(items)} fields where {len(kinds)} belong")
    for item, kind in zip(items, kinds):  # noqa: B905 Python 3.9
        if kind is not None and type(item) is not kind:
            raise ValueDamaged(f"a {type(item).__name__} where a {kind.__name__} belongs")
    return items


def as_list(value: Any) -> list[Any]:
    """The value, which must be a list."""
    return exactly(value, list)


def exactly(value: Any, kind: type) -> Any:
    """The value, which must be of this exact type.

    Raises:
        ValueDamaged: it is something else.
    """
    if type(value) is not kind:
        raise ValueDamaged(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value
