"""Named values in one file or blob: what `--in` and `--out` carry.

    magic and version     8 bytes, b"GPLVALS" + 1
    length of the index   4 bytes, little-endian
    index                 JSON: [[name, [size of each part, bytes]], …]
    the parts             one behind the other, in the index's order

The parts are those of `encode`: big ones are written from the memory of the value, and read into the memory that the
value then has. As the rest of this package, this file works alone, with Python 3.9 and its standard library.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .decoding import decode
from .encoding import encode
from .errors import LibraryMissing, ValueDamaged

if TYPE_CHECKING:
    from typing import Protocol

    from .encoding import Part

    class Source(Protocol):
        """What is read from: a file that was opened without a buffer, or the body of an answer."""

        def readinto(self, target: memoryview, /) -> int | None:
            """Fill some of `target`; how much, 0 at the end."""
            ...


MAGIC = b"GPLVALS\x01"
INDEX_BYTES = 1 << 24
"""Of an index at most; a hundred thousand parts have one of a megabyte."""

_LENGTH = struct.Struct("<I")
_PIECE_BYTES = 1 << 18


class Framed:
    """Named values, ready to be written. It views the memory of the values: write it before they change."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """Encode each value. Raises `ValueRefused`, whose path begins with the value's name."""
        parts: list[Part] = []
        index: list[tuple[str, list[int]]] = []
        for name, value in values.items():
            encoded = encode(value, name)
            index.append((name, [_size(part) for part in encoded]))
            parts += encoded
        head = json.dumps(index).encode()
        self._parts: list[Part] = [MAGIC + _LENGTH.pack(len(head)) + head, *parts]
        self.size_bytes = sum(map(_size, self._parts))

    def pieces(self) -> Iterator[memoryview]:
        """The bytes, in pieces of at most 256 KiB that are not copied."""
        for part in self._parts:
            view = memoryview(part).cast("B")
            for start in range(0, len(view), _PIECE_BYTES):
                yield view[start : start + _PIECE_BYTES]

    def digest(self) -> str:
        """SHA-256 of the bytes, hexadecimal."""
        sha256 = hashlib.sha256()
        for piece in self.pieces():
            sha256.update(piece)
        return sha256.hexdigest()


def read(source: Source, size_bytes: int) -> dict[str, list[bytearray]]:
    """The parts of each name.

    Args:
        source: stands where the magic begins; exactly `size_bytes` are read from it.
        size_bytes: of all that `Framed` wrote: what the file or the answer really has, since memory is taken for it.

    Raises:
        ValueDamaged: it is something else, or not whole. What `source` raises.
    """
    magic = bytes(_take(source, len(MAGIC)))
    if magic != MAGIC:
        what = "of another version: update gpulayer on the older side" if magic[:-1] == MAGIC[:-1] else "no values"
        raise ValueDamaged(f"the bytes are {what}")
    length: int = _LENGTH.unpack(_take(source, _LENGTH.size))[0]
    if length > INDEX_BYTES:
        raise ValueDamaged(f"an index of {length} bytes")
    index = _checked(_take(source, length))
    total = len(MAGIC) + _LENGTH.size + length + sum(sum(sizes) for _, sizes in index)
    if total != size_bytes:
        raise ValueDamaged(f"{size_bytes} bytes, where the index says {total}")
    return {name: [_take(source, size) for size in sizes] for name, sizes in index}


def values_of(parts: Mapping[str, Sequence[bytearray]]) -> dict[str, Any]:
    """The values of what `read` returned; their memory becomes the values'. Raises `ValueDamaged`, with the name."""
    values: dict[str, Any] = {}
    for name, some in parts.items():
        try:
            values[name] = decode(some)
        except LibraryMissing as missing:
            raise LibraryMissing(f"{name}: {missing}") from missing
        except ValueDamaged as damaged:
            raise ValueDamaged(f"{name}: {damaged}") from damaged
    return values


def nearest(name: str, names: Iterable[Any]) -> str:
    """The words that follow after 'there is no such name': the nearest one that there is, '' for none."""
    import difflib  # only where something is wrong

    near = difflib.get_close_matches(name, [each for each in names if isinstance(each, str)], n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _size(part: Part) -> int:
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _take(source: Source, size: int) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    at = 0
    while at < size:
        count = source.readinto(view[at:])
        if not count:
            raise ValueDamaged(f"the bytes end {size - at} too early")
        at += count
    return data


def _checked(data: bytearray) -> list[tuple[str, list[int]]]:
    try:
        index: Any = json.loads(bytes(data))
        for name, sizes in index:
            if type(name) is not str or not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError
        names = [name for name, _ in index]
    except (ValueError, TypeError, RecursionError):
        raise ValueDamaged("the index can't be read") from None
    if len(set(names)) != len(names):
        raise ValueDamaged("a name that is there twice")
    return index
