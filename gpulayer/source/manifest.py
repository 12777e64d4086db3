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
from itertools import accumulate
from typing import Any

from gpulayer.source.encoding import (
    MAX_PATH_BYTES,
    MAX_SIZE,
    FileEntry,
    checked_entry,
    common_ends,
    encode_rows,
    entry_of,
    head,
    is_plainly_right,
    parents,
    unpack,
)
from gpulayer.source.errors import ManifestError, shown

__all__ = ["FileEntry", "Manifest", "check_entry", "path_bytes"]

_MODES = {"file": (0o644, 0o755), "dir": (0o755,)}


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
        return cls._of(_sorted(tuple(files)))

    def replaced(self, entries: Iterable[FileEntry]) -> Manifest:
        """This manifest with other entries at some of its paths; itself where nothing differs.

        Args:
            entries: files that the scan itself read, at paths of files that are there already.
        """
        places = self._places
        changed = {places[entry.path]: entry for entry in entries if self._files[places[entry.path]] != entry}
        if not changed:
            return self
        files = list(self._files)
        rows = list(self._rows)
        for (place, entry), row in zip(changed.items(), encode_rows(changed.values()), strict=True):
            files[place] = entry
            rows[place] = row
        manifest = Manifest._of(tuple(files))
        manifest.__dict__["_places"] = places
        manifest.__dict__["_rows"] = rows
        return manifest

    @classmethod
    def from_bytes(cls, data: bytes, near: Manifest | None = None) -> Manifest:
        """Read a manifest that came from elsewhere.

        Args:
            data: what `to_bytes` made.
            near: one that may resemble it, such as that of the cell before: what both have in common at their begin and
                at their end is not looked at again.

        Raises:
            ManifestError: not a manifest, another version, an unsafe entry, or not the canonical encoding.
        """
        manifest = near._changed_to(data) if near is not None and near.files else None
        if manifest is None:
            document = unpack(data)
            if is_plainly_right(document, data):
                manifest = cls._of(tuple(map(entry_of, document[1])))
            else:
                manifest = cls(map(checked_entry, document[1]))  # says what is wrong
                if manifest.to_bytes() != data:
                    raise ManifestError("the manifest is not in its canonical form (order, doubles or number encoding)")
        manifest.__dict__["_encoded"] = data
        return manifest

    def _changed_to(self, data: bytes) -> Manifest | None:
        """The manifest of `data` if it is this one with other entries at some place; None where all has to be read."""
        middle = common_ends(self.to_bytes(), self._ends, data)
        if middle is None:
            return None
        files = tuple(map(entry_of, middle.rows))
        kept, rest = self._files[: middle.before], self._files[middle.after :]
        for left, right in ((kept[-1:], files[:1]), (files[-1:], rest[:1])):
            if left and right and path_bytes(left[0].path) >= path_bytes(right[0].path):
                return None
        manifest = Manifest._of((*kept, *files, *rest))
        if not all(entry.path in self._places for entry in files):  # else no path is the parent of another here either
            paths = [entry.path for entry in manifest._files]
            if not parents(paths, "/").isdisjoint(paths):
                return None
        manifest.__dict__["_rows"] = [*self._rows[: middle.before], *encode_rows(files), *self._rows[middle.after :]]
        return manifest

    @classmethod
    def _of(cls, files: tuple[FileEntry, ...]) -> Manifest:
        manifest = cls.__new__(cls)
        manifest._files = files
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
    def _places(self) -> dict[str, int]:
        return {entry.path: place for place, entry in enumerate(self._files)}

    @cached_property
    def _rows(self) -> list[bytes]:
        """Each entry's encoding, so that a manifest in which one file changed encodes that one only."""
        return encode_rows(self._files)

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(map(len, self._rows)))

    @cached_property
    def _encoded(self) -> bytes:
        return b"".join((head(len(self._rows)), *self._rows))

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
    if type(entry.size) is not int or not 0 <= entry.size <= MAX_SIZE:
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
    if len(path_bytes(path)) > MAX_PATH_BYTES:
        raise ManifestError(f"manifest entry {path[:40]!r}…: the path is longer than {MAX_PATH_BYTES} bytes")
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
