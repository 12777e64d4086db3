"""Files that a cell made or changed in its workspace, by the globs of `--output`.

Globs have gitignore's syntax, as everywhere here: `*.csv` at any depth, `results/*.csv` there only, `results/` with all
that is in it, and the last one that matches decides (`!*.tmp`). Symlinks are neither followed nor taken.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from gpulayer.source.digests import hash_file
from gpulayer.source.errors import SourceChanged, SourceError, SourceTooLarge, shown
from gpulayer.source.ignore import Rule, compile_lines
from gpulayer.source.manifest import FileEntry, Manifest
from gpulayer.source.scan import Limits

__all__ = ["MOST_FILES", "Globs", "Stamp", "collect", "stamps"]

MOST_FILES = Limits().files

_NEVER_ENTERED = frozenset({".git", "__pycache__", ".ipynb_checkpoints"})
_OURS = ".gpulayer-"  # files of ours that are being written

Stamp = tuple[int, int, int, int]
"""By which a file is known again: size in bytes, mtime and ctime in nanoseconds, inode."""


class Globs:
    """Some globs, each of which can be asked whether it matched."""

    def __init__(self, globs: Iterable[str]) -> None:
        self.globs = tuple(globs)
        self._rules = [(glob, compile_lines((glob.removeprefix("./"),)).rules) for glob in self.globs]

    def match(self, path: str) -> bool:
        """Whether the last glob that matches the file at `path`, or a folder above it, wants it."""
        for _, rules in reversed(self._rules):
            for rule in rules:
                if _matches(rule, path):
                    return not rule.negated
        return False

    def without_match(self, paths: Iterable[str]) -> list[str]:
        """The globs that ask for files and match none of `paths`."""
        known = list(paths)
        return [
            glob
            for glob, rules in self._rules
            if not any(rule.negated for rule in rules)
            and not any(_matches(rule, path) for rule in rules for path in known)
        ]


def _matches(rule: Rule, path: str) -> bool:
    parts = path.split("/")
    for depth, name in enumerate(parts, 1):
        if rule.folders_only and depth == len(parts):
            continue
        if rule.matches(name if rule.by_name else "/".join(parts[:depth])):
            return True
    return False


def stamps(root: str, globs: Globs) -> dict[str, Stamp]:
    """How each file that the globs match is now, by its path below `root`. Raises `SourceError`."""
    found: dict[str, Stamp] = {}
    pending = [""]
    while pending:
        prefix = pending.pop()
        for entry in _listed(root, prefix):
            path = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NEVER_ENTERED:
                    pending.append(path + "/")
            elif entry.is_file(follow_symlinks=False) and not entry.name.startswith(_OURS) and globs.match(path):
                try:
                    found[path] = _stamp(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue  # it has just been removed
    return found


def collect(root: str, globs: Globs, before: Mapping[str, Stamp]) -> Manifest:
    """The files that the globs match and that are not as they were.

    Args:
        root: the workspace's folder.
        globs: which files.
        before: what `stamps` said before the cell.

    Raises:
        SourceChanged: a file changes while it is read.
        SourceTooLarge: more than `MOST_FILES`.
        SourceError: a file or folder that can't be read, or whose name can't travel.
    """
    changed = [path for path, stamp in stamps(root, globs).items() if before.get(path) != stamp]
    if len(changed) > MOST_FILES:
        raise SourceTooLarge(f"--output matches {len(changed)} files, at most {MOST_FILES} come back: narrow it")
    entries: list[FileEntry] = []
    for path in changed:
        try:
            hashed = hash_file(os.path.join(root, path))
        except FileNotFoundError:
            continue
        except SourceChanged as error:
            raise SourceChanged(
                f"{shown(path)} changes while it is read: let the cell wait for what writes it"
            ) from error
        except SourceError as error:
            raise SourceError(f"{shown(path)} cannot be read") from error
        mode = 0o755 if hashed.stat.st_mode & stat.S_IXUSR else 0o644
        entries.append(FileEntry(path=path, mode=mode, size=hashed.stat.st_size, sha256=hashed.sha256))
    return Manifest(entries)


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _listed(root: str, prefix: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(os.path.join(root, prefix)) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise SourceError(f"folder {shown(prefix or root)} cannot be listed: {error.strerror}") from error
