"""What travels with a command: its source folder and its inputs, as one bundle.

Inputs are entries of the bundle at the path that they get there; the source's ignore rules and limits are not theirs.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpulayer.client.sending import LIMITS, Sender, SourceRefused
from gpulayer.source import Bundle, DigestCache, FileEntry, Limits, Manifest, ManifestError, SourceError
from gpulayer.source.errors import shown
from gpulayer.source.ignore import literal
from gpulayer.source.manifest import check_entry
from gpulayer.source.secrets import secret_name

_NO_FILES = Manifest(())


@dataclass(frozen=True, kw_only=True)
class Input:
    """A file or folder that travels, and where it lies then."""

    source: str  # here
    target: str  # below the job's folder, with '/'; '' for a folder whose content lies in that folder itself


@dataclass(frozen=True, kw_only=True)
class Source:
    """A folder that travels, and what of it does not."""

    folder: str
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    limits: Limits = LIMITS


# ---------------------------------------------------------------- SRC:DST


def parse_input(text: str, *, windows: bool = sys.platform == "win32") -> Input:
    """'SRC', or 'SRC:DST', as an input. Without DST it gets the last part of SRC as its name.

    A colon may be in either: of all ways to read the text, the first is taken whose SRC is there, from the whole text
    on to shorter ones. On Windows the colon behind a drive's letter parts nothing.

    Raises `SourceRefused` where no SRC is there, or DST leaves the job's folder.
    """
    places = [
        at for at, letter in enumerate(text) if letter == ":" and not (windows and at == 1 and text[:1].isalpha())
    ]
    for at in reversed(places):
        if os.path.exists(text[:at]) and not os.path.exists(text):
            return Input(source=text[:at], target=checked_target(text, text[at + 1 :], text[:at]))
    if not os.path.exists(text):
        missing = text[: places[-1]] if places else text
        raise SourceRefused(f"input {shown(missing)} is not there; write --input SRC:DST, SRC a file or folder here")
    return Input(source=text, target=checked_target(text, "", text))


def checked_target(text: str, target: str, source: str) -> str:
    """Where an input lies below the job's folder. Raises `SourceRefused`; `text` is what a person wrote."""
    name = os.path.basename(os.path.abspath(source))
    if target.endswith("/") and target.strip("/") not in ("", "."):
        target += name  # into a folder
    parts = [part for part in (target or name).split("/") if part != "."]
    while parts and not parts[-1]:
        parts.pop()
    if ".." in parts or os.path.isabs(target) or (parts and not parts[0]):
        advice = f"write a path below it, like {shown('data/' + (name or 'x'))}"
        raise SourceRefused(f"--input {shown(text)}: an input can't lie outside the job's folder; {advice}")
    return "/".join(part for part in parts if part)


# ---------------------------------------------------------------- one bundle


def bundle_of(sender: Sender, source: Source | None, inputs: Sequence[Input]) -> Bundle | None:
    """The source folder and the inputs as one bundle; None where nothing travels. Raises `SourceRefused`."""
    base = None
    if source is not None:
        folder = os.path.expanduser(source.folder)
        base = sender.scan(
            folder,
            include=source.include,
            exclude=(*source.exclude, *named_by_itself(folder, inputs, source.limits)),
            limits=source.limits,
            notebooks=True,
        )
    return with_inputs(sender, base, inputs) if inputs else base


def named_by_itself(folder: str, inputs: Sequence[Input], limits: Limits) -> tuple[str, ...]:
    """Globs of what lies in a source folder and travels as an input: the folder's rules and limits are not for it.

    Of what gets another place than it has in the folder, only what the folder could not carry anyway.
    """
    root = os.path.realpath(folder)
    globs: list[str] = []
    for each in inputs:
        source = os.path.realpath(os.path.expanduser(each.source))
        path = os.path.relpath(source, root).replace(os.sep, "/")
        if path.startswith("../") or path in (".", ".."):
            continue
        if path == each.target or (os.path.isfile(source) and os.path.getsize(source) > limits.file_bytes):
            globs.append("/" + literal(path))
    return tuple(globs)


def with_inputs(sender: Sender, base: Bundle | None, inputs: Sequence[Input]) -> Bundle:
    """A bundle with inputs beside it. Raises `SourceRefused`."""
    try:
        return _with_inputs(base, inputs, sender.cache)
    except SourceError as error:
        raise SourceRefused(str(error)) from error
    finally:
        sender.remember()


def _with_inputs(base: Bundle | None, inputs: Sequence[Input], cache: DigestCache) -> Bundle:
    taken = _Taken(cache)
    for each in inputs:
        taken.add(each)
    if base is None:
        return Bundle(
            root=Path.cwd(),
            manifest=_manifest(taken.entries.values()),
            exclusions=(),
            source_of=taken.source_of,
            scanned_files=len(taken.entries),
        )
    others = (entry for entry in base.manifest.files if entry.path not in taken.entries)
    kept = [entry for entry in others if entry.kind == "file" or entry.path not in taken.folders]
    return replace(
        base,
        manifest=_manifest([*kept, *taken.entries.values()]),
        source_of={**taken.source_of, **base.source_of},
        stamps=None,
    )


def _manifest(entries: Iterable[FileEntry]) -> Manifest:
    try:
        return Manifest(entries)
    except ManifestError as error:
        text = str(error).removeprefix("manifest entry ")
        raise SourceRefused(f"an input can't lie there: {text}; give it another place with --input SRC:DST") from error


@dataclass(kw_only=True)
class _Inputs:
    entries: dict[str, FileEntry] = field(default_factory=dict[str, FileEntry])
    source_of: dict[str, str] = field(default_factory=dict[str, str])
    folders: set[str] = field(default_factory=set[str])  # parents of entries


class _Taken(_Inputs):
    """The inputs' files, as they were read."""

    def __init__(self, cache: DigestCache) -> None:
        super().__init__()
        self._cache = cache
        self._by: dict[str, str] = {}  # path -> the input that brought it

    def add(self, given: Input) -> None:
        """Read one input. Raises `SourceError`."""
        source = os.path.realpath(os.path.expanduser(given.source))
        try:
            status = os.stat(source)
        except OSError as error:
            raise SourceRefused(f"input {shown(given.source)} can't be read: {error.strerror}") from error
        if stat.S_ISDIR(status.st_mode):
            for path, file in _walk(source, given):
                self._take("/".join(filter(None, (given.target, path))), file, given)
        elif not given.target:
            raise SourceRefused(f"input {shown(given.source)} is a file: name it too, like --input SRC:data/x.csv")
        else:
            self._take(given.target, source, given)

    def _take(self, path: str, file: str, given: Input) -> None:
        """A file, or, with '' for it, an empty folder."""
        earlier = self._by.setdefault(path, given.source)
        if earlier != given.source:
            raise SourceRefused(f"inputs {shown(earlier)} and {shown(given.source)} would both be {shown(path)}")
        entry = self._read(path, file) if file else FileEntry(path=path, mode=0o755, size=0, sha256="", kind="dir")
        check_entry(entry)
        self.entries[path] = entry
        while path := path.rpartition("/")[0]:
            self.folders.add(path)

    def _read(self, path: str, file: str) -> FileEntry:
        try:
            status = os.stat(file)
            if not stat.S_ISREG(status.st_mode):
                raise SourceRefused(f"input {shown(file)} is no regular file (a socket, a pipe or a device)")
            known = self._cache.lookup(file, status)
            if known is None:
                hashed = self._cache.hash(file, keep=False)
                self._cache.remember(file, hashed)
                size, sha256 = hashed.stat.st_size, hashed.sha256
            else:
                size, sha256 = known.size, known.sha256
        except FileNotFoundError:
            raise SourceRefused(f"input {shown(file)} is gone; run it again") from None
        self.source_of[sha256] = file
        mode = 0o755 if status.st_mode & 0o100 and sys.platform != "win32" else 0o644
        return FileEntry(path=path, mode=mode, size=size, sha256=sha256)


def _walk(root: str, given: Input) -> Iterator[tuple[str, str]]:
    """Everything below a folder that a person named: (path below it with '/', the file with no symlink in it).

    Symlinks count as what they point at. An empty folder comes with '' for its file.
    """
    pending: list[tuple[str, str, frozenset[str]]] = [(root, "", frozenset((root,)))]
    while pending:
        folder, prefix, above = pending.pop()
        try:
            with os.scandir(folder) as listed:
                entries = list(listed)
        except OSError as error:
            text = f"{shown(prefix.rstrip('/') or given.source)} of input {shown(given.source)} can't be listed"
            raise SourceRefused(f"{text}: {error.strerror}") from error
        if not entries and prefix:
            yield prefix.rstrip("/"), ""
        for entry in entries:
            path = prefix + entry.name
            real = os.path.realpath(entry.path) if entry.is_symlink() else entry.path
            if os.path.isdir(real):
                if real in above:
                    raise SourceRefused(f"{shown(path)} of input {shown(given.source)} links to a folder that it is in")
                pending.append((real, path + "/", above | {real}))
            else:
                yield _file(path, real, given)


def _file(path: str, real: str, given: Input) -> tuple[str, str]:
    if not os.path.exists(real):
        raise SourceRefused(f"{shown(path)} of input {shown(given.source)} is a link that points nowhere; remove it")
    what = secret_name(real.replace(os.sep, "/")) or secret_name(path)
    if what is not None:
        alone = f"to send it, name it by itself: --input {shown(real)}:PATH"
        raise SourceRefused(f"{shown(path)} of input {shown(given.source)} looks like a secret ({what}); {alone}")
    return path, real
