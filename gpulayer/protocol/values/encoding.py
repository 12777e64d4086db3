"""Values to parts."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from . import heads, moments, tags
from .advice import refusal
from .errors import ValueRefused, one_line
from .paths import short

if TYPE_CHECKING:
    Part = bytes | memoryview[int]
    Writer = Callable[["Encoder", Any], Any]

_AS_THEY_ARE = frozenset({type(None), bool, float})
_LEAST, _MOST = -(1 << 63), (1 << 64) - 1  # what msgpack's integers hold


def encode(value: object, name: str = "value") -> list[Part]:
    """Make parts of a value: the head, and each large buffer of it.

    Args:
        value: of the types that the package's docstring lists.
        name: what errors call the root: `x`, `args`.

    Raises:
        ValueRefused: the value, or something in it, does not travel.
    """
    encoder = Encoder()
    try:
        tree = encoder.tree(value)
        sizes = [memoryview(part).nbytes for part in encoder.parts[1:]]
        encoder.parts[0] = heads.pack([tags.VERSION, sizes, tree])
    except ValueRefused as refused:
        raise refused.at(name) from refused.__cause__
    except RecursionError:
        problem = "is nested too deep for what is left of the interpreter's stack: make it flatter"
        raise ValueRefused(problem).at(name) from None
    except (ValueError, TypeError, OverflowError) as error:  # 4 GiB of text in one str, or changed by another thread
        problem = f"could not be packed ({one_line(error)}): is it changed while it is sent, or larger than 4 GiB?"
        raise ValueRefused(problem).at(name) from error
    return encoder.parts


class Encoder:
    """One value on its way into parts; owns the parts until `encode` returns them."""

    def __init__(self) -> None:
        self.parts: list[Part] = [b""]  # the first is the head's place
        self._open: set[int] = set()  # ids of the containers around the value at hand
        self._hashed = 0  # how many of them are keys or sets

    def tree(self, value: object) -> Any:
        """What stands for the value in the head."""
        kind = type(value)
        if kind in _AS_THEY_ARE:
            return value
        writer = _WRITERS.get(kind) or _library_writer(kind)
        if writer is None:
            raise refusal(value)
        return writer(self, value)

    def below(self, value: Any, before: str, after: str = "") -> Any:
        """`tree` of something that stands in the value at hand, with its step for the path."""
        try:
            return self.tree(value)
        except ValueRefused as refused:
            raise refused.below(before, after) from refused.__cause__

    def buffer(self, data: Part) -> Part | int:
        """A buffer's field in the head: small ones stand there, large ones become a part, uncopied."""
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if size < tags.LARGE_BYTES:
            return bytes(data)
        self.parts.append(data)
        return len(self.parts) - 1

    def items(self, items: list[Any], before: str = "", after: str = "[{}]") -> list[Any]:
        """The trees of a container's items; the container itself is opened by `open`."""
        if _flat(items):
            return items
        trees: list[Any] = []
        try:
            for item in items:
                trees.append(self.tree(item))
        except ValueRefused as refused:
            raise refused.below(before, after.format(len(trees))) from refused.__cause__
        return trees

    def values(self, keys: list[Any], values: list[Any]) -> list[Any]:
        """The trees of a dict's values; the dict itself is opened by `open`."""
        if _flat(values):
            return values
        trees: list[Any] = []
        try:
            for value in values:
                trees.append(self.tree(value))
        except ValueRefused as refused:
            raise refused.below("", f"[{short(keys[len(trees)])}]") from refused.__cause__
        return trees

    def open(self, container: object) -> None:
        """Go into a container, unless it is too deep or stands in itself."""
        identity = id(container)
        if identity in self._open:
            raise ValueRefused("contains itself: values are trees, send the parts that you need")
        if len(self._open) >= tags.MAX_DEPTH:
            raise ValueRefused(f"is nested more than {tags.MAX_DEPTH} deep: make the value flatter")
        self._open.add(identity)

    def close(self, container: object) -> None:
        """Leave a container."""
        self._open.discard(id(container))

    def hashed(self, items: list[Any]) -> list[Any]:
        """The trees of keys or of a set's elements: what is hashed by its identity cannot be one of them."""
        self._hashed += 1
        trees = self.items(items, "list(", ")[{}]")
        self._hashed -= 1
        return trees

    def key(self, value: Any) -> Any:
        """The tree of one value that is hashed."""
        self._hashed += 1
        tree = self.tree(value)
        self._hashed -= 1
        return tree

    def refuse_as_key(self, value: object) -> None:
        """Refuse a value that another process could not find again under its hash."""
        if self._hashed:
            raise refusal(
                value, "keys and elements of sets are compared by value, this type is not: use a str or an int"
            )


def _flat(items: Collection[Any]) -> bool:
    """Whether msgpack can take the items as they stand: decided without a step of Python per item."""
    kinds = set(map(type, items))
    if kinds <= _AS_THEY_ARE:
        return True
    if kinds == {int}:
        return min(items) >= _LEAST and max(items) <= _MOST
    return kinds == {str} and all(map(str.isascii, items))


def _library_writer(kind: type[Any]) -> Writer | None:
    """The writer of a type of NumPy, torch, pyarrow or pandas; these are looked at only where they are loaded."""
    family = str(kind.__module__).partition(".")[0]
    if family not in ("numpy", "torch", "pyarrow", "pandas") or family not in sys.modules:
        return None
    if family == "numpy":
        from .arrays import writer
    elif family == "torch":
        from .tensors import writer
    elif family == "pyarrow":
        from .tables import writer
    else:
        from .frames import writer
    return writer(kind)


# ------------------------------------------------------------------------------------------------------ built-in types


def _write_int(_encoder: Encoder, value: int) -> Any:
    if _LEAST <= value <= _MOST:
        return value
    return {tags.INT: value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)}


def _write_text(_encoder: Encoder, value: str) -> Any:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return {tags.TEXT: value.encode("utf-8", "surrogatepass")}
    return value


def _write_bytes(encoder: Encoder, value: bytes) -> Any:
    field = encoder.buffer(value)
    return {tags.BYTES: field} if isinstance(field, int) else field


def _write_bytearray(encoder: Encoder, value: bytearray) -> Any:
    return {tags.BYTEARRAY: encoder.buffer(memoryview(value))}


def _write_complex(_encoder: Encoder, value: complex) -> Any:
    return {tags.COMPLEX: [value.real, value.imag]}


# Few frames per level: a hundred levels fit the stack that a notebook leaves.


def _write_list(encoder: Encoder, value: list[Any]) -> Any:
    encoder.open(value)
    trees = encoder.items(value)
    encoder.close(value)
    return trees


def _write_tuple(encoder: Encoder, value: tuple[Any, ...]) -> Any:
    encoder.open(value)
    trees = encoder.items(list(value))
    encoder.close(value)
    return {tags.TUPLE: trees}


def _write_set(encoder: Encoder, value: set[Any]) -> Any:
    encoder.open(value)
    trees = encoder.hashed(list(value))
    encoder.close(value)
    return {tags.SET: trees}


def _write_frozenset(encoder: Encoder, value: frozenset[Any]) -> Any:
    encoder.open(value)
    trees = encoder.hashed(list(value))
    encoder.close(value)
    return {tags.FROZENSET: trees}


def _write_dict(encoder: Encoder, value: dict[Any, Any]) -> Any:
    encoder.open(value)
    keys = list(value)
    trees = [encoder.hashed(keys), encoder.values(keys, list(value.values()))]
    encoder.close(value)
    return {tags.DICT: trees}


_WRITERS: dict[type, Writer] = {
    int: _write_int,
    str: _write_text,
    bytes: _write_bytes,
    bytearray: _write_bytearray,
    complex: _write_complex,
    list: _write_list,
    tuple: _write_tuple,
    set: _write_set,
    frozenset: _write_frozenset,
    dict: _write_dict,
    datetime.date: moments.write_date,
    datetime.time: moments.write_time,
    datetime.datetime: moments.write_datetime,
    datetime.timedelta: moments.write_timedelta,
}
