"""NumPy arrays and scalars.

A dtype's tree is its string (`<f8`, `<M8[ns]`, `|V5`), `["array", base, shape]` within a struct, or
`["struct", names, dtypes, offsets, titles, itemsize, aligned?]`.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from . import tags
from .decoding import library
from .errors import ValueDamaged, ValueRefused
from .fields import as_list, exactly, fields

if TYPE_CHECKING:
    from .decoding import Buffer, Decoder
    from .encoding import Encoder, Writer

_SIMPLE = re.compile(r"[<>|](?:b1|[iu][1248]|f[248]|c(?:8|16)|[SUV]\d{1,10}|[mM]8(?:\[\d{0,10}[A-Za-zμ]{1,2}\])?)")
_DEEPEST = 16  # structs in structs
_MOST_DIMENSIONS = 64


def writer(kind: type[Any]) -> Writer | None:
    """The writer of a NumPy type."""
    numpy = library("numpy")
    if kind is numpy.ndarray:
        return _write_array
    if kind is numpy.str_ or kind is numpy.bytes_:
        return _write_scalar_text
    if kind in set(numpy.sctypeDict.values()) and issubclass(kind, numpy.generic):
        return _write_scalar
    return None


def _write_array(encoder: Encoder, value: Any) -> Any:
    dtype = describe(value.dtype)
    fortran = bool(value.flags.f_contiguous and not value.flags.c_contiguous)
    buffer = encoder.buffer(_bytes_of(value.T if fortran else value))
    return {tags.NDARRAY: [dtype, list(value.shape), fortran, bool(value.flags.writeable), buffer]}


def _write_scalar(encoder: Encoder, value: Any) -> Any:
    numpy = library("numpy")
    array = numpy.asarray(value)
    dtype = describe(array.dtype)
    if type(numpy.zeros((), _build(dtype))[()]) is not type(value):
        raise ValueRefused(f"is a {type(value).__name__}, which machines lay out differently: give x.item()")
    return {tags.SCALAR: [dtype, encoder.buffer(_bytes_of(array))]}


def _write_scalar_text(encoder: Encoder, value: Any) -> Any:
    # not through an array: that would strip the NULs at the end
    plain = str.__str__(value) if isinstance(value, str) else bytes(value)
    return {tags.SCALAR_TEXT: encoder.tree(plain)}


def _bytes_of(array: Any) -> memoryview:
    """An array's memory in C order: its own where it is contiguous, else a copy."""
    numpy = library("numpy")
    if array.nbytes == 0:
        return memoryview(b"")
    # a plain view first: the C copy of a struct keeps its padding only so
    return memoryview(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))


# -------------------------------------------------------------------------------------------------------------- dtypes


def describe(dtype: Any) -> Any:
    """A dtype's tree.

    Raises:
        ValueRefused: it holds objects, or the tree would not make the same dtype again.
    """
    tree = _describe(dtype)
    made = _build(tree)
    # `q` and `l` are two types of one int64: equal, and the same to all but `type`
    if made != dtype or (made.type is not dtype.type and dtype.kind not in "iu"):
        raise _refused(dtype, "give it as an array of plain numbers")
    return tree


def _describe(dtype: Any) -> Any:
    if dtype.metadata is not None:
        raise _refused(dtype, "it carries metadata, give x.astype() of the dtype without it")
    if dtype.names is not None:
        places = [dtype.fields[name] for name in dtype.names]
        titles = [place[2] if len(place) > 2 else None for place in places]
        if not all(title is None or type(title) is str for title in titles):
            raise _refused(dtype, "its titles are no text")
        kinds, offsets = [_describe(place[0]) for place in places], [place[1] for place in places]
        return ["struct", list(dtype.names), kinds, offsets, titles, dtype.itemsize, dtype.isalignedstruct]
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ["array", _describe(base), list(shape)]
    if dtype.kind == "O":
        raise _refused(dtype, "give x.tolist(), or x.astype() of a dtype without objects")
    if dtype.kind == "T":
        raise _refused(dtype, "give x.astype('U')")
    if not _SIMPLE.fullmatch(dtype.str):
        raise _refused(dtype, "give x.astype() of a dtype that is the same on every machine, such as float64")
    return dtype.str


def _refused(dtype: Any, advice: str) -> ValueRefused:
    return ValueRefused(f"has the dtype {' '.join(str(dtype).split())[:80]}, which does not travel: {advice}")


def _build(tree: Any, depth: int = 0) -> Any:
    numpy = library("numpy")
    if type(tree) is str:
        if not _SIMPLE.fullmatch(tree):
            raise ValueDamaged("an unknown dtype")
        return numpy.dtype(tree)
    if depth >= _DEEPEST:
        raise ValueDamaged("a dtype that is nested too deep")
    if as_list(tree)[:1] == ["array"]:
        _, base, shape = fields(tree, str, None, list)
        return numpy.dtype((_build(base, depth + 1), tuple(_sizes(shape))))
    kind, names, kinds, offsets, titles, itemsize, aligned = fields(tree, str, list, list, list, list, int, bool)
    if kind != "struct":
        raise ValueDamaged("an unknown kind of dtype")
    layout: dict[str, Any] = {
        "names": [exactly(name, str) for name in names],
        "formats": [_build(item, depth + 1) for item in kinds],
    }
    layout.update(offsets=_sizes(offsets), itemsize=_sizes([itemsize])[0])
    if any(title is not None for title in titles):
        layout["titles"] = titles
    return numpy.dtype(layout, align=aligned)


def _sizes(numbers: list[Any]) -> list[int]:
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueDamaged("a size that is no number from 0 on")
    return numbers


# ------------------------------------------------------------------------------------------------------------- reading


def _read_array(decoder: Decoder, field: Any) -> Any:
    tree, shape, fortran, writable, buffer = fields(field, None, list, bool, bool, None)
    dtype = _build(tree)
    data = checked(decoder.buffer(buffer), shape, dtype.itemsize)
    order = "F" if fortran else "C"
    array = library("numpy").ndarray(tuple(shape), dtype, buffer=data, order=order)
    if (writable and not array.flags.writeable) or not array.flags.aligned:
        array = _copy(array, order)
    array.flags.writeable = writable
    return array


def _copy(array: Any, order: str) -> Any:
    numpy = library("numpy")
    made = numpy.ndarray(array.shape, array.dtype, order=order)
    if array.nbytes:
        # by bytes: a copy by values leaves a struct's padding to chance
        target, source = (made.T, array.T) if order == "F" else (made, array)
        target.reshape(-1).view(numpy.uint8)[:] = source.reshape(-1).view(numpy.uint8)
    return made


def checked(data: Buffer, shape: list[Any], itemsize: int) -> Buffer:
    """The bytes of an array, which must be exactly as many as its shape says."""
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueDamaged("an array of too many dimensions")
    size = len(data) if isinstance(data, (bytes, bytearray)) else data.nbytes
    if math.prod(_sizes(shape)) * itemsize != size:
        raise ValueDamaged(f"an array of shape {shape} and {size} bytes")
    return data


def _read_scalar(decoder: Decoder, field: Any) -> Any:
    tree, buffer = fields(field, None, None)
    dtype = _build(tree)
    data = bytes(checked(decoder.buffer(buffer), [], dtype.itemsize))
    return _copy(library("numpy").ndarray((), dtype, buffer=data), "C")[()]


def _read_scalar_text(_decoder: Decoder, field: Any) -> Any:
    numpy = library("numpy")
    if type(field) is bytes:
        return numpy.bytes_(field)
    return numpy.str_(exactly(field, str))


READERS = {tags.NDARRAY: _read_array, tags.SCALAR: _read_scalar, tags.SCALAR_TEXT: _read_scalar_text}
