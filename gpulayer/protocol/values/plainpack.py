"""The part of msgpack that heads use, in plain Python: for interpreters that have no msgpack library.

Same bytes as the library, slower. https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from .errors import ValueDamaged, type_of
from .tags import MAX_NESTING

_FLOAT = struct.Struct(">d")
_SIGNED = ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8))
_UNSIGNED = ((0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8))
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_INTEGERS = {code: (size, code >= 0xD0) for code, size in _SIGNED + _UNSIGNED}
_TEXTS = {0xD9: 1, 0xDA: 2, 0xDB: 4}
_BYTES = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_ARRAYS = {0xDC: 2, 0xDD: 4}
_MAPS = {0xDE: 2, 0xDF: 4}


def pack(tree: Any) -> bytes:
    """A tree of None, bool, int, float, str, bytes, list and dict as msgpack.

    Raises:
        ValueError: an int of more than 64 bits, or another type.
    """
    out = bytearray()
    _write(out, tree)
    return bytes(out)


def _write(out: bytearray, tree: Any) -> None:
    kind = type_of(tree)
    if kind is list:
        _write_head(out, len(tree), 0x90, 15, ((0xDC, 2), (0xDD, 4)))
        for item in tree:
            _write(out, item)
    elif kind is dict:
        _write_head(out, len(tree), 0x80, 15, ((0xDE, 2), (0xDF, 4)))
        for key, item in tree.items():
            _write(out, key)
            _write(out, item)
    else:
        _write_atom(out, tree, kind)


def _write_atom(out: bytearray, atom: Any, kind: type[Any]) -> None:
    if atom is None:
        out.append(0xC0)
    elif kind is bool:
        out.append(0xC3 if atom else 0xC2)
    elif kind is int:
        _write_int(out, atom)
    elif kind is float:
        out.append(0xCB)
        out += _FLOAT.pack(atom)
    elif kind is str:
        text = atom.encode()
        _write_head(out, len(text), 0xA0, 31, ((0xD9, 1), (0xDA, 2), (0xDB, 4)))
        out += text
    elif kind is bytes:
        _write_head(out, len(atom), 0, -1, ((0xC4, 1), (0xC5, 2), (0xC6, 4)))
        out += atom
    else:
        raise ValueError(f"msgpack has no {kind.__name__}")


def _write_int(out: bytearray, value: int) -> None:
    if -32 <= value < 128:
        out.append(value & 0xFF)
        return
    for code, size in _SIGNED if value < 0 else _UNSIGNED:
        if value.bit_length() <= size * 8 and (value >= 0 or value >= -(1 << (size * 8 - 1))):
            out.append(code)
            out += value.to_bytes(size, "big", signed=value < 0)
            return
    raise ValueError("an int of more than 64 bits")


def _write_head(out: bytearray, length: int, fixed: int, fixed_max: int, wider: tuple[tuple[int, int], ...]) -> None:
    if length <= fixed_max:
        out.append(fixed | length)
        return
    for code, size in wider:
        if length < 1 << (8 * size):
            out.append(code)
            out += length.to_bytes(size, "big")
            return
    raise ValueError("longer than msgpack allows")


def unpack(data: bytes | memoryview, on_map: Callable[[list[tuple[Any, Any]]], Any]) -> Any:
    """The tree of `data`; each map is given to `on_map` as its pairs, the inner ones first.

    Raises:
        ValueDamaged: bytes that are no msgpack of this kind, or are too deep, or too many.
    """
    reader = _Reader(memoryview(data), on_map)
    tree = reader.read(0)
    if reader.position != len(data):
        raise ValueDamaged("bytes after the head's end")
    return tree


class _Reader:
    """Reads one tree; owns its position."""

    def __init__(self, data: memoryview, on_map: Callable[[list[tuple[Any, Any]]], Any]) -> None:
        self.data = data
        self.position = 0
        self.on_map = on_map

    def take(self, size: int) -> bytes:
        end = self.position + size
        if end > len(self.data):
            raise ValueDamaged("the head ends too early")
        taken = bytes(self.data[self.position : end])
        self.position = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def read(self, depth: int) -> Any:
        code = self.number(1)
        if code < 0x80:
            return code
        if code >= 0xE0:
            return code - 256
        if code <= 0x9F or code in _ARRAYS or code in _MAPS:
            return self.read_container(code, depth + 1)
        return self.read_atom(code)

    def read_container(self, code: int, depth: int) -> Any:
        if depth > MAX_NESTING:
            raise ValueDamaged("the head is nested too deep")
        if code <= 0x8F or code in _MAPS:
            count = self.number(_MAPS[code]) if code in _MAPS else code & 15
            pairs: list[tuple[Any, Any]] = []
            for _ in range(count):
                key = self.read(depth)
                pairs.append((key, self.read(depth)))
            return self.on_map(pairs)
        count = self.number(_ARRAYS[code]) if code in _ARRAYS else code & 15
        items: list[Any] = []
        for _ in range(count):
            items.append(self.read(depth))
        return items

    def read_atom(self, code: int) -> Any:
        if code in _CONSTANTS:
            return _CONSTANTS[code]
        if code in _INTEGERS:
            size, signed = _INTEGERS[code]
            return int.from_bytes(self.take(size), "big", signed=signed)
        if code == 0xCB:
            return _FLOAT.unpack(self.take(8))[0]
        if code <= 0xBF or code in _TEXTS:
            return str(self.take(self.number(_TEXTS[code]) if code in _TEXTS else code & 31), "utf-8")
        if code in _BYTES:
            return self.take(self.number(_BYTES[code]))
        raise ValueDamaged(f"the head holds the msgpack code {code:#04x}, which values do not use")
