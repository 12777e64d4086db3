"""From a source folder to a bundle: walk, check, take the digests that are not known yet.

A scan runs before every cell, so an unchanged folder costs one `lstat` per file, and one in which files changed costs
the reading of these; see `Stamps`.
"""

from __future__ import annotations

import heapq
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

from gpulayer.source.digests import READ_AT_ONCE_BYTES, DigestCache
from gpulayer.source.errors import SecretRefused, SourceError, SourceTooLarge, shown
from gpulayer.source.ignore import Exclusion, literal
from gpulayer.source.manifest import FileEntry, Manifest
from gpulayer.source.secrets import secret_content, wants_content
from gpulayer.source.stamps import Asked, Stamps
from gpulayer.source.walk import Found, Rules, Secret, Walk

__all__ = ["Bundle", "Limits", "scan"]

HELD_BYTES = 64_000_000
"""Of files that were just read for their digests: so much is kept for the upload that mostly follows."""

_LISTED = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a bundle may carry; each limit's flag is in the error that it causes."""

    bundle_bytes: int = 200_000_000  # --max-bundle
    file_bytes: int = 50_000_000  # --max-file
    files: int = 100_000  # --max-files

    def __post_init__(self) -> None:
        for name in ("bundle_bytes", "file_bytes", "files"):
            if getattr(self, name) < 0:
                raise ValueError(f"Limits.{name} is {getattr(self, name)}; it cannot be negative")


@dataclass(frozen=True, kw_only=True, slots=True)
class Bundle:
    """A source folder at one moment."""

    root: Path  # absolute, no symlink in it
    manifest: Manifest
    exclusions: tuple[Exclusion, ...]  # sorted by path
    source_of: Mapping[str, str]  # digest -> absolute path of a file with this content
    scanned_files: int  # files seen, those left out one by one included
    # By digest, of small files that this scan read: who sends the bundle need not read them again. Whoever asked for
    # the scan clears it, once the bundle is sent or known.
    contents: dict[str, bytes] = field(default_factory=dict[str, bytes], repr=False, compare=False)
    stamps: Stamps | None = field(default=None, repr=False, compare=False)  # by which the next scan knows it again

    def why_left_out(self, path: str) -> Exclusion | None:
        """The record why a file does not travel, or None if it travels or is not known.

        Args:
            path: relative to the root, POSIX slashes; a file below a folder that was left out has the folder's record.
        """
        if path in self.manifest.by_path:
            return None
        records = {exclusion.path: exclusion for exclusion in self.exclusions}
        while path:
            if path in records:
                return records[path]
            path = path.rpartition("/")[0]
        return None


def scan(
    root: Path | str,
    *,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    limits: Limits = Limits(),
    cache: DigestCache | None = None,
    explicit: bool = False,
    notebooks: bool = False,
    previous: Bundle | None = None,
) -> Bundle:
    """Scan a source folder.

    Args:
        root: the folder.
        include: globs (gitignore syntax, relative to the root) that travel although an ignore file or a default leaves
            them out; a glob that names a secret allows it. See `Includes`.
        exclude: globs that do not travel, whatever else says so.
        limits: what the bundle may carry.
        cache: digests known from earlier scans, updated; None: every file is read.
        explicit: a person named this folder (`--source`), so it may be the home folder or `/`.
        notebooks: whether `*.ipynb` travels. Not with cells and functions: autosave would change every bundle.
        previous: what an earlier scan gave; it is given again if it is of this folder and nothing has changed.

    Raises:
        SourceError: no such folder; the home folder or `/`, not `explicit`; a file that cannot be read.
        SymlinkRefused, SecretRefused, SourceTooLarge, SourceChanged: see there. The scan stops at the limit.
    """
    asked = Asked(os.fspath(root), explicit, _globs("include", include), _globs("exclude", exclude), limits, notebooks)
    started_ns = time.time_ns()
    if previous is not None and previous.stamps is not None:
        differences = previous.stamps.differences(asked)
        if differences == []:
            return previous
        renewed = previous.stamps.renewed(differences, started_ns) if differences else None
        again = _patched(previous, *renewed, asked, limits, cache) if renewed else None
        if again is not None:
            return again
    rules = Rules.of(asked.include, asked.exclude, notebooks)
    walk = Walk(_checked_root(root, explicit), rules)
    found = _within_limits(walk, limits)
    reader = _Reader(cache, rules, walk.secrets)
    files, source_of = reader.read(found)
    if walk.secrets:
        raise _secret_error(walk.secrets)
    empty = (FileEntry(path=path, mode=0o755, size=0, sha256="", kind="dir") for path in walk.empty_folders())
    return Bundle(
        root=Path(walk.root),
        manifest=Manifest.trusted([*files, *empty]),
        exclusions=tuple(sorted(walk.exclusions, key=lambda exclusion: exclusion.path)),
        source_of=source_of,
        scanned_files=walk.scanned,
        contents=reader.contents,
        stamps=Stamps.of(walk, found, asked, started_ns),
    )


def _patched(
    previous: Bundle, stamps: Stamps, changed: list[Found], asked: Asked, limits: Limits, cache: DigestCache | None
) -> Bundle | None:
    """The bundle with some files read again; None where only a walk can tell, and say what is wrong."""
    secrets: list[Secret] = []
    reader = _Reader(cache, Rules.of(asked.include, asked.exclude, asked.notebooks), secrets)
    files, source_of = reader.read(changed)
    if secrets or len(files) < len(changed) or any(entry.size > limits.file_bytes for entry in files):
        return None
    manifest = previous.manifest.replaced(files)
    if manifest.total_bytes > limits.bundle_bytes:
        return None
    sources = {**previous.source_of, **source_of}
    places = {item.source for item in changed}
    for digest in [digest for digest, source in previous.source_of.items() if source in places]:
        # Another file may have the content that a changed one had.
        same = next((entry.path for entry in manifest.files if entry.sha256 == digest), None)
        if same is None:
            del sources[digest]
        else:
            sources[digest] = os.path.join(previous.root, same)
    return replace(previous, manifest=manifest, source_of=sources, stamps=stamps, contents=reader.contents)


class _Reader:
    """Takes digests, and looks into the few files whose content says whether they are secrets."""

    def __init__(self, cache: DigestCache | None, rules: Rules, secrets: list[Secret]) -> None:
        self._cache = cache if cache is not None else DigestCache()
        self._rules = rules
        self._secrets = secrets
        self._held_bytes = 0
        self.contents: dict[str, bytes] = {}

    def read(self, found: list[Found]) -> tuple[list[FileEntry], dict[str, str]]:
        files: list[FileEntry] = []
        source_of: dict[str, str] = {}
        lookup, on_windows = self._cache.lookup, sys.platform == "win32"
        for item in found:
            path, source, status = item
            known = lookup(source, status)
            if known is None or (not known.clean and wants_content(source, status.st_size)):
                try:
                    size, sha256 = self._hash(item)
                except FileNotFoundError:  # gone since the walk: then it does not travel
                    continue
            else:
                size, sha256 = known.size, known.sha256
            mode = 0o755 if status.st_mode & 0o100 and not on_windows else 0o644
            files.append(FileEntry(path=path, mode=mode, size=size, sha256=sha256))
            source_of[sha256] = source
        return files, source_of

    def _hash(self, item: Found) -> tuple[int, str]:
        size = item.status.st_size
        looked_at = wants_content(item.source, size)
        held = size < READ_AT_ONCE_BYTES and self._held_bytes + size <= HELD_BYTES
        hashed = self._cache.hash(item.source, keep=looked_at or held)
        what = secret_content(item.source, hashed.content) if looked_at and hashed.content is not None else None
        if held and hashed.content is not None:
            self._held_bytes += len(hashed.content)
            self.contents[hashed.sha256] = hashed.content
        # What has nothing to be looked at counts as looked at.
        self._cache.remember(item.source, hashed, clean=what is None)
        if what is not None and not self._rules.include.names(item.path, item.path.rpartition("/")[2], False):
            self._secrets.append(Secret(item.path, what))
        return hashed.stat.st_size, hashed.sha256


def _within_limits(walk: Walk, limits: Limits) -> list[Found]:
    found: list[Found] = []
    large: list[Found] = []
    total = 0
    for batch in walk.files():
        for item in batch:
            size = item.status.st_size
            if size > limits.file_bytes:
                large.append(item)
            else:
                total += size
                found.append(item)
        if total > limits.bundle_bytes:
            raise _bundle_error([*found, *large], limits)
        if len(found) + len(large) > limits.files:
            raise _count_error([*found, *large], limits)
    # Before secrets are named: a person sees all of them at once, and nothing has been read yet.
    if walk.secrets:
        raise _secret_error(walk.secrets)
    if large:
        raise _large_error(large, limits)
    return found


def _large_error(large: list[Found], limits: Limits) -> SourceTooLarge:
    largest = max(large, key=_size)
    it = "it" if len(large) == 1 else "them"
    return SourceTooLarge(
        f"{_largest(large)}: larger than {_human(limits.file_bytes)}, the limit for one file; leave {it} out with "
        f"--exclude {quote(literal(largest.path))}, allow {it} with --max-file {_rounded_up(_size(largest))}, or send "
        f"what the job needs by itself: --input {_as_input(largest)}"
    )


def _as_input(item: Found) -> str:
    """SRC, or SRC:DST, with which a file gets the place that it has in the folder."""
    name = item.path.rpartition("/")[2]
    source = item.source.removeprefix(os.path.join(os.path.realpath(os.getcwd()), ""))
    same = name == item.path and os.path.basename(source) == name
    return quote(source if same else f"{source}:{item.path}")


def _bundle_error(found: list[Found], limits: Limits) -> SourceTooLarge:
    return SourceTooLarge(
        f"the source folder holds more than {_human(limits.bundle_bytes)}, the limit for a bundle (the scan stopped "
        f"there); the largest: {_largest(found)}; leave data out with --exclude or .gpulayerignore, or allow it with "
        "--max-bundle"
    )


def _count_error(found: list[Found], limits: Limits) -> SourceTooLarge:
    folders = Counter(item.path.rpartition("/")[0] or "." for item in found)
    fullest = ", ".join(f"{shown(folder)} ({count} files)" for folder, count in folders.most_common(_LISTED))
    return SourceTooLarge(
        f"the source folder holds more than {limits.files} files, the limit for a bundle (the scan stopped there); the "
        f"fullest folders: {fullest}; leave them out with --exclude or .gpulayerignore, or allow it with --max-files"
    )


def _secret_error(secrets: list[Secret]) -> SecretRefused:
    listed = ", ".join(f"{shown(secret.path)} ({secret.what})" for secret in secrets[:_LISTED])
    more = f" and {len(secrets) - _LISTED} more" if len(secrets) > _LISTED else ""
    first = quote(literal(secrets[0].path))
    return SecretRefused(
        f"not sent, looks like a secret: {listed}{more}; leave it out with --exclude {first} or in .gpulayerignore, or "
        f"allow it with --include {first}"
    )


def _largest(found: list[Found]) -> str:
    return ", ".join(
        f"{shown(item.path)} ({_human(item.status.st_size)})" for item in heapq.nlargest(_LISTED, found, key=_size)
    )


def _size(item: Found) -> int:
    return item.status.st_size


def _human(size: int) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _rounded_up(size: int) -> str:
    """A size as an option takes it, no smaller: '52MB'."""
    unit, factor = ("MB", 10**6) if size >= 10**6 else ("kB", 10**3)
    return f"{-(-size // factor)}{unit}"


def _globs(name: str, globs: Iterable[str]) -> tuple[str, ...]:
    if isinstance(globs, str):
        raise SourceError(f"{name}={globs!r} is one text; give a list of globs: [{globs!r}]")
    return tuple(globs)


def _checked_root(root: Path | str, explicit: bool) -> str:
    try:
        folder = os.path.realpath(root, strict=True)
    except OSError as error:
        raise SourceError(
            f"source folder {shown(str(root))} cannot be used: {error.strerror}; name another with --source"
        ) from error
    if not os.path.isdir(folder):
        raise SourceError(f"source folder {shown(str(root))} is not a folder; name the folder that holds it")
    if not explicit:
        _refuse_broad(folder)
    return folder


def _refuse_broad(folder: str) -> None:
    advice = f"work in a folder of its own, or name it with --source {shown(folder)}"
    if os.path.dirname(folder) == folder:
        raise SourceError(f"the source folder is {folder}, the whole file system; {advice}")
    home = os.path.realpath(os.path.expanduser("~"))
    if folder == home:
        raise SourceError(f"the source folder is your home folder {shown(folder)}, nothing was sent; {advice}")
    if home.startswith(folder + os.sep):
        raise SourceError(f"the source folder {shown(folder)} holds your home folder, nothing was sent; {advice}")
