"""From a manifest to a workspace: written whole for a fresh one, changed file by file for a session's.

Each file is a reflink or a copy of its cached blob, never a hard link: a program that appends to a file must not write
into the cache. Symlinks inside the workspace are never followed.

A file's mtime is set two seconds back. So any later write by a program shows in its stamp, even within one tick of a
coarse clock; and each new version of a file gets another whole second than the one before, since Python takes a cached
.pyc for current when size and whole-second mtime agree.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from gpulayer.source.blobs import Span
from gpulayer.source.errors import SourceConflict, WorkspaceError
from gpulayer.source.manifest import FileEntry, Manifest
from gpulayer.source.tree import BlobCopier, Obstructed, Tree, parent_of

__all__ = ["Written", "materialize", "synchronize"]

Written = dict[str, tuple[int, int]]
"""By path: size in bytes and mtime in nanoseconds, as we left each file."""

Find = Callable[[str], "Path | Span | None"]
"""Where the blob with a digest is, already checked against it: a file of its own, or a part of one."""

_SECOND_NS = 1_000_000_000
_BACK_NS = 2 * _SECOND_NS


def materialize(manifest: Manifest, target: Path, find: Find) -> Written:
    """Write a workspace.

    Args:
        manifest: what to write.
        target: the workspace's folder, made if missing; none of the manifest's files may be in it yet.
        find: where each blob is.

    Returns:
        How each file was left, for `synchronize`.

    Raises:
        WorkspaceError: a file is there already, a symlink or file stands where a folder should be, or a blob is missing
            or of another size. What was written so far stays; remove the folder.
        OSError: the disk is full, and the like.
    """
    target.mkdir(parents=True, exist_ok=True)
    written: Written = {}
    with Tree(target) as tree, BlobCopier(find) as blobs:
        for entry in manifest.files:
            if entry.kind == "dir":
                tree.folder(entry.path, create=True)
            else:
                written[entry.path] = _write(tree, blobs, entry, replace=False, previous_ns=None)
    return written


def synchronize(
    old: Manifest,
    new: Manifest,
    target: Path,
    find: Find,
    written: Mapping[str, tuple[int, int]],
) -> Written:
    """Bring a session's workspace from one manifest to the next; what did not change at home is not touched.

    A file that changed (or came) at home is written, unless it is in the workspace with content that is neither the old
    nor the new one: then nothing at all is done. A file that is gone at home is removed if it is as we wrote it, and
    kept otherwise. A file that a program deleted comes back when it changes at home. What programs made stays.

    Args:
        old: what the workspace was brought to before.
        new: what it shall be brought to.
        target: the workspace's folder.
        find: where each blob is.
        written: what the last call of `materialize` or `synchronize` returned.

    Returns:
        How each file was left, for the next call. After an error the same call can be made again.

    Raises:
        SourceConflict: files that changed on both sides; nothing was touched.
        WorkspaceError, OSError: as `materialize`.
    """
    with Tree(target) as tree, BlobCopier(find) as blobs:
        plan = _Planner(tree, old, new, written).plan()
        if plan.conflicts:
            raise SourceConflict(plan.conflicts)
        return _carry_out(tree, plan, new, blobs, written)


class _State(Enum):
    """What stands at a path of the workspace, seen from the manifests."""

    ABSENT = "absent"
    OURS = "as we wrote it, or with the old content"
    NEW = "with the new content already"
    CHANGED = "other content, or no regular file"
    FOLDER = "a folder"
    OBSTRUCTED = "a part of the path is no folder"


@dataclass(kw_only=True)
class _Plan:
    removed: list[str] = field(default_factory=list)  # files
    given_up: list[str] = field(default_factory=list)  # gone at home, changed here: they are the program's now
    folders_removed: list[str] = field(default_factory=list)  # if empty
    folders_made: list[str] = field(default_factory=list)
    written: list[FileEntry] = field(default_factory=list)
    moded: list[FileEntry] = field(default_factory=list)  # only the mode differs
    right_already: list[FileEntry] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)


class _Planner:
    """Looks, and touches nothing."""

    def __init__(self, tree: Tree, old: Manifest, new: Manifest, written: Mapping[str, tuple[int, int]]) -> None:
        self._tree = tree
        self._old = old.by_path
        self._new = new.by_path
        self._written = written
        self._plan = _Plan()
        self._going: set[str] = set()  # files and folders of ours that will be gone

    def plan(self) -> _Plan:
        """What to do to the workspace, or which files are in the way."""
        old, new = self._old, self._new
        # Both hold thousands of entries, of which few differ.
        for entry in [entry for path, entry in old.items() if new.get(path) != entry]:
            successor = new.get(entry.path)
            if successor is None or successor.kind != entry.kind:
                self._plan_removal(entry.path, entry)
        if self._going:
            self._plan_folders()
        for entry in [entry for path, entry in new.items() if old.get(path) != entry]:
            path, previous = entry.path, old.get(entry.path)
            if entry.kind == "dir":
                self._plan_folder(path)
            elif previous is not None and previous.kind == "file" and previous.sha256 == entry.sha256:
                self._plan_mode(entry)
            else:
                self._plan_file(entry, previous)
        return self._plan

    def _plan_removal(self, path: str, entry: FileEntry) -> None:
        if entry.kind == "dir":
            self._going.add(path)
            return
        state = self._look(path, entry, None)
        if state is _State.OURS:
            self._plan.removed.append(path)
            self._going.add(path)
        else:
            self._plan.given_up.append(path)

    def _plan_folders(self) -> None:
        """Folders that held what goes and hold nothing that stays."""
        staying: set[str] = set()
        for path, entry in self._new.items():
            staying.update(_parents(path))
            if entry.kind == "dir":
                staying.add(path)
        for path in list(self._going):
            self._going.update(parent for parent in _parents(path) if parent not in staying)
        going = self._going.difference(self._plan.removed)
        self._plan.folders_removed = sorted(going, key=lambda path: path.count("/"), reverse=True)

    def _plan_folder(self, path: str) -> None:
        state = self._look(path, None, None)
        in_the_way = state is _State.CHANGED and path not in self._going
        if in_the_way or (state is _State.OBSTRUCTED and not self._way_will_be_free(path)):
            self._plan.conflicts.append(path)
        else:
            self._plan.folders_made.append(path)

    def _plan_mode(self, entry: FileEntry) -> None:
        status = self._status(entry.path)
        if isinstance(status, os.stat_result) and stat.S_ISREG(status.st_mode):
            self._plan.moded.append(entry)

    def _plan_file(self, entry: FileEntry, previous: FileEntry | None) -> None:
        state = self._look(entry.path, previous, entry)
        if state is _State.NEW:
            self._plan.right_already.append(entry)
        elif (
            state is _State.CHANGED
            or (state is _State.OBSTRUCTED and not self._way_will_be_free(entry.path))
            or (state is _State.FOLDER and not self._folder_will_be_gone(entry.path))
        ):
            self._plan.conflicts.append(entry.path)
        else:
            self._plan.written.append(entry)

    def _look(self, path: str, previous: FileEntry | None, wanted: FileEntry | None) -> _State:
        status = self._status(path)
        if isinstance(status, _State):
            return status
        if stat.S_ISDIR(status.st_mode):
            return _State.FOLDER
        if not stat.S_ISREG(status.st_mode):
            return _State.CHANGED
        if self._written.get(path) == (status.st_size, status.st_mtime_ns):
            return _State.OURS
        if not any(entry is not None and entry.size == status.st_size for entry in (previous, wanted)):
            return _State.CHANGED
        digest = self._tree.digest(path)
        if wanted is not None and digest == wanted.sha256:
            return _State.NEW
        if previous is not None and digest == previous.sha256:
            return _State.OURS
        return _State.CHANGED

    def _status(self, path: str) -> os.stat_result | _State:
        try:
            return self._tree.status(path) or _State.ABSENT
        except Obstructed:
            return _State.OBSTRUCTED

    def _way_will_be_free(self, path: str) -> bool:
        try:
            self._tree.status(path)
        except Obstructed as obstructed:
            return obstructed.at in self._going
        return True

    def _folder_will_be_gone(self, path: str) -> bool:
        return path in self._going and all(name in self._going for name, _ in self._tree.below(path))


def _carry_out(
    tree: Tree, plan: _Plan, new: Manifest, blobs: BlobCopier, written: Mapping[str, tuple[int, int]]
) -> Written:
    result = {path: left for path, left in written.items() if path in new.by_path}
    for path in plan.removed:
        tree.unlink(path)
    for path in plan.folders_removed:
        tree.remove_if_empty(path)
    for path in (*plan.removed, *plan.given_up):
        result.pop(path, None)
    for path in plan.folders_made:
        tree.folder(path, create=True)
    for entry in plan.moded:
        tree.set_mode(entry.path, entry.mode)
    for entry in plan.right_already:
        tree.set_mode(entry.path, entry.mode)
        status = tree.status(entry.path)
        if status is not None:
            result[entry.path] = (status.st_size, status.st_mtime_ns)
    for entry in plan.written:
        previous = written.get(entry.path)
        result[entry.path] = _write(tree, blobs, entry, replace=True, previous_ns=previous[1] if previous else None)
    return result


def _write(
    tree: Tree, blobs: BlobCopier, entry: FileEntry, *, replace: bool, previous_ns: int | None
) -> tuple[int, int]:
    with tree.new_file(entry.path, replace=replace) as descriptor:
        blobs.copy(entry.sha256, descriptor)
        os.fchmod(descriptor, entry.mode)
        stamp_ns = time.time_ns() - _BACK_NS
        if previous_ns is not None:
            stamp_ns = max(stamp_ns, (previous_ns // _SECOND_NS + 1) * _SECOND_NS)
        os.utime(descriptor, ns=(stamp_ns, stamp_ns))
        status = os.fstat(descriptor)
        if status.st_size != entry.size:
            raise WorkspaceError(
                f"blob {entry.sha256[:12]} in the cache has {status.st_size} bytes, the manifest says {entry.size}; "
                "fetch it again"
            )
    return status.st_size, status.st_mtime_ns


def _parents(path: str) -> list[str]:
    parents = []
    while path := parent_of(path):
        parents.append(path)
    return parents
