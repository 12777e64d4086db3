"""The files of a data folder: where they are, and how they are read and replaced as a whole."""

from __future__ import annotations

import json
import os

from gpulayer_worker.keeper.identity import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
ID_LIMIT = 64
LOG_LIMIT_BYTES = 10_000_000


def valid_id(text: object) -> bool:
    """Whether this can name a group: 1 to 64 of A-Z a-z 0-9 _ -."""
    return isinstance(text, str) and 0 < len(text) <= ID_LIMIT and ID_LETTERS.issuperset(text)


def write_json(path: str, value: object) -> None:
    """Replace a file (mode 0600) as a whole: a reader sees the old content or the new, never a part."""
    draft = f"{path}.{os.getpid()}.tmp"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            json.dump(value, file)
        os.replace(draft, path)
    except OSError:
        remove(draft)
        raise


def read_json(path: str) -> dict[str, Any] | None:
    """The object in a file; None when there is no such file or it holds something else."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def remove(path: str) -> None:
    """Unlink a file that may be gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def rotate_log(path: str) -> None:
    """Keep a log that has grown beyond 10 MB as `path`.1, so that the next writer begins anew."""
    if os.path.exists(path) and os.path.getsize(path) > LOG_LIMIT_BYTES:
        os.replace(path, f"{path}.1")


def last_line(path: str) -> str:
    """The last line of a log that is not empty; '' when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 4096))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    except OSError:  # no log, no line
        return ""
    return next((line for line in reversed(lines) if line), "")


class Folder:
    """The data folder of one worker. Only its keeper writes the files named here."""

    def __init__(self, root: str) -> None:
        self.root = os.path.realpath(root)
        self.lock = os.path.join(self.root, "keeper.lock")
        self.keeper = os.path.join(self.root, "keeper.json")
        self.agent = os.path.join(self.root, "agent.json")
        self.itself = os.path.join(self.root, "folder.json")
        self.groups = os.path.join(self.root, "groups")
        self.journal = os.path.join(self.root, "groups.log")
        self.cgroups = os.path.join(self.root, "cgroups.json")
        self.logs = os.path.join(self.root, "logs")
        self.agent_log = os.path.join(self.logs, "agent.log")
        self.keeper_log = os.path.join(self.logs, "keeper.log")

    def prepare(self) -> None:
        """Make what is missing. Raises PermissionError when the folder is another user's."""
        os.makedirs(self.root, mode=0o700, exist_ok=True)
        status = os.stat(self.root)
        if status.st_uid != os.getuid():
            raise PermissionError(f"{self.root} belongs to user {status.st_uid}: give --data a folder of your own")
        if status.st_mode & 0o077:
            os.chmod(self.root, 0o700)
        for path in (self.groups, self.logs):
            os.makedirs(path, mode=0o700, exist_ok=True)
        self._disown_copied()

    def _disown_copied(self) -> None:
        """In a copy of another worker's folder forget that one's processes: they are not ours to take over or end."""
        known, now = read_json(self.itself), {"key": self.key, "boot_id": boot_id()}
        if known == now:
            return
        if known is not None and known.get("boot_id") == now["boot_id"]:  # else no process of it is left anyway
            names = (os.path.join(self.groups, name) for name in os.listdir(self.groups) if name.endswith(".json"))
            for path in (self.agent, self.keeper, self.journal, self.cgroups, *names):
                remove(path)
        write_json(self.itself, now)

    @property
    def key(self) -> str:
        """What tells this folder's processes from another worker's: device and inode, the same for every keeper."""
        status = os.stat(self.root)
        return f"{status.st_dev:x}.{status.st_ino:x}"

    def group(self, id: str) -> str:
        """The path of a group's record."""
        return os.path.join(self.groups, f"{id}.json")

    def group_records(self) -> list[dict[str, Any] | str]:
        """Every group's record; a path instead where it can't be read."""
        names = sorted(name for name in os.listdir(self.groups) if name.endswith(".json"))
        paths = [os.path.join(self.groups, name) for name in names]
        return [read_json(path) or path for path in paths]


def exit_record(
    *,
    pid: int,
    start_time: int | str,
    boot_id: str,
    started_at: float,
    ended_at: float,
    code: int | None = None,
    signal: int | None = None,
    unknown: bool = False,
    oom: bool = False,
    killed_by_us: bool = False,
    peak_rss_bytes: int | None = None,
    cpu_s: float | None = None,
    wall_s: float | None = None,
) -> dict[str, Any]:
    """How a main process ended, as it is written. Either `code` or `signal` is set, or `unknown` is true.

    `oom`: the machine's out-of-memory killer did it. `killed_by_us`: it ended by a signal that was asked of the
    keeper. `peak_rss_bytes` and `cpu_s` cover the process and the children it waited for. Times are seconds since
    the epoch; `wall_s` was measured by a clock that nobody sets.
    """
    return {
        "pid": pid,
        "start_time": start_time,
        "boot_id": boot_id,
        "code": code,
        "signal": signal,
        "unknown": unknown,
        "oom": oom,
        "killed_by_us": killed_by_us,
        "peak_rss_bytes": peak_rss_bytes,
        "cpu_s": cpu_s,
        "started_at": started_at,
        "ended_at": ended_at,
        "wall_s": wall_s,
    }
