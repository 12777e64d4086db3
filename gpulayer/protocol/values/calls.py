"""Values of calls: one value, or the arguments of one call, in one piece of bytes; what is large becomes blobs.

The first byte says the form:

=====  =====  ======================================================================================================
name   value  what follows
=====  =====  ======================================================================================================
PARTS  0      u32 length of the header, the header, the parts that are not blobs. The header is JSON, a list of each
              part's size, or of [digest, size] where it is a blob; spaces at its end. The parts are those of `encode`;
              each but the first starts at a multiple of 64 bytes, so that a mapped file can be an array's memory
PLAIN  1      msgpack of a value of None, bool, int (64 bits), float, str, bytes, and lists and dicts of these
TUPLE  2      PLAIN of a list that is a tuple, or the arguments of a call without names
CALL   3      PLAIN of [list of arguments, dict of named ones]
WHOLE  4      JSON [digest, size]: the whole bytes are a blob, since many small parts came to much
REFS   5      u32 length, JSON [[place or name of an argument, digest, size], …], then the call with None in their place
=====  =====  ======================================================================================================

Small plain values take the forms 1 to 3: about a microsecond each way where there is a msgpack library.

As the rest of this package, this file works alone, with Python 3.9 and its standard library.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import flat
from .decoding import decode
from .encoding import encode
from .errors import ValueDamaged, ValueRefused, one_line, type_of

if TYPE_CHECKING:
    from .decoding import Buffer
    from .encoding import Part

    Sender = Callable[[memoryview], str]
    Fetcher = Callable[[str, int], Buffer]

PARTS, PLAIN, TUPLE, CALL, WHOLE, REFS = range(6)

#: Parts of so many bytes and more are blobs, where there is something that takes blobs.
BLOB_BYTES = 64 * 1024
#: Above so many bytes in small parts all of them together are one blob.
INLINE_BYTES = 256 * 1024

_LENGTH = struct.Struct("<I")
_ALIGN = 64
_NONE = b"\x01\xc0"


class Ref:  # no dataclass: that module takes a runner 5 ms to import
    """A value that is on its way, or there, as a blob of its own: `pack`'s bytes. Many calls can share it."""

    def __init__(self, digest: str, size: int) -> None:
        """`digest` is the blob's SHA-256, hexadecimal, `size` its bytes."""
        self.digest = digest
        self.size = size

    def __repr__(self) -> str:
        return f"Ref({self.digest!r}, {self.size})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and other.digest == self.digest

    def __hash__(self) -> int:
        return hash(self.digest)


# --------------------------------------------------------------------------------------------------------------- pack


def pack(value: object, *, blob: Sender | None = None, name: str = "value") -> bytes:
    """A value as bytes.

    Args:
        value: of the types that the package's docstring lists.
        blob: takes the bytes of a part of 64 KiB or more, and returns their SHA-256, hexadecimal; it is called before
            this returns, and the memory is the value's own. Without it all is in the result.
        name: what errors call the root.

    Raises:
        ValueRefused: the value, or something in it, does not travel; one line with the path to it.
    """
    if value is None:
        return _NONE
    if type_of(value) is tuple:
        items: tuple[Any, ...] = value  # pyright: ignore[reportAssignmentType]
        short = _short(TUPLE, list(items)) if flat.fits(items) else None
    else:
        short = _short(PLAIN, value) if flat.fits((value,)) else None
    if short is not None and (blob is None or len(short) < BLOB_BYTES):
        return short
    return _join(encode(value, name), blob)


def pack_pieces(value: object, *, name: str = "value") -> list[Part]:
    """What `pack` without blobs returns, in pieces that are not copied: send them before the value changes.

    Raises ValueRefused.
    """
    return _pieces([(_bytes_of(part), None) for part in encode(value, name)])


def pack_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], *, blob: Sender | None = None
) -> tuple[bytes, tuple[str, ...]]:
    """The arguments of a call as bytes, and the digests of all blobs that these name.

    Args:
        args: positional ones; those that are a `Ref` are the value it stands for, once they arrive. So in `kwargs`.
        kwargs: by name.
        blob: as `pack`'s.

    Raises:
        ValueRefused: as `pack`, with a path such as `args[1]['model']` or `kwargs['x']`.
    """
    if flat.fits(args) and (not kwargs or flat.fits((kwargs,))):
        short = _short(CALL, [list(args), kwargs]) if kwargs else _short(TUPLE, list(args))
        if short is not None and (blob is None or len(short) < BLOB_BYTES):
            return short, ()
    refs = [(key, value) for key, value in (*enumerate(args), *kwargs.items()) if isinstance(value, Ref)]
    if refs:
        return _with_refs(args, kwargs, refs, blob)
    digests: list[str] = []

    def send(data: memoryview) -> str:
        digest = blob(data)  # pyright: ignore[reportOptionalCall]
        digests.append(digest)
        return digest

    try:
        parts = encode((args, kwargs), "call")
    except ValueRefused:
        encode(args, "args")  # raises, with the path that people know
        encode(kwargs, "kwargs")
        raise
    packed = _join(parts, None if blob is None else send)
    return packed, tuple(dict.fromkeys(digests))


def _with_refs(
    args: tuple[Any, ...], kwargs: dict[str, Any], refs: list[tuple[int | str, Ref]], blob: Sender | None
) -> tuple[bytes, tuple[str, ...]]:
    bare = [None if isinstance(value, Ref) else value for value in args]
    named = {key: None if isinstance(value, Ref) else value for key, value in kwargs.items()}
    packed, digests = pack_call(tuple(bare), named, blob=blob)
    header = json.dumps([[key, ref.digest, ref.size] for key, ref in refs]).encode()
    found = dict.fromkeys((*digests, *(ref.digest for _, ref in refs)))
    return b"".join((bytes((REFS,)), _LENGTH.pack(len(header)), header, packed)), tuple(found)


def _short(form: int, tree: Any) -> bytes | None:
    """`tree` in the form; None where msgpack has no place for something in it."""
    try:
        return _FORMS[form] + flat.msgpack.pack(tree)
    except (ValueError, OverflowError, TypeError):  # an int of more bits, a lone surrogate: the full codec has room
        return None


_FORMS = tuple(bytes((form,)) for form in range(6))


def _bytes_of(part: Part) -> memoryview:
    view = memoryview(part)
    return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else view.cast("B")


def _join(parts: list[Part], blob: Sender | None) -> bytes:
    entries: list[tuple[memoryview, str | None]] = []
    inline = 0
    for part in parts:
        view = _bytes_of(part)
        digest = blob(view) if blob is not None and view.nbytes >= BLOB_BYTES else None
        inline += 0 if digest else view.nbytes
        entries.append((view, digest))
    joined = b"".join(_pieces(entries))
    if blob is None or inline <= INLINE_BYTES:
        return joined
    digest = blob(memoryview(joined))
    return _FORMS[WHOLE] + json.dumps([digest, len(joined)]).encode()


def _pieces(entries: list[tuple[memoryview, str | None]]) -> list[Part]:
    header = json.dumps([view.nbytes if digest is None else [digest, view.nbytes] for view, digest in entries]).encode()
    first = entries[0][0].nbytes if entries[0][1] is None else 0
    header += b" " * (-(5 + len(header) + first) % _ALIGN if len(entries) > 1 else 0)
    pieces: list[Part] = [_FORMS[PARTS] + _LENGTH.pack(len(header)), header]
    gap = b""
    for place, (view, digest) in enumerate(entries):
        if digest is None:
            pieces += (gap, view)
            gap = bytes(-view.nbytes % _ALIGN) if place else b""
    return pieces


# ------------------------------------------------------------------------------------------------------------- unpack


def unpack(data: Buffer, *, blob: Fetcher | None = None) -> Any:
    """The value of what `pack` returned.

    Args:
        data: where it is writable (a bytearray, a mapped file), its memory may become the value's.
        blob: the bytes of a blob, by its digest and size; of writable ones likewise.

    Raises:
        ValueDamaged: these are no such bytes, or name a blob where none can be had. `LibraryMissing`, a kind of it,
        says what to install. What `blob` raises.
    """
    form = data[0] if len(data) else None
    if form == PLAIN:
        return _read_short(data)
    if form == TUPLE:
        return tuple(_as(_read_short(data), list))
    if form == PARTS:
        return decode(_parts(memoryview(data), blob))
    if form == WHOLE:
        return unpack(_whole(data, blob), blob=blob)
    raise ValueDamaged(f"no value begins with {form}: update gpulayer on this side")


def unpack_call(
    data: Buffer, *, blob: Fetcher | None = None, ref: Callable[[str, int], Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of what `pack_call` returned.

    Args:
        data: see `unpack`.
        blob: see `unpack`.
        ref: the value of a `Ref`, by its digest and size; without it, it is unpacked of its blob.

    Raises:
        ValueDamaged: see `unpack`. What `blob` and `ref` raise.
    """
    form = data[0] if len(data) else None
    if form == TUPLE:
        return tuple(_as(_read_short(data), list)), {}
    if form == CALL:
        args, kwargs = _pair(_read_short(data), list)
        return tuple(args), kwargs
    if form == PARTS:
        return _pair(decode(_parts(memoryview(data), blob)), tuple)
    if form == WHOLE:
        return unpack_call(_whole(data, blob), blob=blob, ref=ref)
    if form == REFS:
        return _read_refs(data, blob, ref)
    raise ValueDamaged(f"no call begins with {form}: update gpulayer on this side")


def _read_refs(
    data: Buffer, blob: Fetcher | None, ref: Callable[[str, int], Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rows, at = _header(memoryview(data))
    args, kwargs = unpack_call(memoryview(data)[at:], blob=blob)
    made = list(args)
    for row in rows:
        key, digest, size = _row(row)
        value = unpack(_fetched(digest, size, blob), blob=blob) if ref is None else ref(digest, size)
        if isinstance(key, str):
            kwargs[key] = value
        elif 0 <= key < len(made):
            made[key] = value
        else:
            raise ValueDamaged(f"a reference in the place of argument {key} of {len(made)}")
    return tuple(made), kwargs


def _row(row: Any) -> tuple[int | str, str, int]:
    if not isinstance(row, list) or [type(field) in kinds for field, kinds in zip(row, _ROW)] != [True] * 3:  # pyright: ignore # noqa: B905
        raise ValueDamaged("a reference that can't be read")
    return tuple(row)  # pyright: ignore


_ROW = ((int, str), (str,), (int,))


def _read_short(data: Buffer) -> Any:
    try:
        return flat.msgpack.unpack(data[1:])
    except ValueDamaged:
        raise
    except Exception as error:  # whatever a library says to nonsense
        raise ValueDamaged(f"no value can be made of these bytes: {one_line(error)}") from error


def _header(view: memoryview) -> tuple[list[Any], int]:
    """The rows of a header, and where it ends."""
    try:
        end = 5 + _LENGTH.unpack_from(view, 1)[0]
    except struct.error as error:
        raise ValueDamaged(f"the header can't be read: {one_line(error)}") from error
    return _as(_json(view[5:end]), list), end


def _json(data: Buffer) -> Any:
    try:
        return json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise ValueDamaged(f"the header can't be read: {one_line(error)}") from error


def _parts(view: memoryview, blob: Fetcher | None) -> list[Buffer]:
    rows, at = _header(view)
    parts: list[Buffer] = []
    gap = 0
    for place, row in enumerate(rows):
        if type(row) is int and row >= 0:
            at += gap
            part = view[at : at + row]
            if part.nbytes != row:
                raise ValueDamaged("the bytes end too early")
            parts.append(part)
            at += row
            gap = -row % _ALIGN if place else 0
        else:
            _, digest, size = _row([0, *_as(row, list)])
            parts.append(_fetched(digest, size, blob))
    if at != view.nbytes:
        raise ValueDamaged("bytes after the value's end")
    return parts


def _whole(data: Buffer, blob: Fetcher | None) -> Buffer:
    place = _json(data[1:])
    _, digest, size = _row([0, *_as(place, list)])
    whole = _fetched(digest, size, blob)
    if len(whole) == 0 or whole[0] != PARTS:
        raise ValueDamaged("a blob that is no value")
    return whole


def _fetched(digest: str, size: int, blob: Fetcher | None) -> Buffer:
    if blob is None:
        raise ValueDamaged(f"the blob {digest} is not at hand")
    data = blob(digest, size)
    if memoryview(data).nbytes != size:
        raise ValueDamaged(f"the blob {digest} has {memoryview(data).nbytes} bytes where {size} belong")
    return data


def _as(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueDamaged(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _pair(value: Any, kind: type) -> tuple[Any, dict[str, Any]]:
    if type(value) is not kind or len(value) != 2:
        raise ValueDamaged("no arguments of a call")
    args, kwargs = _as(value[0], kind), _as(value[1], dict)
    if not all(type(name) is str for name in kwargs):
        raise ValueDamaged("the name of an argument that is no text")
    return args, kwargs
