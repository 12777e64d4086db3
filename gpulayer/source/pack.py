"""Blobs in transit: our own framing, since Python's tarfile costs more than the network, in one zstd stream.

    magic and version     8 bytes, b"GPLPACK" + 2
    coding                1 byte: 0, what follows stands as it is; 1, it is a zstd frame
    each blob             32 bytes SHA-256, 8 bytes length (big-endian), the bytes
    the end               32 zero bytes, 8 bytes number of blobs

One stream for all blobs, since small files resemble one another; zstd passes on what does not compress at more than
2 GB/s, so nobody has to tell it apart. The receiver checks each blob against its digest while it passes. Both sides
hold a few chunks and zstd's window.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from gpulayer.source.blobs import Span, SpanReader
from gpulayer.source.digests import OPEN_FLAGS
from gpulayer.source.errors import PackError, SourceChanged, shown
from gpulayer.source.mapped import mapped
from gpulayer.source.streams import InBytes, Pieces, Stream

__all__ = [
    "CHUNK_BYTES",
    "MAGIC",
    "READ_BYTES",
    "InMemory",
    "Pieces",
    "Stream",
    "file_chunks",
    "iter_pack",
    "plain_pack_bytes",
    "read_pack",
    "worth_compressing",
    "write_pack",
]

MAGIC = b"GPLPACK\x02"
CHUNK_BYTES = 262_144
READ_BYTES = 1 << 19
"""Of a pack, at once: each step from Python into the system and back takes its time, and its turn."""

LEVEL = 1
"""Of zstd. A source tree shrinks to 0.42 at 230 MB/s a core; level 3 reaches 0.37 at half of that, -1 0.6 at 210."""

WORTH_BYTES = 16_384
"""A pack below this fits the first flight of a connection: nothing is gained, and loading zstandard takes 5 ms."""

MAX_WINDOW_BYTES = 1 << 23
"""A stream that wants more memory than this to be read is refused; level 1 has 512 KiB."""

_HEADER = struct.Struct(">32sQ")
_END = bytes(32)
_PLAIN, _ZSTD = 0, 1
_PIECE_BYTES = CHUNK_BYTES // 2
_SLICE_BYTES = 1 << 20


class InMemory(NamedTuple):
    """A blob that lies in pieces in memory."""

    size: int  # bytes
    pieces: Iterator[bytes]


Origin: TypeAlias = "Span | bytes | InMemory | BinaryIO | os.PathLike[str] | str"
Blob: TypeAlias = "tuple[str, Origin]"
"""Digest (hexadecimal), and a span, the bytes that it was taken of, the path of a file, or an open, seekable one, read
from where it stands."""


def worth_compressing(total_bytes: int, url: str) -> bool:
    """Whether a pack of this size gains by it on its way to a control plane: not on this very machine."""
    local = url.startswith(("http://127.", "http://localhost", "http://[::1]"))
    return total_bytes >= WORTH_BYTES and not local


def plain_pack_bytes(sizes: Iterable[int]) -> int:
    """How long a pack of blobs of these sizes (bytes) is that is not compressed."""
    return len(MAGIC) + 1 + sum(_HEADER.size + size for size in sizes) + _HEADER.size


def write_pack(blobs: Iterable[Blob], out: BinaryIO, *, compress: bool = False) -> int:
    """Write a pack.

    Args:
        blobs: what to send.
        out: written to, not closed.
        compress: as one zstd stream.

    Returns:
        The number of bytes written.

    Raises:
        SourceChanged: a file is not (any more) what its digest says; what was written is no whole pack.
        PackError: a digest that is none, or a stream whose length cannot be told.
        OSError: a file cannot be read.
    """
    written = 0
    for data in iter_pack(blobs, compress=compress):
        out.write(data)
        written += len(data)
    return written


def iter_pack(blobs: Iterable[Blob], *, compress: bool = False, verify: bool = True) -> Iterator[bytes]:
    """The bytes of a pack, in pieces below 512 KiB; small blobs share one. Arguments and errors: as `write_pack`.

    Not to `verify` is for who reads from a cache of blobs: the receiver checks them anyway.
    """
    encode, flush = _coder(compress)
    pending: list[bytes] = []  # joined once: copying is most of what is left to do here
    size = count = 0
    head = MAGIC + bytes((_ZSTD if compress else _PLAIN,))
    with SpanReader() as reader:
        for digest, source in blobs:
            count += 1
            for data in _framed(_raw_digest(digest), digest, source, reader, verify):
                alone = isinstance(data, memoryview) and not compress and len(data) >= CHUNK_BYTES
                if not alone:
                    pending.append(data)
                    size += len(data)
                if pending and (alone or size >= CHUNK_BYTES):
                    yield head + encode(b"".join(pending)) if head else encode(b"".join(pending))
                    pending, size, head = [], 0, b""
                if alone:
                    yield from _slices(data)
    pending.append(_HEADER.pack(_END, count))
    yield head + encode(b"".join(pending)) + flush()


def _slices(data: Any) -> Iterator[Any]:
    """In pieces, without a copy: whoever sends them may copy what is left of one that the socket takes a part of."""
    for begin in range(0, len(data), _SLICE_BYTES):
        yield data[begin : begin + _SLICE_BYTES]


def read_pack(
    stream: Stream, *, max_bytes: int | None = None, wanted: Mapping[str, int] | None = None
) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Read a pack.

    Args:
        stream: read to its end; not closed.
        max_bytes: of all blobs together, unpacked, with their headers. It holds before a blob's first byte is read.
        wanted: the only blobs that are taken, by digest, with their sizes in bytes.

    Yields:
        For each blob its digest (hexadecimal), its length in bytes, and its bytes in chunks. Keep a blob only when its
        chunks have *ended* without an error: the digest is checked after the last one. Chunks that were not taken are
        read and checked when the next blob is asked for.

    Raises:
        PackError: no pack, another version, it ends early, a wrong digest or count, something follows the end, or it
            holds more than was allowed, or what nobody wanted.
    """
    source = _Input(stream)
    count = total = 0
    while True:
        raw, length = _HEADER.unpack(source.exactly(_HEADER.size, f"after {count} blobs, without its end mark"))
        if raw == _END:
            break
        count += 1
        total += _HEADER.size + length
        if max_bytes is not None and total > max_bytes:
            raise PackError(f"the pack unpacks to more than {max_bytes} bytes, which is the limit; send less at a time")
        digest = raw.hex()
        if wanted is not None and wanted.get(digest) != length:
            raise PackError(f"the pack holds blob {digest[:12]} of {length} bytes, which nobody asked for")
        chunks = _Chunks(source, raw, length)
        yield digest, length, chunks
        for _ in chunks:
            pass
    if length != count:
        raise PackError(f"the pack's end mark counts {length} blobs, but {count} came; send it again")
    if source.some(1):
        raise PackError("something follows the end of the pack; send it again")


def _coder(compress: bool) -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    if not compress:
        return (lambda data: data), bytes
    import zstandard  # not at import: most cells send nothing, or little

    stream = zstandard.ZstdCompressor(level=LEVEL).compressobj()
    return stream.compress, stream.flush


def file_chunks(digest: str, path: os.PathLike[str] | str) -> Iterator[bytes]:
    """A file's bytes, in pieces. Raises as `write_pack` does: before the end, where it is not what its digest says."""
    framed = _framed_file(_raw_digest(digest), path, True)
    next(framed)  # the header
    yield from framed


def _raw_digest(digest: str) -> bytes:
    try:
        raw = bytes.fromhex(digest)
    except ValueError:
        raw = b""
    if len(raw) != 32 or raw == _END or raw.hex() != digest:
        raise PackError(f"digest {digest!r} is not 64 lower-case hexadecimal digits")
    return raw


def _framed(raw: bytes, digest: str, source: Origin, reader: SpanReader, verify: bool) -> Iterable[bytes]:
    if isinstance(source, bytes):
        return _HEADER.pack(raw, len(source)), source
    if isinstance(source, InMemory):
        return _checked(raw, source.size, source.pieces, f"blob {digest[:12]}", verify)
    if isinstance(source, Span):
        chunks = reader.chunks(source, _PIECE_BYTES)
        return _checked(raw, source.size, chunks, f"blob {digest[:12]}", verify)
    if isinstance(source, (str, os.PathLike)):
        return _framed_file(raw, source, verify)
    length = _length(source, digest)
    return _checked(raw, length, _read(source, length), f"blob {digest[:12]}", verify)


def _framed_file(raw: bytes, path: os.PathLike[str] | str, verify: bool) -> Iterator[bytes]:
    name = shown(os.fspath(path))
    try:
        descriptor = os.open(path, OPEN_FLAGS)
    except FileNotFoundError:
        raise SourceChanged(f"{name} is gone since it was scanned; run it again") from None
    with open(descriptor, "rb", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SourceChanged(f"{name} is no regular file any more; run it again")
        view = None if verify else mapped(os.fspath(path), status.st_size)
        if view is not None:
            yield _HEADER.pack(raw, status.st_size)
            yield view  # type: ignore[misc]
            return
        yield from _checked(raw, status.st_size, _read(file, status.st_size), name, verify)


def _read(file: BinaryIO, size: int) -> Iterator[bytes]:
    while data := file.read(min(size, _PIECE_BYTES)):
        size -= len(data)
        yield data


def _checked(raw: bytes, length: int, chunks: Iterator[bytes], name: str, verify: bool) -> Iterator[bytes]:
    """The blob's header and its bytes, never more of them than the header says."""
    yield _HEADER.pack(raw, length)
    sha256 = hashlib.sha256()
    left = length
    while left:
        data = next(chunks, b"")[:left]
        if not data:
            break
        if verify:
            sha256.update(data)
        left -= len(data)
        yield data
    if left or (verify and sha256.digest() != raw):
        raise SourceChanged(f"{name} changed while it was sent; run it again")


def _length(stream: BinaryIO, digest: str) -> int:
    if not stream.seekable():
        raise PackError(f"blob {digest[:12]} is a stream that cannot seek, so its length is unknown; give a file")
    here = stream.tell()
    end = stream.seek(0, os.SEEK_END)
    stream.seek(here)
    return end - here


class PackFrame:
    """What stands between the blobs of a pack that is not compressed, for who sends their bytes by other ways."""

    def __init__(self) -> None:
        self._count = 0

    def blob(self, digest: str, size: int) -> bytes:
        """What stands before a blob of `size` bytes. Raises `PackError` for what is no digest."""
        self._count += 1
        header = _HEADER.pack(_raw_digest(digest), size)
        return header if self._count > 1 else MAGIC + bytes((_PLAIN,)) + header

    def end(self) -> bytes:
        """What stands after the last one."""
        end = _HEADER.pack(_END, self._count)
        return end if self._count else MAGIC + bytes((_PLAIN,)) + end


class _Input:
    """The framing of a pack, unpacked a chunk at a time, however small its packed bytes are."""

    def __init__(self, stream: Stream) -> None:
        self._read: Callable[[int], bytes | memoryview] = stream.read
        self._rest = memoryview(b"")
        self._at = 0
        self._broken: tuple[type[Exception], ...] = ()
        # Past the buffer: what follows the header may be coded.
        magic = _whole(self._read, len(MAGIC), "before its header was whole")
        if magic != MAGIC:
            if magic[:-1] == MAGIC[:-1]:
                raise PackError(f"pack version {magic[-1]} is not {MAGIC[-1]}; update GPUlayer on the older side")
            raise PackError(f"these bytes are no pack of blobs (they begin with {magic!r})")
        coding = _whole(self._read, 1, "before its header was whole")[0]
        if coding == _ZSTD:
            self._read, self._broken = _unpacked(stream)
        elif coding != _PLAIN:
            raise PackError(f"the pack is coded in an unknown way ({coding}); update GPUlayer on the older side")

    def some(self, size: int) -> memoryview:
        """At most so many bytes, at least one; none at the end."""
        if self._at == len(self._rest):
            try:
                self._rest, self._at = memoryview(self._read(READ_BYTES)), 0  # its slices are no copies
            except self._broken as error:
                raise PackError(f"the pack's zstd stream can't be read ({error}); send it again") from error
        data = self._rest[self._at : self._at + size]
        self._at += len(data)
        return data

    def exactly(self, size: int, where: str) -> bytes:
        """So many bytes, or `PackError`."""
        return _whole(self.some, size, where)


def _whole(read: Callable[[int], bytes | memoryview], size: int, where: str) -> bytes:
    data = bytes(read(size))
    while len(data) < size:
        more = read(size - len(data))
        if not more:
            raise PackError(f"the pack ends {where}; send it again")
        data += more
    return data


def _unpacked(stream: Any) -> tuple[Callable[[int], bytes], tuple[type[Exception], ...]]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES)
    # Across frames, so that what follows the first one is seen, and refused.
    source: Any = InBytes(stream)
    reader = decompressor.stream_reader(source, read_size=_PIECE_BYTES, read_across_frames=True, closefd=False)
    return reader.read, (zstandard.ZstdError,)


class _Chunks:
    """The bytes of one blob. No generator: one that is closed early would leave its rest in the stream."""

    def __init__(self, source: _Input, raw: bytes, length: int) -> None:
        self._source = source
        self._raw = raw
        self._left = length
        self._sha256 = hashlib.sha256()
        self._checked = False

    def __iter__(self) -> _Chunks:
        return self

    def __next__(self) -> Any:  # bytes, or a view of some
        if self._left:
            data = self._source.some(min(self._left, READ_BYTES))
            if not data:
                raise PackError(
                    f"the pack ends {self._left} bytes before the end of blob {self._raw.hex()[:12]}; send it again"
                )
            self._sha256.update(data)
            self._left -= len(data)
            return data
        if not self._checked:
            if self._sha256.digest() != self._raw:
                raise PackError(
                    f"blob {self._raw.hex()[:12]} arrived with other bytes than its digest says; send it again"
                )
            self._checked = True
        raise StopIteration
