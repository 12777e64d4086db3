"""Manifests on the wire: rows of msgpack, and the quick ways to make and check thousands of them.

`Manifest` says what is right, entry by entry, and what is wrong; here is only told, of many entries at once, that all
of them are plainly right. That is done for every change at home, on both sides.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import islice
from operator import ge
from typing import Any, Literal, NamedTuple

from gpulayer.source.errors import ManifestError

__all__ = ["FileEntry", "Kind", "checked_entry", "common_ends", "encode_rows", "entry_of", "is_plainly_right", "unpack"]

Kind = Literal["file", "dir"]

MAX_SIZE = 2**63 - 1
MAX_PATH_BYTES = 4096  # PATH_MAX of Linux

_VERSION = 1
_FILE, _DIR = 0, 1
_new = tuple.__new__  # a third of what a named tuple's own takes


class FileEntry(NamedTuple):
    """One file of a bundle, or one folder in which nothing travels (`kind` 'dir').

    A named tuple, since each cell makes one for each file: a frozen dataclass takes ten times as long.
    """

    path: str  # relative, POSIX slashes; bytes that are not UTF-8 are held by surrogateescape
    mode: int  # 0o644 or 0o755
    size: int  # bytes; 0 for a folder
    sha256: str  # 64 lower-case hexadecimal digits; empty for a folder
    kind: Kind = "file"


def head(count: int) -> bytes:
    """What stands before so many rows."""
    import msgpack

    pack = msgpack.Packer()
    return b"\x92" + pack.pack(_VERSION) + pack.pack_array_header(count)


def encode_rows(files: Iterable[FileEntry]) -> list[bytes]:
    """Each entry's encoding."""
    import msgpack

    pack, raw = msgpack.Packer().pack, bytes.fromhex
    return [
        pack((_DIR if kind == "dir" else _FILE, path.encode("utf-8", "surrogateescape"), mode, size, raw(sha256)))
        for path, mode, size, sha256, kind in files
    ]


def unpack(data: bytes) -> Any:
    """The version and the rows, unchecked. Raises `ManifestError` for what has another form."""
    import msgpack

    try:
        # raw: nothing in a manifest is text, so a text with broken UTF-8 cannot get in by the back door.
        document = msgpack.unpackb(data, raw=True, use_list=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise ManifestError(f"these {len(data)} bytes are no manifest: {error or type(error).__name__}") from error
    if type(document) is not tuple or len(document) != 2 or type(document[1]) is not tuple:
        raise ManifestError("these bytes are msgpack, but no manifest")
    if document[0] != _VERSION:
        raise ManifestError(f"manifest version {document[0]!r} is not {_VERSION}; update GPUlayer on the older side")
    return document


def entry_of(row: Any) -> FileEntry:
    """The entry of a row whose types are right."""
    kind, path, mode, size, digest = row
    text = path.decode("utf-8", "surrogateescape")
    return _new(FileEntry, (text, mode, size, digest.hex(), "dir" if kind == _DIR else "file"))


def checked_entry(row: Any) -> FileEntry:
    """The entry of a row; raises `ManifestError` for one that has another form."""
    if type(row) is not tuple or len(row) != 5:
        raise ManifestError("a manifest entry does not have its five fields")
    kind, path, _, _, digest = row
    if type(kind) is not int or kind not in (_FILE, _DIR) or type(path) is not bytes or type(digest) is not bytes:
        raise ManifestError("a manifest entry has a field of the wrong type")
    return entry_of(row)


# ---------------------------------------------------------------- all at once


def is_plainly_right(document: Any, data: bytes) -> bool:
    """Whether all rows are right and in order and `data` is their canonical encoding. No: it has to be looked at.

    Entry by entry takes 8 ms for 2,000 files.
    """
    import msgpack

    rows = document[1]
    if not rows or not all(map(_is_plain_row, rows)) or msgpack.packb(document) != data:
        return False
    paths: list[bytes] = [row[1] for row in rows]
    # No path holds NUL, so between two of them it marks where one ends.
    framed = b"/" + b"/\0/".join(paths) + b"/"
    if framed.count(b"\0") != len(paths) - 1 or any(part in framed for part in (b"//", b"/./", b"/../", b"\\")):
        return False
    if any(map(ge, paths, islice(paths, 1, None))):  # sorted, and none twice
        return False
    return set(paths).isdisjoint(parents(paths, b"/"))


def parents(paths: Iterable[Any], slash: Any) -> set[Any]:
    """All folders above these paths, which are text or bytes as `slash` is."""
    found: set[Any] = set()
    for path in paths:
        parent = path.rpartition(slash)[0]
        while parent and parent not in found:
            found.add(parent)
            parent = parent.rpartition(slash)[0]
    return found


def _is_plain_row(row: Any) -> bool:
    if type(row) is not tuple or len(row) != 5:
        return False
    kind, path, mode, size, digest = row
    if not (type(kind) is type(mode) is type(size) is int and type(path) is type(digest) is bytes):
        return False
    if not 0 < len(path) <= MAX_PATH_BYTES:
        return False
    if kind == _FILE:
        return len(digest) == 32 and (mode == 0o644 or mode == 0o755) and 0 <= size <= MAX_SIZE
    return kind == _DIR and mode == 0o755 and not size and not digest


# ---------------------------------------------------------------- two that resemble each other


class Middle(NamedTuple):
    """What lies between the begin and the end that two manifests have in common."""

    before: int  # so many rows are the same at the begin
    after: int  # from this row of the old one on they are the same
    rows: tuple[Any, ...]  # of the new one, between; each is right, and they are in order


def common_ends(old: bytes, ends: list[int], data: bytes) -> Middle | None:
    """Where `data` differs from `old`, the encoding of a manifest whose rows end at `ends` (bytes behind its head).

    None: nothing can be told; `data` may be anything. What it gives is the only way to read `data`, and the caller
    checks that the rows fit between those that are kept.
    """
    length, count = _head_of(data)
    if not length:
        return None
    body, old_body = data[length:], old[len(head(len(ends))) :]
    before = bisect_right(ends, _common_begin(old_body, body))
    begin = ends[before - 1] if before else 0
    same_bytes = _common_begin(old_body[: begin - 1 if begin else None : -1], body[: begin - 1 if begin else None : -1])
    after = bisect_left([0, *ends], len(old_body) - same_bytes)
    tail = len(old_body) - (ends[after - 1] if after else 0)
    middle, wanted = body[begin : len(body) - tail], count - before - (len(ends) - after)
    if wanted <= 0:
        return Middle(before, after, ()) if not wanted and not middle else None
    encoded = head(wanted) + middle
    try:
        document = unpack(encoded)
    except ManifestError:
        return None
    return Middle(before, after, document[1]) if is_plainly_right(document, encoded) else None


def _head_of(data: bytes) -> tuple[int, int]:
    """The length of a head in bytes, and how many rows it announces; 0 for none."""
    kind = data[2] if len(data) > 2 else 0
    length, count = {0xDC: (5, data[3:5]), 0xDD: (7, data[3:7])}.get(kind, (3, bytes((kind & 15,))))
    number = int.from_bytes(count, "big")
    return (length, number) if data[:length] == head(number) else (0, 0)


def _common_begin(first: bytes, second: bytes) -> int:
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
