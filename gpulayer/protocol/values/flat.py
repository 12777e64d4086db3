"""Small plain values as msgpack, fast: which values these are, and the library or what stands in for it."""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from . import plainpack
from .errors import ValueDamaged, type_of

if TYPE_CHECKING:
    from .decoding import Buffer

#: Containers in one another, and items in all of one, at most: beyond these the full codec is no slower.
DEEPEST, LONGEST = 4, 4096

_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_TEXT = frozenset({str})
_FEW, _SHORT_TEXT, _FLOAT = 0x90, 0xA0, 0xCB  # of msgpack: a list of at most 15, text of at most 31 bytes, a double
_unpack_float = struct.Struct(">d").unpack_from


def fits(items: Iterable[Any], depth: int = DEEPEST, most: int = LONGEST) -> bool:
    """Whether msgpack takes these as they are and gives them back the same, large ints and odd text aside.

    Containers in them may be `depth` deep and have `most` items.
    """
    kinds = set(map(type, items))
    if kinds <= _ATOMS:
        return True
    if depth == 0:
        return False
    for item in items:
        kind = type_of(item)
        if kind in _ATOMS:
            continue
        if kind is dict:
            if not set(map(type, item)) <= _TEXT:
                return False
            inner = item.values()
        elif kind is list:
            inner = item
        else:
            return False
        if len(item) > most or not fits(inner, depth - 1, most // (len(item) or 1)):
            return False
    return True


class _Msgpack:
    """Plain trees to msgpack and back, by the library where there is one; that is found out when it is first needed."""

    def __init__(self) -> None:
        self.unpack: Callable[[Buffer], Any] = self._first_unpack
        self.pack: Callable[[Any], bytes] = self._first_pack
        self._packers: list[Any] = []  # free ones: one thread, or one finalizer within it, takes one at a time

    def _first_pack(self, tree: Any) -> bytes:
        self._choose()
        return self.pack(tree)

    def _first_unpack(self, data: Buffer) -> Any:
        self._choose()
        return self.unpack(data)

    def _choose(self) -> None:
        try:
            library: Any = importlib.import_module("msgpack")
            if library.version < (1, 0, 0) or library.unpackb(library.packb(b"1", use_bin_type=True)) != b"1":
                raise ImportError("too old")
        except Exception:  # noqa: BLE001 - a module of the user's may have this name
            self.pack, self.unpack = plainpack.pack, plain_unpack
            return
        unpackb, make_packer = library.unpackb, library.Packer
        packers = self._packers

        def pack(tree: Any) -> bytes:
            packer = packers.pop() if packers else make_packer(use_bin_type=True, strict_types=True)
            packed = packer.pack(tree)
            packers.append(packer)
            return packed

        def unpack(data: Buffer) -> Any:
            return unpackb(data, ext_hook=_no_extensions)

        self.pack, self.unpack = pack, unpack


def plain_unpack(data: Buffer) -> Any:
    """What the library reads, without it: a list of the smallest items quickly, all else by `plainpack`."""
    raw = bytes(data)
    if not raw or raw[0] & 0xF0 != _FEW:
        return plainpack.unpack(memoryview(raw), dict)
    items: list[Any] = []
    at, end = 1, len(raw)
    for _ in range(raw[0] & 15):
        code = raw[at] if at < end else 0xFF
        if code < 0x80:
            items.append(code)
            at += 1
        elif code & 0xE0 == _SHORT_TEXT and at + (code & 31) < end:
            items.append(str(raw[at + 1 : at + 1 + (code & 31)], "utf-8"))
            at += 1 + (code & 31)
        elif code == _FLOAT and at + 8 < end:
            items.append(_unpack_float(raw, at + 1)[0])
            at += 9
        else:
            break
    return items if at == end and len(items) == raw[0] & 15 else plainpack.unpack(memoryview(raw), dict)


def _no_extensions(code: int, _data: bytes) -> Any:
    raise ValueDamaged(f"the bytes hold the msgpack extension {code}, which values do not use")


msgpack = _Msgpack()
