"""What the tests of workspaces share: a cache of blobs, and a session's workspace."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gpulayer.source import FileEntry, Manifest, SourceConflict, Written, materialize, synchronize


class Cache:
    """A folder of blobs, filled by the manifests that it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, digest: str) -> Path:
        return self.folder / digest

    def manifest(self, files: Mapping[str, bytes | None], *, executable: tuple[str, ...] = ()) -> Manifest:
        entries = []
        for path, content in files.items():
            if content is None:
                entries.append(FileEntry(path=path, mode=0o755, size=0, sha256="", kind="dir"))
                continue
            digest = hashlib.sha256(content).hexdigest()
            (self.folder / digest).write_bytes(content)
            mode = 0o755 if path in executable else 0o644
            entries.append(FileEntry(path=path, mode=mode, size=len(content), sha256=digest))
        return Manifest(entries)


class Workspace:
    """A session's workspace, at home in `home`."""

    def __init__(self, cache: Cache, target: Path, files: Mapping[str, bytes | None]) -> None:
        self.cache = cache
        self.target = target
        self.manifest = cache.manifest(files)
        self.written: Written = materialize(self.manifest, target, cache)

    def bring(self, files: Mapping[str, bytes | None], *, executable: tuple[str, ...] = ()) -> None:
        new = self.cache.manifest(files, executable=executable)
        self.written = synchronize(self.manifest, new, self.target, self.cache, self.written)
        self.manifest = new

    def refuses(self, files: Mapping[str, bytes | None]) -> tuple[str, ...]:
        """The paths in conflict; checks that nothing was touched."""
        before = everything(self.target)
        with pytest.raises(SourceConflict) as caught:
            self.bring(files)
        assert everything(self.target) == before
        return caught.value.paths

    def edit(self, path: str, content: bytes) -> None:
        (self.target / path).parent.mkdir(parents=True, exist_ok=True)
        (self.target / path).write_bytes(content)

    def read(self) -> dict[str, bytes | None]:
        return contents(self.target)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Files with their bytes, empty folders with None."""
    result: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            result[str(path.relative_to(folder))] = path.read_bytes()
        elif not path.is_symlink() and not any(path.iterdir()):
            result[str(path.relative_to(folder))] = None
    return result


def everything(folder: Path) -> dict[str, tuple]:
    return {
        str(path): (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)
        for path in sorted(folder.rglob("*"))
        if (status := path.lstat())
    }


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """An empty cache of blobs."""
    return Cache(tmp_path / "blobs")


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Mapping[str, bytes | None]], Workspace]:
    """Make a session's workspace, in a folder of its own, from files (None: an empty folder)."""

    def make(files: Mapping[str, bytes | None]) -> Workspace:
        folder = tmp_path_factory.mktemp("session")
        return Workspace(Cache(folder / "blobs"), folder / "workspace", files)

    return make


@pytest.fixture(scope="session")
def read_tree() -> Callable[[Path], dict[str, bytes | None]]:
    """Read a folder: files with their bytes, empty folders with None."""
    return contents


@pytest.fixture(scope="session")
def stat_tree() -> Callable[[Path], dict[str, tuple]]:
    """What `lstat` says of all that lies in a folder, so that any touch shows."""
    return everything
