"""Whether a folder lies on a local disk: locks, SQLite and memory maps are not safe on a network file system."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_NETWORK = frozenset(
    {"9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs"}
    | {"nfs4", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "webdav", "wekafs"}
)
_OCTAL = re.compile(rb"\\([0-7]{3})")
_DARWIN = re.compile(r" on (?P<mount>.+) \((?P<kind>\w+)[,)]")


def network_filesystem(folder: Path) -> str:
    """The type of the network file system that a folder lies on, or will; '' for a local disk, or if it can't be told.

    What runs in user space (FUSE) counts as one: sshfs, rclone and the like can't be told from a local one.
    """
    kind = filesystem_type(folder)
    return kind if kind in _NETWORK or kind == "fuse" or kind.startswith("fuse.") else ""


def filesystem_type(folder: Path) -> str:
    """The type of the file system that a folder lies on, or will once it is made; '' where that can't be told."""
    place = str(folder.resolve())
    best, found = "", ""
    for mount, kind in _mounts():
        if len(mount) >= len(best) and (place == mount or place.startswith(mount.rstrip("/") + "/")):
            best, found = mount, kind  # of two at one place the later one lies on top
    return found


def _mounts() -> Iterator[tuple[str, str]]:
    """Where each file system is mounted, and its type."""
    try:
        if sys.platform == "darwin":
            listed = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=10, check=True).stdout
            yield from parse_darwin(listed)
        else:
            yield from parse_mountinfo(Path("/proc/self/mountinfo").read_bytes())
    except (OSError, subprocess.SubprocessError):
        return  # no such list here


def parse_mountinfo(text: bytes) -> Iterator[tuple[str, str]]:
    """Mount points and types of Linux's `mountinfo`, in which blanks and backslashes of paths are written in octal."""
    for line in text.splitlines():
        left, separator, right = line.partition(b" - ")
        if separator:
            mount = _OCTAL.sub(lambda match: bytes([int(match.group(1), 8)]), left.split(b" ")[4])
            yield os.fsdecode(mount), os.fsdecode(right.split(b" ")[0])


def parse_darwin(text: str) -> Iterator[tuple[str, str]]:
    """Mount points and types of what macOS's `mount` prints."""
    for match in _DARWIN.finditer(text):
        yield match["mount"], match["kind"]
