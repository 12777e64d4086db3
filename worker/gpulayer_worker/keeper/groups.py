"""Groups of processes: starting, signalling, reaping, listing, and taking over those of a keeper that died."""

from __future__ import annotations

import errno
import os
import signal
import time

from gpulayer_worker.keeper.batch import Batch
from gpulayer_worker.keeper.cgrouppool import CgroupPool
from gpulayer_worker.keeper.containment import oom_kills, remove_cgroup
from gpulayer_worker.keeper.eventloop import READ
from gpulayer_worker.keeper.group import Group
from gpulayer_worker.keeper.identity import alive
from gpulayer_worker.keeper.journal import Journal
from gpulayer_worker.keeper.members import Members
from gpulayer_worker.keeper.records import exit_record, read_json, remove, write_json
from gpulayer_worker.keeper.spawning import GROUP_VARIABLE, KEEPER_VARIABLE, Launch, Program
from gpulayer_worker.keeper.sweep import Sweeper

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any

    from gpulayer_worker.keeper.containment import Containment
    from gpulayer_worker.keeper.context import Context

    Reply = Callable[[dict[str, Any]], None]

_RSS_UNIT_BYTES = 1 if os.uname().sysname == "Darwin" else 1024
_RETRY_WRITE_S = 2.0
_SHELLS_KILLED = 128 + signal.SIGKILL


class Groups:
    """All groups of this keeper. Only this class moves a group from one state to the next.

    Arguments:
        context: what the keeper's parts share.
        containment: how groups are held together.
        emit: called with each event, after what it tells is written.
    """

    def __init__(self, context: Context, containment: Containment, emit: Callable[[dict[str, Any]], None]) -> None:
        self._context = context
        self._containment = containment
        self._emit = emit
        folder = context.folder
        self._pool = CgroupPool(containment.base, folder.cgroups, context.log)
        self._journal = Journal(folder.journal)
        self.batch = Batch(context, containment.kind, self._pool, self._journal, emit)
        self._by_id: dict[str, Group] = {}
        self._by_pid: dict[int, Group] = {}  # our own children, not reaped yet
        self._on_all_gone: Callable[[], None] | None = None
        self.members = Members(context, containment.kind, self._by_id, self._by_pid)
        self.sweeper = Sweeper(context, self.members, on_gone=self._gone, on_main_lost=self._main_lost)

    def spawn(self, *, id: str, program: Program, exit_path: str, reply: Reply) -> None:
        """Start a group, or answer with the one that has this id already."""
        group = self._by_id.get(id)
        if group is not None:
            self._answer_spawn(group, reply, already=True)
            return
        if self._on_all_gone is not None:
            reply(_error(f"cannot start {id}: the keeper is stopping"))
            return
        program.env = {**program.env, GROUP_VARIABLE: id, KEEPER_VARIABLE: self._context.key}
        launch = None
        try:
            launch = Launch(program)
            group = self._record(id, launch, exit_path)
        except OSError as error:  # no more processes, or no space for the record
            if launch is not None:
                launch.discard()
                self._containment.remove(id)
            reply(_error(f"cannot start {id}: {error}"))
            return
        self._by_id[id] = self._by_pid[launch.pid] = group
        group.spawn_replies.append(reply)
        launch.go()
        self._context.loop.add(launch.error_fd, READ, lambda: self._decide(group))

    def start(self, jobs: list[dict[str, Any]], env: dict[str, str]) -> None:
        """Start groups by the batch, or tell again of those that have an id already: see `Batch.start`."""
        fresh: dict[str, dict[str, Any]] = {}
        for job in jobs:
            group = self._by_id.get(job["id"])
            if group is not None:
                self.batch.tell(group.id, group)
            elif self._on_all_gone is not None:
                self._emit({"event": "unstarted", "id": job["id"], "step": "stopping", "errno": 0})
            else:
                fresh[job["id"]] = job
        if fresh:
            self.batch.start(list(fresh.values()), env, self._took)

    def _took(self, group: Group) -> None:
        self._by_id[group.id] = self._by_pid[group.pid] = group

    def look(self, ids: list[str]) -> None:
        """Tell how groups stand."""
        for id in ids:
            self.batch.tell(id, self._by_id.get(id))

    def drop(self, ids: list[str]) -> None:
        """Forget groups that were started by the batch, those that are not gone yet as soon as they are."""
        for id in ids:
            group = self._by_id.get(id)
            if group is not None and group.batched:
                group.dropped = True
                self._forget_dropped(group)

    def keep(self, ids: list[str]) -> None:
        """End and forget every group that was started by the batch, but these."""
        wanted = set(ids)
        others = [group for group in self._by_id.values() if group.batched and group.id not in wanted]
        for group in others:
            if group.state != "gone":
                self._kill(group)
        self.drop([group.id for group in others])

    def _forget_dropped(self, group: Group) -> None:
        if group.dropped and group.state == "gone":
            self._by_id.pop(group.id, None)
            self.batch.forget(group)

    def settle(self) -> None:
        """A batch of events is over: look what is left of groups that ended, write down and tell what happened."""
        self.sweeper.run_due()
        self.batch.settle()

    def close(self) -> None:
        """Give back what the groups needed."""
        self._pool.close()
        self._journal.close()

    def send(self, id: str, number: int) -> dict[str, Any]:
        """Send a signal to the process group of a group's main process."""
        group = self._by_id.get(id)
        if group is None:
            return _error(f"no group {id!r}: list shows those that there are")
        if group.record is not None or not self._main_there(group):
            return _error(f"the main process of {id} has ended")
        group.sent.add(number)
        try:
            os.killpg(group.pid, number)
        except OSError as error:
            return _error(f"cannot send signal {number} to {id}: {error.strerror}")
        return {"ok": True}

    def kill(self, id: str, reply: Reply) -> None:
        """Kill all of a group; the reply comes when none is left. A group that is not there has none."""
        group = self._by_id.get(id)
        if group is None or group.state == "gone":
            reply({"ok": True, "killed": 0})
            return
        group.kill_replies.append(reply)
        self._kill(group)

    def kill_all(self, on_all_gone: Callable[[], None]) -> None:
        """Kill every group, start no more, and call back once when none is left."""
        self._on_all_gone = on_all_gone
        for group in self._living():
            self._kill(group)
        self._check_all_gone()

    def rows(self) -> list[dict[str, Any]]:
        """One row for every group that is not forgotten."""
        snapshot = self.members.snapshot()
        return [
            group.row(processes=0 if group.state == "gone" else len(self.members.of(group, snapshot)))
            for group in self._by_id.values()
        ]

    def forget(self, id: str) -> dict[str, Any]:
        """Drop a group that is gone, and its record; its exit record stays."""
        group = self._by_id.get(id)
        if group is not None and group.state != "gone":
            return _error(f"{id} still has processes: kill it first")
        if group is not None and group.batched:
            self.drop([id])
            return {"ok": True}
        self._by_id.pop(id, None)
        remove(self._context.folder.group(id))
        return {"ok": True}

    def reaped(self, pid: int, status: int, usage: struct_rusage) -> bool:
        """Take note that a child ended; False when it is no group's main process."""
        group = self._by_pid.pop(pid, None)
        if group is None:
            return False
        if group.state == "starting":
            self._decide(group)
        if group.state == "failed":
            if group.cgroup is not None:
                remove_cgroup(group.cgroup)
            return True
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        self._ended(
            group,
            code=os.WEXITSTATUS(status) if number is None else None,
            signal=number,
            oom=_killed(status) and signal.SIGKILL not in group.sent and group.oom_rose(),
            killed_by_us=number in group.sent,
            peak_rss_bytes=usage.ru_maxrss * _RSS_UNIT_BYTES,
            cpu_s=round(usage.ru_utime + usage.ru_stime, 6),
        )
        return True

    def adopt(self) -> None:
        """Take over the groups that an earlier keeper of this folder left, by their records."""
        for record in self._context.folder.group_records():
            group = Group.from_record(record) if isinstance(record, dict) else None
            if group is None:
                self._context.log(f"cannot read the group record {record}: its processes are not taken over")
                continue
            self._adopt(group)
        for group in self.batch.adopted(self.members.snapshot()):
            self._adopt(group)

    def _adopt(self, group: Group) -> None:
        self._by_id[group.id] = group
        if group.state == "gone":
            return
        same_boot = group.boot_id == self._context.boot_id
        if group.record is None and same_boot and alive(self._context.table, group.pid, group.start_time):
            group.watch = self._context.watch(group.pid, group.start_time, lambda: self._main_lost(group))
            return
        group.vanished = True
        if group.record is None:
            self._main_lost(group)
        else:
            self.sweeper.start(group)
        if not same_boot:  # nothing outlives a boot
            self._gone(group)

    def _record(self, id: str, launch: Launch, exit_path: str) -> Group:
        process = self._context.table.one(launch.pid)
        if process is None:
            raise OSError(errno.ESRCH, "its process was gone at once")
        try:
            cgroup = self._containment.create(id, launch.pid)
        except OSError as error:
            self._context.log(f"no cgroup for {id} ({error}): held together by descent instead")
            cgroup = None
        group = Group(
            id=id,
            pid=launch.pid,
            start_time=process.start_time,
            boot_id=self._context.boot_id,
            cgroup=cgroup,
            exit_path=exit_path,
            started_at=time.time(),
        )
        group.launch = launch
        group.state = "starting"
        group.began_s = time.monotonic()
        group.oom_before = oom_kills(cgroup)
        write_json(self._context.folder.group(id), group.to_record())
        return group

    def _decide(self, group: Group) -> None:
        """Look whether a starting group's program runs."""
        launch = group.launch
        error = launch.outcome() if launch is not None else ""
        if launch is None or error is None:
            return
        self._context.loop.remove(launch.error_fd)
        launch.close()
        group.launch = None
        if error:
            self._fail(group, error)
        else:
            group.state = "running"
        waiting, group.spawn_replies = group.spawn_replies, []
        for reply in waiting:
            self._answer_spawn(group, reply, already=False)
        if error:
            self._answer_kills(group)
            self._check_all_gone()

    def _fail(self, group: Group, error: str) -> None:
        """The program could not be run: it is as if the group had never been; its child is still to be reaped."""
        group.state = "failed"
        group.failure = f"cannot start {group.id}: {error}"
        del self._by_id[group.id]
        remove(self._context.folder.group(group.id))
        self.sweeper.drop(group)

    def _answer_spawn(self, group: Group, reply: Reply, *, already: bool) -> None:
        if group.state == "starting":
            group.spawn_replies.append(reply)
        elif group.failure is not None:
            reply(_error(group.failure))
        else:
            answer = {"ok": True, "pid": group.pid, "start_time": group.start_time, "cgroup": group.cgroup}
            reply({**answer, "already": True, "alive": group.record is None} if already else answer)

    def _main_there(self, group: Group) -> bool:
        """Whether the main process's pid still means that process (one of ours does until it is reaped)."""
        return group.pid in self._by_pid or alive(self._context.table, group.pid, group.start_time)

    def _kill(self, group: Group) -> None:
        group.sent.add(signal.SIGKILL)
        self.sweeper.start(group)

    def _main_lost(self, group: Group) -> None:
        """The main process ended, and another than us was told how."""
        if group.record is not None:
            return
        written = None if group.batched else read_json(group.exit_path)
        if written is not None and (written.get("pid"), written.get("start_time")) == (group.pid, group.start_time):
            group.state = "ending"
            group.record = written
            self.sweeper.start(group)
        else:
            self._ended(group, unknown=True, killed_by_us=signal.SIGKILL in group.sent)

    def _ended(self, group: Group, **how: Any) -> None:
        group.state = "ending"
        group.record = exit_record(
            pid=group.pid,
            start_time=group.start_time,
            boot_id=group.boot_id,
            started_at=group.started_at,
            ended_at=time.time(),
            wall_s=None if group.began_s is None else round(time.monotonic() - group.began_s, 6),
            **how,
        )
        if group.batched:
            self.batch.ended(group)
        else:
            self._write_exit(group)
            self._emit({"event": "exit", "id": group.id, **group.record})
        self.sweeper.start(group)

    def _write_exit(self, group: Group) -> None:
        try:
            write_json(group.exit_path, group.record)
        except OSError as error:
            self._context.log(f"cannot write the exit record of {group.id}: {error}")
            if error.errno in (errno.ENOSPC, errno.EDQUOT) and self._by_id.get(group.id) is group:
                self._context.loop.call_later(_RETRY_WRITE_S, lambda: self._write_exit(group))

    def _gone(self, group: Group) -> None:
        self.sweeper.drop(group)
        if group.watch is not None:
            group.watch.cancel()
            group.watch = None
        group.state = "gone"
        if group.batched:
            self.batch.gone(group)
            self._forget_dropped(group)
        else:
            if group.cgroup is not None:
                remove_cgroup(group.cgroup)
            self._emit({"event": "gone", "id": group.id})
        self._answer_kills(group)
        self._check_all_gone()

    def _answer_kills(self, group: Group) -> None:
        waiting, group.kill_replies = group.kill_replies, []
        for reply in waiting:
            reply({"ok": True, "killed": len(group.killed)})

    def _living(self) -> list[Group]:
        return [group for group in self._by_id.values() if group.state != "gone"]

    def _check_all_gone(self) -> None:
        if self._on_all_gone is not None and not self._living():
            self._on_all_gone()


def _killed(status: int) -> bool:
    """Whether SIGKILL ended a process, or one that it waited for: a shell tells of that by its exit code."""
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    return os.WEXITSTATUS(status) == _SHELLS_KILLED


def _error(text: str) -> dict[str, Any]:
    return {"ok": False, "error": text}
