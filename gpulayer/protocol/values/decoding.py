"""Parts to values. The parts are not trusted: every length, type and number is checked, and nothing is executed."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import heads, moments, tags
from .errors import LibraryMissing, ValueDamaged, one_line
from .fields import as_list, exactly, fields

if TYPE_CHECKING:
    from typing import TypeAlias

    Buffer: TypeAlias = bytes | bytearray | memoryview[int]
    Reader: TypeAlias = Callable[["Decoder", Any], Any]


def decode(parts: Sequence[Buffer]) -> Any:
    """The value of the parts that `encode` made.

    Args:
        parts: in their order. Writable ones (bytearray, writable memoryview) may become the memory of the value: leave
            them alone afterwards.

    Raises:
        ValueDamaged: no value can be made of these parts. `LibraryMissing`, a kind of it, names what to install.
    """
    decoder = Decoder(parts)
    try:
        return decoder.value()
    except ValueDamaged:
        raise
    except Exception as error:  # whatever a constructor or a library says to nonsense
        raise ValueDamaged(f"no value can be made of these parts: {one_line(error)}") from error


class Decoder:
    """One value on its way out of its parts."""

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self._parts = parts
        self._used: set[int] = set()

    def value(self) -> Any:
        """Read the head and all that it needs."""
        if not self._parts:
            raise ValueDamaged("a value has at least one part")
        head = heads.unpack(_flat_view(self._parts[0]), self._on_map)
        version = as_list(head)[:1]
        if version != [tags.VERSION] or type(version[0]) is not int:
            raise ValueDamaged(f"values of version {tags.VERSION} are read here: update gpulayer on the older side")
        _, sizes, tree = fields(head, int, list, None)
        if sizes != [memoryview(part).nbytes for part in self._parts[1:]]:
            raise ValueDamaged("parts of other sizes than the head says")
        if len(self._used) != len(self._parts) - 1:
            raise ValueDamaged("parts that nothing in the head mentions")
        return tree

    def buffer(self, field: Any) -> Buffer:
        """What a buffer's field stands for: the bytes themselves, or a part as it was given."""
        if type(field) is bytes:
            return field
        number: int = exactly(field, int)
        if not 0 < number < len(self._parts):
            raise ValueDamaged(f"the head mentions part {number} of {len(self._parts)}")
        if number in self._used:
            raise ValueDamaged(f"the head mentions part {number} twice")
        self._used.add(number)
        part = self._parts[number]
        return part if isinstance(part, (bytes, bytearray)) else _flat_view(part)

    def _on_map(self, pairs: list[tuple[Any, Any]]) -> Any:
        if len(pairs) != 1 or type(pairs[0][0]) is not int:
            raise ValueDamaged("a map in the head that is no tag")
        tag, field = pairs[0]
        reader = _READERS.get(tag) or _library_reader(tag)
        return reader(self, field)


def library(name: str) -> Any:
    """A library that a value needs; only the names in this package's code come here, never one out of the parts.

    Raises:
        LibraryMissing: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise LibraryMissing(f"the value needs {name}, which this interpreter lacks: install {name} there") from error


def _flat_view(part: Buffer) -> memoryview[int]:
    view = memoryview(part)
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else view.cast("B")


def _library_reader(tag: int) -> Reader:
    if tag in (tags.NDARRAY, tags.SCALAR, tags.SCALAR_TEXT):
        from .arrays import READERS
    elif tag == tags.TENSOR:
        from .tensors import READERS
    elif tag in (tags.TABLE, tags.BATCH):
        from .tables import READERS
    elif tag in (tags.FRAME, tags.SERIES, tags.INDEX):
        from .frames import READERS
    else:
        raise ValueDamaged(f"a value of the unknown kind {tag}: update gpulayer on this side")
    return READERS[tag]


# ------------------------------------------------------------------------------------------------------ built-in types


def _read_int(_decoder: Decoder, field: Any) -> int:
    return int.from_bytes(exactly(field, bytes), "little", signed=True)


def _read_text(_decoder: Decoder, field: Any) -> str:
    return exactly(field, bytes).decode("utf-8", "surrogatepass")


def _read_bytes(decoder: Decoder, field: Any) -> bytes:
    return bytes(decoder.buffer(field))


def _read_bytearray(decoder: Decoder, field: Any) -> bytearray:
    data = decoder.buffer(field)
    return data if type(data) is bytearray else bytearray(data)


def _read_complex(_decoder: Decoder, field: Any) -> complex:
    return complex(*fields(field, float, float))


def _read_tuple(_decoder: Decoder, field: Any) -> tuple[Any, ...]:
    return tuple(as_list(field))


def _read_set(_decoder: Decoder, field: Any) -> set[Any]:
    items = as_list(field)
    made = set(items)
    if len(made) != len(items):
        raise ValueDamaged("a set with an element twice")
    return made


def _read_frozenset(decoder: Decoder, field: Any) -> frozenset[Any]:
    return frozenset(_read_set(decoder, field))


def _read_dict(_decoder: Decoder, field: Any) -> dict[Any, Any]:
    keys, values = fields(field, list, list)
    if len(keys) != len(values):
        raise ValueDamaged("a dict with more keys than values, or fewer")
    made = dict(zip(keys, values))  # noqa: B905 Python 3.9
    if len(made) != len(keys):
        raise ValueDamaged("a dict with a key twice")
    return made


_READERS: dict[int, Reader] = {
    tags.INT: _read_int,
    tags.TEXT: _read_text,
    tags.BYTES: _read_bytes,
    tags.BYTEARRAY: _read_bytearray,
    tags.COMPLEX: _read_complex,
    tags.TUPLE: _read_tuple,
    tags.SET: _read_set,
    tags.FROZENSET: _read_frozenset,
    tags.DICT: _read_dict,
    tags.DATE: moments.read_date,
    tags.TIME: moments.read_time,
    tags.DATETIME: moments.read_datetime,
    tags.TIMEDELTA: moments.read_timedelta,
}
