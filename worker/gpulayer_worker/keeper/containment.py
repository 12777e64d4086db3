"""How a group's processes are held together: a cgroup where one can be had, else by descent, else by marker.

Of cgroup2 only `cgroup.procs` and `cgroup.kill` are needed, so a hybrid mount does (without `cgroup.kill` the
processes are killed one by one).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys

CGROUP = "cgroup"
SUBREAPER = "subreaper"
MARKER = "marker"
KINDS = (CGROUP, SUBREAPER, MARKER)
VARIABLE = "GPULAYER_CONTAINMENT"

MOUNTINFO = "/proc/self/mountinfo"
OWN_CGROUP = "/proc/self/cgroup"
VMSTAT = "/proc/vmstat"

_PR_SET_CHILD_SUBREAPER = 36


class ContainmentError(Exception):
    """The way to hold groups together that was asked for does not work here."""


class Containment:
    """What was decided at start. `base` is the folder for the groups' cgroups, None unless `kind` is 'cgroup'."""

    __slots__ = ("base", "kind")

    def __init__(self, kind: str, base: str | None = None) -> None:
        self.kind = kind
        self.base = base

    def create(self, id: str, pid: int) -> str | None:
        """Make the group's cgroup with `pid` in it and return its path; None where groups have none.

        Raises OSError when the cgroup can't be had after all.
        """
        if self.base is None:
            return None
        path = os.path.join(self.base, id)
        os.makedirs(path, exist_ok=True)
        try:
            _write(os.path.join(path, "cgroup.procs"), str(pid))
        except OSError:
            remove_cgroup(path)
            raise
        return path

    def remove(self, id: str) -> None:
        """Remove the cgroup of a group that did not come to be."""
        if self.base is not None:
            remove_cgroup(os.path.join(self.base, id))


def decide(*, wanted: str | None, portable: bool) -> Containment:
    """Choose the best that works here, and become a subreaper where that is part of it.

    Arguments:
        wanted: one of KINDS to insist on it.
        portable: use nothing that only Linux has.

    Raises ContainmentError when `wanted` is unknown or does not work.
    """
    if wanted is not None and wanted not in KINDS:
        raise ContainmentError(f"containment {wanted!r} is unknown: use one of {', '.join(KINDS)}")
    if portable:
        wanted = MARKER if wanted is None else wanted
    if wanted == MARKER:
        return Containment(MARKER)
    if not become_subreaper():
        if wanted is not None:
            raise ContainmentError(f"containment {wanted!r} needs Linux's child subreaper, which is not there")
        return Containment(MARKER)
    base = None if wanted == SUBREAPER else usable_base()
    if base is not None:
        return Containment(CGROUP, base)
    if wanted == CGROUP:
        raise ContainmentError("containment 'cgroup' needs a cgroup2 hierarchy with a writable cgroup of our own")
    return Containment(SUBREAPER)


def become_subreaper() -> bool:
    """Make orphaned descendants our children; False where the system can't."""
    if sys.platform != "linux":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


def usable_base() -> str | None:
    """The path for the groups' cgroups, when a trial shows that a child can be put there and killed there."""
    parent = own_cgroup()
    if parent is None:
        return None
    base = os.path.join(parent, f"gpulayer-{os.getpid()}-{os.urandom(2).hex()}")
    return base if _trial(os.path.join(base, "trial")) else None


def own_cgroup() -> str | None:
    """The folder of this process's own cgroup in the cgroup2 hierarchy; None when there is none to be seen."""
    try:
        with open(OWN_CGROUP) as file:
            own = next((line[3:].rstrip("\n") for line in file if line.startswith("0::")), None)
        with open(MOUNTINFO) as file:
            mounts = [mount for mount in map(parse_mount, file) if mount is not None]
    except OSError:  # not Linux
        return None
    if own is None:
        return None
    for root, folder in mounts:
        inside = os.path.relpath(own, root)
        path = os.path.normpath(os.path.join(folder, inside))
        if not inside.startswith("..") and os.path.isfile(os.path.join(path, "cgroup.procs")):
            return path
    return None


def parse_mount(line: str) -> tuple[str, str] | None:
    """(root, mount point) when a line of mountinfo is a cgroup2 mount."""
    fields, _, rest = line.partition(" - ")
    words = fields.split(" ")
    if rest.split(" ", 1)[0] != "cgroup2" or len(words) < 5:
        return None
    return _unescape(words[3]), _unescape(words[4])


def _unescape(text: str) -> str:
    for escape, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(escape, letter)
    return text


def _trial(path: str) -> bool:
    """Put a real child into the cgroup `path` and kill it there."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(write)
        os.read(read, 1)  # ends when the parent closes its end, or is gone
        os._exit(0)
    os.close(read)
    try:
        os.makedirs(path)
        _write(os.path.join(path, "cgroup.procs"), str(pid))
        held = cgroup_pids(path) == [pid]
        if held and not kill_cgroup(path):
            os.kill(pid, signal.SIGKILL)
    except OSError:  # read-only, not delegated, or a controller in the way: no cgroup for us
        held = False
    finally:
        os.close(write)
        status = os.waitpid(pid, 0)[1]
        remove_cgroup(path)
    return held and os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def cgroup_pids(path: str) -> list[int]:
    """The processes in a cgroup and in those below it; empty when it is gone.

    Raises OSError when it cannot be read: that must not pass for 'empty'.
    """
    pids: list[int] = []
    for folder, _, files in os.walk(path, onerror=_unless_gone):
        if "cgroup.procs" not in files:
            continue
        try:
            with open(os.path.join(folder, "cgroup.procs")) as file:
                pids += [int(line) for line in file]
        except OSError as error:
            _unless_gone(error)
    return [pid for pid in pids if pid > 0]  # 0: seen from outside its pid namespace


def _unless_gone(error: OSError) -> None:
    # EOPNOTSUPP: a threaded cgroup, whose processes are listed further up
    if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP):
        raise error


def kill_cgroup(path: str) -> bool:
    """Send SIGKILL to all in a cgroup at one blow; False when the kernel can't (before Linux 5.14) or it is gone."""
    try:
        _write(os.path.join(path, "cgroup.kill"), "1")
    except OSError:
        return False
    return True


def remove_cgroup(path: str) -> None:
    """Remove an empty cgroup, those below it, and the keeper's folder above it when nothing else is in there."""
    for folder, _, _ in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):  # its last process is not reaped yet, or it is gone
            os.rmdir(folder)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))


def oom_kills(cgroup: str | None) -> int | None:
    """How often the out-of-memory killer has struck: in the cgroup where it counts that, else on the machine."""
    if cgroup is not None:
        count = _counter(os.path.join(cgroup, "memory.events"))
        if count is not None:
            return count
    return _counter(VMSTAT)


def _counter(path: str) -> int | None:
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("oom_kill ")), None)
    except OSError:  # no memory controller, or not Linux
        return None


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
