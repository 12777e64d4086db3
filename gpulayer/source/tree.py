"""Files below a workspace's folder, reached part by part through open folders, so that no symlink is ever followed.

What runs in a workspace can put a symlink where the next write goes, at any moment. A check by path followed by a write
by path would lose that race; a descriptor opened with O_NOFOLLOW does not. POSIX only, as workers are.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from gpulayer.source.blobs import SHARED_BELOW_BYTES, Span, SpanReader
from gpulayer.source.digests import hash_descriptor
from gpulayer.source.errors import WorkspaceError, shown

__all__ = ["BlobCopier", "Obstructed", "Tree", "parent_of"]

_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
_CANNOT = frozenset(
    number
    for name in ("EXDEV", "EINVAL", "ENOSYS", "EOPNOTSUPP", "ENOTSUP", "ENOTTY", "EPERM", "EBADF", "ETXTBSY")
    if (number := getattr(errno, name, None)) is not None
)
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_READ_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)


class Obstructed(WorkspaceError):
    """A part of a path that should be a folder is a symlink or a file.

    Attributes:
        at: that part's path, relative to the workspace.
    """

    def __init__(self, at: str) -> None:
        self.at = at
        super().__init__(f"{shown(at)} in the workspace is a symlink or a file where a folder should be; remove it")


def parent_of(path: str) -> str:
    """The path's folder, '' for the top."""
    return path.rpartition("/")[0]


class BlobCopier:
    """Copies cached blobs: as a reflink where the file system can, never as a hard link. Owned by one call.

    Args:
        find: where the blob with this digest is; a path for one that is a file of its own.
    """

    def __init__(self, find: Callable[[str], Path | Span | None]) -> None:
        self._find = find
        self._reader = SpanReader()
        self._clones = sys.platform == "linux"
        self._copies_in_kernel = hasattr(os, "copy_file_range")

    def __enter__(self) -> BlobCopier:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._reader.__exit__()

    def copy(self, digest: str, target: int) -> None:
        """Copy a blob into an empty, open file.

        Raises:
            WorkspaceError: the blob is not there.
            OSError: the disk is full, and the like.
        """
        span = self._find(digest)
        try:
            if isinstance(span, Path):
                span = Span(str(span), 0, os.stat(span).st_size)
            if span is None:
                raise FileNotFoundError
            source = self._reader.descriptor(span.path)
        except FileNotFoundError:
            raise WorkspaceError(f"blob {digest[:12]} is not in the cache; fetch it again") from None
        if span.offset == 0 and (self._cloned(source, span, target) or self._copied_in_kernel(source, span, target)):
            return
        for data in self._reader.chunks(span):
            _write_all(target, data)

    def _cloned(self, source: int, span: Span, target: int) -> bool:
        if not self._clones or os.fstat(source).st_size != span.size:  # else it is the first in a shared file
            return False
        import fcntl

        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            self._clones = False  # another file system, or one without reflinks: so for all blobs
        return self._clones

    def _copied_in_kernel(self, source: int, span: Span, target: int) -> bool:
        if not self._copies_in_kernel or span.size <= SHARED_BELOW_BYTES:
            return False
        done = 0
        try:
            while done < span.size:
                count = os.copy_file_range(source, target, span.size - done, offset_src=done)
                if not count:
                    return True
                done += count
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            self._copies_in_kernel = False
            os.ftruncate(target, 0)
            os.lseek(target, 0, os.SEEK_SET)
        return self._copies_in_kernel


class Tree:
    """The folder of a workspace, held open. Owned by one call; not shared between threads.

    Args:
        target: the workspace's folder, which must exist; symlinks above it are the caller's own and are followed.
    """

    def __init__(self, target: Path) -> None:
        self.target = target
        self._root = os.open(target, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        self._open: list[tuple[str, int]] = []  # the folders on the way to the last one asked for

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close_below(0)
        os.close(self._root)

    def folder(self, path: str, *, create: bool = False) -> int:
        """A descriptor of a folder, valid until the next call.

        Raises:
            FileNotFoundError: it is not there (and not to be created).
            Obstructed: a part of the path is no folder.
        """
        parts = path.split("/") if path else []
        depth = 0
        while depth < len(parts) and depth < len(self._open) and self._open[depth][0] == parts[depth]:
            depth += 1
        self._close_below(depth)
        for index in range(depth, len(parts)):
            above = self._open[-1][1] if self._open else self._root
            self._open.append((parts[index], _open_folder(above, parts, index, create)))
        return self._open[-1][1] if self._open else self._root

    def status(self, path: str) -> os.stat_result | None:
        """The `stat` of an entry (a symlink's own), or None if it is not there.

        Raises:
            Obstructed: a parent is no folder.
        """
        try:
            return os.stat(_name(path), dir_fd=self.folder(parent_of(path)), follow_symlinks=False)
        except FileNotFoundError:
            return None

    def digest(self, path: str) -> str:
        """SHA-256 of a regular file, hexadecimal.

        Raises:
            OSError: it is not there, or a symlink.
        """
        descriptor = os.open(_name(path), _READ_FLAGS, dir_fd=self.folder(parent_of(path)))
        try:
            return hash_descriptor(descriptor)[0]
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def new_file(self, path: str, *, replace: bool) -> Iterator[int]:
        """A new, empty file to be written; it is removed again if the block raises.

        Args:
            path: of the file; missing parents are made.
            replace: write beside it and put it in its place at the end, so that a program that reads or has mapped the
                old file keeps it whole. False: it must not be there yet.

        Raises:
            WorkspaceError: it is there already, or a parent is no folder.
        """
        name = _name(path)
        folder = self.folder(parent_of(path), create=True)
        written = f".gpulayer-{secrets.token_hex(8)}.tmp" if replace else name
        try:
            descriptor = os.open(written, _CREATE_FLAGS, 0o600, dir_fd=folder)
        except FileExistsError:
            raise WorkspaceError(f"{shown(path)} is in the workspace already; give an empty folder") from None
        try:
            try:
                yield descriptor
            finally:
                os.close(descriptor)
            if replace:
                os.rename(written, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(written, dir_fd=folder)
            raise

    def set_mode(self, path: str, mode: int) -> None:
        """Change the mode of a regular file; nothing else is touched.

        Raises:
            OSError: it is not there, or a symlink.
        """
        descriptor = os.open(_name(path), _READ_FLAGS, dir_fd=self.folder(parent_of(path)))
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    def unlink(self, path: str) -> None:
        """Remove a file."""
        os.unlink(_name(path), dir_fd=self.folder(parent_of(path)))

    def remove_if_empty(self, path: str) -> bool:
        """Remove a folder if nothing is in it; whether it is gone. Something else in its place stays."""
        try:
            above = self.folder(parent_of(path))
            os.rmdir(_name(path), dir_fd=above)
        except FileNotFoundError:
            return True
        except (Obstructed, NotADirectoryError):
            return False
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                return False
            raise
        return True

    def below(self, path: str) -> Iterator[tuple[str, bool]]:
        """All that lies in a folder, at any depth: path, and whether it is a folder (symlinks are not)."""
        pending = [path]
        while pending:
            here = pending.pop()
            with os.scandir(self.folder(here)) as entries:
                listed = [(f"{here}/{entry.name}", entry.is_dir(follow_symlinks=False)) for entry in entries]
            yield from listed
            pending += [name for name, is_dir in listed if is_dir]

    def _close_below(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _open_folder(above: int, parts: list[str], index: int, create: bool) -> int:
    name = parts[index]
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=above)
    try:
        return os.open(name, _FOLDER_FLAGS, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, getattr(errno, "EMLINK", None)):
            raise Obstructed("/".join(parts[: index + 1])) from None
        raise


def _write_all(target: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(target, left) :]
