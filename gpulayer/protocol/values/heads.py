"""Heads to bytes and back: by the msgpack library where there is one, else by `plainpack`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from . import plainpack
from .errors import ValueDamaged

Pairs = list[tuple[Any, Any]]


def pack(tree: Any) -> bytes:
    """A tree as bytes.

    Raises:
        ValueError, TypeError, OverflowError: something that msgpack has no place for.
    """
    library = _library()
    return plainpack.pack(tree) if library is None else library.packb(tree, use_bin_type=True, strict_types=True)


def unpack(data: bytes | memoryview, on_map: Callable[[Pairs], Any]) -> Any:
    """The tree of `data`; each map is given to `on_map` as its pairs, the inner ones first.

    Raises:
        ValueError: bytes that are no head. The library's own errors pass through.
    """
    library = _library()
    if library is None:
        return plainpack.unpack(data, on_map)
    timestamp = library.Timestamp

    def on_list(items: list[Any]) -> list[Any]:
        if timestamp in set(map(type, items)):  # the library makes these by itself, whatever the hook says
            raise ValueDamaged("the head holds a msgpack timestamp, which values do not use")
        return items

    return library.unpackb(
        data, strict_map_key=False, object_pairs_hook=on_map, list_hook=on_list, ext_hook=_no_extensions
    )


def _no_extensions(code: int, _data: bytes) -> Any:
    raise ValueDamaged(f"the head holds the msgpack extension {code}, which values do not use")


def _library() -> Any:
    try:
        return importlib.import_module("msgpack")
    except ImportError:
        return None
