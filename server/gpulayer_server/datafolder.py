"""The data folder: one holder at a time, on a local disk."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

from gpulayer.protocol.endpoint import Endpoint, read_endpoint, write_private

_NETWORK = ("nfs", "cifs", "smb", "fuse.sshfs", "9p", "lustre", "beegfs", "gpfs", "ceph", "afs", "glusterfs", "fuse.")


class DataFolderError(RuntimeError):
    """The folder can't be used; says which, why, and what to do."""


def filesystem_type(folder: Path) -> str:
    """The type of the file system that a folder lies on, '' where that can't be told."""
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return ""
    best, kind = "", ""
    for line in lines:
        left, _, right = line.partition(" - ")
        mount = left.split()[4].encode("latin-1", "replace").decode("unicode_escape")
        inside = str(folder) == mount or str(folder).startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, right.split()[0]
    return kind


class DataFolder:
    """A control plane's folder, locked as long as this object lives."""

    def __init__(self, path: Path):
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        kind = filesystem_type(path.resolve())
        if kind.startswith(_NETWORK):
            text = f"{path} lies on a network file system ({kind}), where locks and SQLite are not safe"
            raise DataFolderError(f"{text}; set GPULAYER_DATA to a folder on a local disk")
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode(errors="replace").strip()
            os.close(self._lock)
            text = f"{path} is held by another control plane (pid {holder}); attach to it through {path}/endpoint.json"
            raise DataFolderError(text) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    @property
    def last_port(self) -> int:
        """The port of the last holder: workers look there first."""
        last = read_endpoint(self.path)
        return int(last.url.rsplit(":", 1)[1]) if last else 0

    def publish(self, endpoint: Endpoint) -> None:
        """Say where this control plane listens."""
        write_private(self.path / "endpoint.json", msgspec.json.encode(endpoint))

    def close(self) -> None:
        """Let the lock go. `endpoint.json` stays, so that the next holder takes the same port."""
        os.close(self._lock)
