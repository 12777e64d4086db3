"""`--output`: files that a job made, into the folder that it was sent from, and nowhere else.

A file at home is replaced if it is what was sent, what came back before, or older than the job. One that changed
meanwhile stays: the new one is written beside it, as NAME.from-JOB. No symlink is followed or replaced.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpulayer.client.errors import GpulayerError
from gpulayer.client.transfer import Body, HowFar, Tell, Tie, check, download, megabytes, persist, told
from gpulayer.protocol.types import JobView
from gpulayer.source import FileEntry, Manifest, PackError, SourceError, read_pack, worth_compressing
from gpulayer.source.collect import Globs
from gpulayer.source.digests import hash_file
from gpulayer.source.pack import Pieces
from gpulayer.words import size

if TYPE_CHECKING:
    import httpx

    from gpulayer.client.asks import Output

_NAMED = 3  # of the files that came, in the line that says so
_TICK_NS = 20_000_000  # by so much a file's stamps may lag behind the clock
_MANIFEST_BYTES = 64_000_000
_COPY_BYTES = 1 << 20
_LARGE_BYTES = 8 << 20  # from here on a file travels by itself, and goes on where it broke


class FilesRefused(GpulayerError):
    """Files that can't be fetched, or not be written here: why."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """The folder that a job was sent from, as it was then."""

    root: Path
    sent: Manifest | None = None  # None: not known here, such as for another kernel's job
    sent_at_ns: int = 0  # Unix time
    globs: tuple[str, ...] | None = None  # what was asked for; None: not known here
    replaces: bool = False  # a person said so: whatever is there


@dataclass(kw_only=True)
class Came:
    """What came of a job's files, by paths below the folder."""

    work: str = "cell"  # what made them
    written: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])  # path, bytes
    here_already: list[str] = field(default_factory=list[str])
    beside: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # kept, and where the new one is
    refused: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # path, why
    unmatched: list[str] = field(default_factory=list[str])  # globs

    def lines(self) -> list[str]:
        """For people, one fact a line."""
        lines: list[str] = []
        if self.written:
            total = size(sum(count for _, count in self.written))
            lines.append(f"{_files(len(self.written))}, {total}: {_listed([path for path, _ in self.written])}")
        if self.here_already:
            lines.append(f"here already, the same: {_listed(self.here_already)}")
        lines += [f"{path} was changed here meanwhile: kept; the {self.work}'s is {new}" for path, new in self.beside]
        return lines

    def warnings(self) -> list[str]:
        """What somebody asked for and does not get."""
        lines = [f"{path} was not fetched: {why}" for path, why in self.refused]
        return lines + [f"--output {glob}: the {self.work} {_NO_SUCH[self.work]}" for glob in self.unmatched]


_NOT_ASKED = "no --output asked for it"
_NO_SUCH = {"cell": "made and changed no such file", "job": "left no such file"}


def _is_gits(path: str) -> bool:
    """Whether it lies in git's own folder, by any of the names under which file systems know that."""
    names = [name.rstrip(". ").lower() for name in path.split("/")]
    return ".git" in names or "git~1" in names


class Files:
    """Fetches files, and remembers which of them it wrote."""

    def __init__(self) -> None:
        self._ours: dict[str, str] = {}  # path on disk -> digest as it was written

    def fetch(self, job: JobView, home: Home, tie: Tie, tell: Tell) -> Came:
        """Fetch the files of a job that has ended.

        Args:
            job: as it ended.
            home: where to.
            tie: knows where the control plane is.
            tell: takes the line under the cell.

        Raises:
            FilesRefused: what came is no manifest, or the disk is full. `RequestRefused`, `ControlPlaneError`.
        """
        again = f"%gpulayer attach {job.id} fetches them"
        digest = job.outcome.files if job.outcome is not None else ""
        try:
            manifest = persist(tie, lambda client: _manifest(client, digest, tell), tell, _DOING, again)
            return _Delivery(job.id, home, manifest, self._ours).run(tie, tell, again)
        except SourceError as error:
            raise FilesRefused(f"the files of job {job.id} can't be taken: {error}") from error
        except OSError as error:
            raise FilesRefused(f"the files of job {job.id} can't be written here: {error}; then {again}") from error

    def fetch_outputs(self, job: JobView, outputs: Sequence[Output], home: Home, tie: Tie, tell: Tell) -> Came:
        """Fetch the files of a command that has ended, of an array's tasks into a folder JOB/INDEX each.

        Arguments and errors as of `fetch`; `outputs` are what the control plane lists.
        """
        again = f"gpulayer job download {job.id} fetches them"
        within = f"{job.id}/{{}}/" if job.tasks or any(each.index for each in outputs) else ""
        globs = Globs(home.globs) if home.globs is not None else None
        asked = [each for each in outputs if globs is None or globs.match(each.name)]
        try:
            manifest = Manifest(
                FileEntry(
                    path=within.format(each.index) + each.name, mode=each.mode, size=each.size, sha256=each.sha256
                )
                for each in asked
            )
            home.root.mkdir(parents=True, exist_ok=True)
            came = _Delivery(job.id, replace(home, globs=None), manifest, self._ours, "job").run(tie, tell, again)
        except SourceError as error:
            raise FilesRefused(f"the files of job {job.id} can't be taken: {error}") from error
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            raise FilesRefused(
                f"the files of job {job.id} can't be written here: {where}{error.strerror or error}; then {again}"
            ) from error
        if globs is not None:
            came.unmatched = globs.without_match(each.name for each in outputs)
            others = [within.format(each.index) + each.name for each in outputs if not globs.match(each.name)]
            came.refused += [(path, _NOT_ASKED) for path in others]
        return came


_DOING = "while the files were fetched"


def _manifest(client: httpx.Client, digest: str, tell: Tell) -> Manifest:
    if not digest:
        return Manifest(())

    def read(body: Body, size_bytes: int) -> bytes:
        if size_bytes > _MANIFEST_BYTES:
            raise PackError(f"their list has {size_bytes} bytes")
        data = bytearray(size_bytes)
        view, at = memoryview(data), 0
        while at < size_bytes and (count := body.readinto(view[at:])):
            at += count
        return bytes(data)

    return Manifest.from_bytes(download(client, digest, read, tell, "◐ fetching files"))


class _Delivery:
    """The files of one job, on their way into one folder."""

    def __init__(self, job: str, home: Home, manifest: Manifest, ours: dict[str, str], work: str = "cell") -> None:
        self._job = job
        self._home = home
        self._ours = ours
        self._came = Came(work=work)
        self._sent = home.sent.by_path if home.sent is not None else {}
        self._entries = list(self._wanted(manifest))
        self._uses: Counter[str] = Counter()  # of each digest, by files that are still to be written
        self._new = home.root / f".gpulayer-{secrets.token_hex(8)}.tmp"

    def _wanted(self, manifest: Manifest) -> Iterator[FileEntry]:
        """What was asked for, and can be written; a manifest's paths are relative and without '..' (it checks that)."""
        globs = Globs(self._home.globs) if self._home.globs is not None else None
        files = [entry for entry in manifest.files if entry.kind == "file"]
        if globs is not None:
            self._came.unmatched = globs.without_match(entry.path for entry in files)
        for entry in files:
            if globs is not None and not globs.match(entry.path):
                self._came.refused.append((entry.path, _NOT_ASKED))
            elif _is_gits(entry.path) or (os.name == "nt" and ":" in entry.path):
                self._came.refused.append((entry.path, "nothing is written there"))
            else:
                yield entry

    def run(self, tie: Tie, tell: Tell, again: str) -> Came:
        missing: dict[str, int] = {}
        for entry in self._entries:
            if not self._in_the_way(entry.path) and self._digest(entry.path) != entry.sha256:
                missing[entry.sha256] = entry.size
                self._uses[entry.sha256] += 1
        if missing:
            self._new.mkdir(mode=0o700)
        try:
            if missing:
                persist(tie, lambda client: self._get(client, missing, tell), tell, _DOING, again)
            for entry in self._entries:
                self._place(entry)
        finally:
            shutil.rmtree(self._new, ignore_errors=True)
        return self._came

    def _get(self, client: httpx.Client, missing: Mapping[str, int], tell: Tell) -> None:
        """Into a folder of ours; what came whole before a connection broke is not fetched again."""
        wanted = {digest: count for digest, count in missing.items() if not (self._new / digest).exists()}
        if not wanted:
            return
        line = f"◐ fetching {_files(len(wanted))}, {size(sum(wanted.values()))}"
        tell(line)
        large = {digest: count for digest, count in wanted.items() if count >= _LARGE_BYTES}
        self._get_large(client, large, tell, line)
        wanted = {digest: count for digest, count in wanted.items() if digest not in large}
        if wanted:
            self._get_pack(client, wanted, tell, line)

    def _get_large(self, client: httpx.Client, wanted: Mapping[str, int], tell: Tell, line: str) -> None:
        """One by one: what came of one before a connection broke is not fetched again."""
        if not wanted:
            return
        import httpx

        from gpulayer.source.download import fetch_part

        total, before = sum(wanted.values()), 0
        for digest, count in wanted.items():

            def say(got_bytes: int, before: int = before) -> None:
                tell(HowFar.of(line, before + got_bytes, total, megabytes))

            part = self._new / f"{digest}.large"
            try:
                fetch_part(client, digest, str(part), count, say)
            except httpx.HTTPStatusError as error:
                error.response.read()
                check(error.response)
                raise
            part.rename(self._new / digest)
            before += count

    def _get_pack(self, client: httpx.Client, wanted: Mapping[str, int], tell: Tell, line: str) -> None:
        import msgspec

        total = sum(wanted.values())
        coding = {"coding": "zstd"} if worth_compressing(total, str(client.base_url)) else {}
        content = msgspec.json.encode(list(wanted))
        with client.stream("POST", "/v1/blobs/fetch", params=coding, content=content) as answer:
            if answer.status_code >= 400:
                answer.read()
            check(answer)
            body = told(answer.iter_bytes(), total, tell, line)
            for digest, _, chunks in read_pack(Pieces(lambda: next(body, b"")), wanted=wanted):
                part = self._new / f"{digest}.part"
                with part.open("wb") as file:
                    for chunk in chunks:
                        file.write(chunk)
                part.rename(self._new / digest)

    # ---------------------------------------------------------------- one file

    def _place(self, entry: FileEntry) -> None:
        """Looked at again: fetching takes its time."""
        path = entry.path
        obstacle = self._in_the_way(path)
        if obstacle:
            self._came.refused.append((path, f"{obstacle} is no folder of its own here"))
            return
        here = self._digest(path)
        if here == entry.sha256:
            self._came.here_already.append(path)
        elif not self._uses[entry.sha256]:
            self._came.refused.append((path, "it changed here while others were fetched"))
        elif here is None or self._may_replace(path, here):
            self._write(entry, path)
            self._came.written.append((path, entry.size))
        else:
            new = self._beside(path, entry.sha256)
            self._write(entry, new)
            self._came.beside.append((path, new))

    def _in_the_way(self, path: str) -> str:
        """The first part of the way to a file that is a symlink or a file; '' for none."""
        parts = path.split("/")[:-1]
        for depth in range(1, len(parts) + 1):
            part = "/".join(parts[:depth])
            status = self._status(part)
            if status is None:
                return ""
            if not stat.S_ISDIR(status.st_mode) or _is_junction(self._home.root / part):
                return part
        return ""

    def _status(self, path: str) -> os.stat_result | None:
        try:
            return (self._home.root / path).lstat()
        except FileNotFoundError:
            return None

    def _digest(self, path: str) -> str | None:
        """Of the file that is here; None where nothing is, '' for what is no regular file."""
        status = self._status(path)
        if status is None:
            return None
        if not stat.S_ISREG(status.st_mode):
            return ""
        try:
            return hash_file(str(self._home.root / path)).sha256
        except FileNotFoundError:
            return None
        except SourceError:  # it can't be read, or changes all the time
            return ""

    def _may_replace(self, path: str, here: str) -> bool:
        if not here or self._home.replaces:
            return bool(here)
        if here == self._ours.get(str(self._home.root / path)):
            return True
        sent = self._sent.get(path)
        if sent is not None or self._home.sent is None:
            return sent is not None and sent.sha256 == here
        status = self._status(path)
        older = status is not None and max(status.st_mtime_ns, status.st_ctime_ns) < self._home.sent_at_ns - _TICK_NS
        return older and not path.endswith(".ipynb")  # notebooks are never sent, and are open in an editor

    def _beside(self, path: str, digest: str) -> str:
        new, number = f"{path}.from-{self._job}", 2
        while self._digest(new) not in (None, digest):
            new, number = f"{path}.from-{self._job}-{number}", number + 1
        return new

    def _write(self, entry: FileEntry, path: str) -> None:
        """Whole, or not at all."""
        target = self._home.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        new = self._new / entry.sha256
        self._uses[entry.sha256] -= 1
        if self._uses[entry.sha256]:
            new = self._new / "next"
            with (self._new / entry.sha256).open("rb") as source, new.open("wb") as file:
                shutil.copyfileobj(source, file, _COPY_BYTES)
        if entry.mode & 0o100:
            mode = stat.S_IMODE(new.stat().st_mode)
            new.chmod(mode | (mode & 0o444) >> 2)
        new.replace(target)
        self._ours[str(target)] = entry.sha256


def _is_junction(path: Path) -> bool:
    check_junction = getattr(os.path, "isjunction", None)  # Windows; Python 3.12
    return check_junction is not None and check_junction(path)


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _listed(paths: list[str]) -> str:
    return ", ".join(paths[:_NAMED]) + (" …" if len(paths) > _NAMED else "")
