"""The manifest of a bundle: which files, with which mode, size and SHA-256, and which empty folders.

Workers write these paths to disk, so a `Manifest` cannot exist with a path that leaves its folder: both
`Manifest(...)` and `Manifest.from_bytes` check every entry. A symlink has no entry of its own: the scan carries it as
the file (or folder) that it points at, or refuses it.

On the wire: one msgpack array `[1, [[kind, path, mode, size, digest], ...]]`, sorted by the path's bytes. Paths are
bytes (UTF-8, what is not UTF-8 on disk stays as it is), digests are their 32 raw bytes. The encoding is canonical: one
manifest has exactly one sequence of bytes, and so one digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cached_property
from typing import Any, Literal, NamedTuple

from gpulayer.source.errors import ManifestError, shown

__all__ = ["FileEntry", "Manifest", "check_entry", "path_bytes"]

Kind = Literal["file", "dir"]

_VERSION = 1
_FILE, _DIR = 0, 1
_MODES = {"file": (0o644, 0o755), "dir": (0o755,)}
_MAX_SIZE = 2**63 - 1
_MAX_PATH_BYTES = 4096  # PATH_MAX of Linux


class FileEntry(NamedTuple):
    """One file of a bundle, or one folder in which nothing travels (`kind` 'dir').

    A named tuple, since each cell makes one for each file: a frozen dataclass takes ten times as long.
    """

    path: str  # relative, POSIX slashes; bytes that are not UTF-8 are held by surrogateescape
    mode: int  # 0o644 or 0o755
    size: int  # bytes; 0 for a folder
    sha256: str  # 64 lower-case hexadecimal digits; empty for a folder
    kind: Kind = "file"


class Manifest:
    """The sorted, checked entries of a bundle. Immutable.

    Args:
        files: the entries, in any order.

    Raises:
        ManifestError: an entry that could be written outside its folder, doubled paths, or a file that is also the
            parent of another entry.
    """

    def __init__(self, files: Iterable[FileEntry]) -> None:
        entries = tuple(files)
        for entry in entries:
            check_entry(entry)
        self._files = _sorted(entries)
        _check_tree(self._files)

    @classmethod
    def trusted(cls, files: Iterable[FileEntry]) -> Manifest:
        """A manifest of entries that the scan itself made: sorted, not checked again (the scan runs per cell)."""
        manifest = cls.__new__(cls)
        manifest._files = _sorted(tuple(files))
        return manifest

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Read a manifest that came from elsewhere.

        Args:
            data: what `to_bytes` made.

        Raises:
            ManifestError: not a manifest, another version, an unsafe entry, or not the canonical encoding.
        """
        manifest = cls(_decode(data))
        if manifest.to_bytes() != data:
            raise ManifestError("the manifest is not in its canonical form (order, doubles or number encoding)")
        return manifest

    def to_bytes(self) -> bytes:
        """The canonical encoding."""
        return self._encoded

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The entries, sorted by the bytes of their paths."""
        return self._files

    @cached_property
    def digest(self) -> str:
        """SHA-256 of `to_bytes()`, hexadecimal: the bundle's identity."""
        return hashlib.sha256(self._encoded).hexdigest()

    @cached_property
    def total_bytes(self) -> int:
        """The sum of all file sizes, in bytes; equal files count each time."""
        return sum(entry.size for entry in self._files)

    @cached_property
    def by_path(self) -> dict[str, FileEntry]:
        """The entries by path. Do not change it."""
        return {entry.path: entry for entry in self._files}

    @cached_property
    def _encoded(self) -> bytes:
        import msgpack

        raw = bytes.fromhex
        rows = [
            (
                _DIR if entry.kind == "dir" else _FILE,
                entry.path.encode("utf-8", "surrogateescape"),
                entry.mode,
                entry.size,
                raw(entry.sha256),
            )
            for entry in self._files
        ]
        packed = msgpack.packb([_VERSION, rows], use_bin_type=True)
        if packed is None:  # the stubs allow it; packb with autoreset always returns bytes
            raise ManifestError("the manifest could not be encoded")
        return packed

    def __eq__(self, other: object) -> bool:
        return self._files == other._files if isinstance(other, Manifest) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __len__(self) -> int:
        return len(self._files)

    def __repr__(self) -> str:
        return f"Manifest({len(self._files)} entries, {self.total_bytes} bytes, {self.digest[:12]})"


def check_entry(entry: FileEntry) -> None:
    """Raise `ManifestError` unless the entry is safe to write below a folder and its fields are in range."""
    _check_path(entry.path)
    problem = _problem(entry)
    if problem:
        raise ManifestError(f"manifest entry {shown(entry.path)}: {problem}")


def _problem(entry: FileEntry) -> str | None:
    modes = _MODES.get(entry.kind)
    if modes is None:
        return f"kind {entry.kind!r} is neither 'file' nor 'dir'"
    if type(entry.mode) is not int or entry.mode not in modes:
        return f"mode {entry.mode!r} is not allowed, only 0o644 and 0o755 are"
    if type(entry.size) is not int or not 0 <= entry.size <= _MAX_SIZE:
        return f"size {entry.size!r} is not a number of bytes"
    if entry.kind == "dir":
        return "a folder has neither size nor digest" if entry.size or entry.sha256 else None
    return None if _is_digest(entry.sha256) else f"digest {entry.sha256!r} is not 64 lower-case hexadecimal digits"


def _is_digest(text: Any) -> bool:
    if type(text) is not str or len(text) != 64:
        return False
    try:
        return bytes.fromhex(text).hex() == text
    except ValueError:
        return False


def path_bytes(path: str) -> bytes:
    """The path's bytes on a POSIX disk.

    Raises:
        ManifestError: the text holds lone surrogates that stand for no byte.
    """
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ManifestError(f"path {path!r} cannot be written in UTF-8; rename the file") from None


def _check_path(path: Any) -> None:
    if type(path) is not str or not path:
        raise ManifestError(f"manifest entry {path!r}: the path is not a non-empty text")
    if len(path_bytes(path)) > _MAX_PATH_BYTES:
        raise ManifestError(f"manifest entry {path[:40]!r}…: the path is longer than {_MAX_PATH_BYTES} bytes")
    if "\0" in path or "\\" in path:
        raise ManifestError(f"manifest entry {path!r}: a path holds neither NUL nor backslash")
    framed = f"/{path}/"
    if "//" in framed or "/./" in framed or "/../" in framed:
        raise ManifestError(f"manifest entry {path!r}: the path is not relative and normal")


def _check_tree(files: tuple[FileEntry, ...]) -> None:
    paths: set[str] = set()
    for entry in files:
        if entry.path in paths:
            raise ManifestError(f"manifest entry {shown(entry.path)}: the path is there twice")
        paths.add(entry.path)
    parents: set[str] = set()
    for entry in files:
        parent = entry.path.rpartition("/")[0]
        while parent and parent not in parents:
            if parent in paths:
                raise ManifestError(f"manifest entry {shown(entry.path)}: its parent {shown(parent)} is an entry too")
            parents.add(parent)
            parent = parent.rpartition("/")[0]


def _sorted(files: tuple[FileEntry, ...]) -> tuple[FileEntry, ...]:
    try:
        return tuple(sorted(files, key=lambda entry: entry.path.encode("utf-8", "surrogateescape")))
    except UnicodeEncodeError:
        for entry in files:
            path_bytes(entry.path)  # raises, and names it
        raise


def _decode(data: bytes) -> list[FileEntry]:
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
    return [_decode_row(row) for row in document[1]]


def _decode_row(row: Any) -> FileEntry:
    if type(row) is not tuple or len(row) != 5:
        raise ManifestError("a manifest entry does not have its five fields")
    kind, path, mode, size, digest = row
    if type(kind) is not int or kind not in (_FILE, _DIR) or type(path) is not bytes or type(digest) is not bytes:
        raise ManifestError("a manifest entry has a field of the wrong type")
    return FileEntry(
        path=path.decode("utf-8", "surrogateescape"),
        mode=mode,
        size=size,
        sha256=digest.hex(),
        kind="dir" if kind == _DIR else "file",
    )
