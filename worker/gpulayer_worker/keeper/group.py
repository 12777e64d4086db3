"""One group: a kernel or an attempt, with its main process and whatever came from it."""

from __future__ import annotations

from gpulayer_worker.keeper.containment import oom_kills
from gpulayer_worker.keeper.records import valid_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpulayer_worker.keeper.eventloop import Timer
    from gpulayer_worker.keeper.identity import Watch
    from gpulayer_worker.keeper.procs import Table
    from gpulayer_worker.keeper.spawning import Launch

    Identity = tuple[int, int | str]
    Reply = Callable[[dict[str, Any]], None]


class Group:
    """What is known of one group. `Groups` moves it on, `Members` and `Sweeper` keep their notes in it.

    States: starting (forked, the program does not run yet) -> running -> ending (the main process is gone, the rest is
    being killed) -> gone; starting -> failed (the program could not be run).
    """

    def __init__(
        self,
        *,
        id: str,
        pid: int,
        start_time: int | str,
        boot_id: str,
        cgroup: str | None,
        exit_path: str,
        started_at: float,
    ) -> None:
        self.id = id
        self.pid = pid  # of the main process, leader of its session and process group
        self.start_time = start_time
        self.boot_id = boot_id
        self.cgroup = cgroup
        self.exit_path = exit_path
        self.started_at = started_at  # seconds since the epoch
        self.state = "running"
        self.record: dict[str, Any] | None = None  # the exit record, once the main process ended
        self.sent: set[int] = set()  # signals that were asked of us
        self.oom_before: int | None = None  # the counter when the group started

        self.launch: Launch | None = None  # while starting
        self.failure: str | None = None
        self.spawn_replies: list[Reply] = []
        self.kill_replies: list[Reply] = []

        self.adopted = False  # an earlier keeper's child, not ours
        self.vanished = False  # adopted with its main process gone already: its session id may be another's now
        self.batched = False  # started by the batch: it is in the journal, and has no files of its own
        self.identified = True  # `start_time` is exact; else a lower bound
        self.dropped = False  # to be forgotten as soon as it is gone
        self.began_s: float | None = None  # on the monotonic clock; None for an adopted one
        self.watch: Watch | None = None

        self.known: set[Identity] = set()  # members at the last look
        self.killed: set[Identity] = set()
        self.member_watch: Watch | None = None
        self.sweep_timer: Timer | None = None
        self.sweep_delay_s = 0.0
        self.empty_looks = 0

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Group | None:
        """The adopted group that a record tells of; None when the record is not one of ours."""
        try:
            group = cls(
                id=record["id"],
                pid=int(record["pid"]),
                start_time=record["start_time"],
                boot_id=record["boot_id"],
                cgroup=record["cgroup"],
                exit_path=record["exit"],
                started_at=float(record["started_at"]),
            )
        except (KeyError, TypeError, ValueError):
            return None
        group.adopted = True
        return group if valid_id(group.id) else None

    def identify(self, table: Table) -> bool:
        """Learn the exact start time of a main process that was not reaped yet; False when it can't be seen."""
        if not self.identified:
            process = table.one(self.pid)
            if process is not None:
                self.start_time = process.start_time
                self.identified = True
        return self.identified

    def to_record(self) -> dict[str, Any]:
        """What a later keeper needs to take the group over."""
        return {
            "id": self.id,
            "pid": self.pid,
            "start_time": self.start_time,
            "boot_id": self.boot_id,
            "cgroup": self.cgroup,
            "exit": self.exit_path,
            "started_at": self.started_at,
        }

    def row(self, *, processes: int) -> dict[str, Any]:
        """The group as `list` shows it. `alive`: its main process runs; `processes`: how many belong to it now."""
        return {
            "id": self.id,
            "pid": self.pid,
            "start_time": self.start_time,
            "alive": self.record is None,
            "gone": self.state == "gone",
            "processes": processes,
            "adopted": self.adopted,
            "exit": self.record,
        }

    def oom_rose(self) -> bool:
        """Whether the out-of-memory killer has struck since the group started."""
        now = oom_kills(None if self.batched else self.cgroup)  # the counter that was read when it started
        return now is not None and self.oom_before is not None and now > self.oom_before
