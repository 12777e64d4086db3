"""Groups that are started by the batch and told of by the batch: small programs, many of them.

One line of a client's starts any number of programs. What they are is written to the journal before the first of them
is started, and how they ended before anybody is told, each with one write for all.
"""

from __future__ import annotations

import errno
import os
import time

from gpulayer_worker.keeper.containment import MARKER, oom_kills
from gpulayer_worker.keeper.group import Group
from gpulayer_worker.keeper.posixspawn import StartError, start_on
from gpulayer_worker.keeper.records import valid_id
from gpulayer_worker.keeper.spawning import GROUP_VARIABLE, KEEPER_VARIABLE, Program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpulayer_worker.keeper.cgrouppool import CgroupPool
    from gpulayer_worker.keeper.context import Context
    from gpulayer_worker.keeper.journal import Journal
    from gpulayer_worker.keeper.procs import Process, Snapshot

_IDENTIFY_S = 0.02  # a program that lives so long is written down with its process
_RETRY_WRITE_S = 2.0
_OOM_FRESH_S = 1.0  # so old the machine's count of kills may be that a program begins with


class Batch:
    """Starts groups and tells of them. `Groups` moves them on from there.

    Arguments:
        context: what the keeper's parts share.
        kind: how groups are held together.
        pool: gives each its cgroup.
        journal: where they are written down.
        emit: called with each event, at the end of a batch, after what it tells is written.
    """

    def __init__(
        self,
        context: Context,
        kind: str,
        pool: CgroupPool,
        journal: Journal,
        emit: Callable[[dict[str, Any]], None],
    ) -> None:
        self._context = context
        self._kind = kind
        self._pool = pool
        self._journal = journal
        self._emit = emit
        self._started: list[Group] = []  # in this batch
        self._ended: list[Group] = []  # in this batch
        self._young: list[Group] = []  # whose process is not written down yet
        self._oom: tuple[float, int | None] = (-_OOM_FRESH_S, None)
        self._identifies = False  # soon
        self._retrying = False

    # ------------------------------------------------------------ starting

    def start(self, jobs: list[dict[str, Any]], env: dict[str, str], took: Callable[[Group], None]) -> None:
        """Start programs that no group has the id of; `took` is called with each group.

        Arguments:
            jobs: each with `id`, `argv`, `env` (added to `env`), `cwd`, `stdout`, `stderr`, and `cpus` where it is
                bound to some.
            env: what the environments of all have in common.
        """
        now, ticks = time.time(), self._ticks()
        cgroups = [self._pool.take() for _ in jobs]
        boot_id = self._context.boot_id
        for job, cgroup in zip(jobs, cgroups, strict=True):
            intent = {"boot_id": boot_id, "cgroup": cgroup, "started_at": now, "start_time": ticks}
            self._journal.add(job["id"], intent)
        try:
            self._journal.flush()
        except OSError as error:
            self._journal.take_back([job["id"] for job in jobs])
            for job, cgroup in zip(jobs, cgroups, strict=True):
                self._failed(job["id"], cgroup, StartError("journal", error.errno or 0))
            return
        oom = self._oom_count(now)
        try:
            for job, cgroup in zip(jobs, cgroups, strict=True):
                inside = self._enter(job["id"], cgroup)
                try:
                    group = self._start_one(job, env, inside, ticks)
                except StartError as error:
                    self._journal.forget(job["id"])
                    self._failed(job["id"], inside, error)
                    continue
                group.oom_before = oom
                self._started.append(group)
                self._young.append(group)
                took(group)
        finally:
            self._pool.leave()  # whoever ends that group must not end us
            os.chdir("/")  # keep no file system busy
        if self._young and not self._identifies:
            self._identifies = True
            self._context.loop.call_later(_IDENTIFY_S, self._identify)

    def _enter(self, id: str, cgroup: str | None) -> str | None:
        """Be in the cgroup that a program is to be born in; None where it will be in none."""
        inside = self._pool.enter(cgroup)
        if cgroup is not None and inside is None:
            self._pool.give_back(cgroup)
            self._journal.add(id, {"cgroup": None})
        return inside

    def _start_one(self, job: dict[str, Any], env: dict[str, str], inside: str | None, ticks: int | str) -> Group:
        id, started_at, began_s = job["id"], time.time(), time.monotonic()
        try:
            program = Program(
                argv=job["argv"],
                env={**env, **job["env"], GROUP_VARIABLE: id, KEEPER_VARIABLE: self._context.key},
                cwd=job["cwd"],
                stdout=job["stdout"],
                stderr=job["stderr"],
            )
            pid = start_on(program, job.get("cpus", []))
        except (KeyError, TypeError, ValueError) as error:  # such as a NUL in a word
            raise StartError("run", errno.EINVAL) from error
        group = Group(
            id=id,
            pid=pid,
            start_time=ticks,
            boot_id=self._context.boot_id,
            cgroup=inside,
            exit_path="",
            started_at=started_at,
        )
        group.batched, group.identified, group.began_s = True, False, began_s
        return group

    def _failed(self, id: str, cgroup: str | None, error: StartError) -> None:
        if cgroup is not None:
            self._pool.give_back(cgroup)
        self._emit({"event": "unstarted", "id": id, "step": error.step, "errno": error.number})

    def _ticks(self) -> int | str:
        """A lower bound of the start time of what is started now, as /proc would show it."""
        if self._kind == MARKER or not hasattr(time, "CLOCK_BOOTTIME"):
            return ""
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))

    def _oom_count(self, now: float) -> int | None:
        """How often the machine ran out of memory, as of a moment ago."""
        if not 0 <= now - self._oom[0] < _OOM_FRESH_S:
            self._oom = now, oom_kills(None)
        return self._oom[1]

    def _identify(self) -> None:
        """Write down the processes of those that live longer than a moment."""
        self._identifies = False
        young, self._young = self._young, []
        for group in young:
            if group.record is None and group.identify(self._context.table):
                self._journal.add(group.id, {"pid": group.pid, "start_time": group.start_time})

    # ------------------------------------------------------------ ends

    def ended(self, group: Group) -> None:
        """The main process of a group ended."""
        self._ended.append(group)

    def gone(self, group: Group) -> None:
        """Nothing of a group is left."""
        if group.cgroup is not None:
            self._pool.give_back(group.cgroup)
            group.cgroup = None
        if group not in self._ended:
            self._journal.add(group.id, {"gone": True})
            self._emit({"event": "cleared", "id": group.id})

    def forget(self, group: Group) -> None:
        """A group that is gone is wanted no more: nobody is told of its end either."""
        if group in self._ended:
            self._ended.remove(group)
        self._journal.forget(group.id)

    def tell(self, id: str, group: Group | None) -> None:
        """Tell again how a group stands."""
        if group is None:
            self._emit({"event": "unknown", "id": id})
        elif group.record is None:
            self._started.append(group)
        else:
            self._emit({"event": "ended", "id": id, "gone": group.state == "gone", **group.record})

    def settle(self) -> None:
        """The batch is over: write down and tell what happened in it."""
        ended, self._ended = self._ended, []
        for group in ended:
            self._journal.add(group.id, {"exit": group.record, "gone": group.state == "gone"})
            if group.record is not None:
                self._emit({"event": "ended", "id": group.id, "gone": group.state == "gone", **group.record})
        started, self._started = [group for group in self._started if group.record is None], []
        if started:
            self._emit({"event": "started", "groups": [[group.id, group.started_at] for group in started]})
        self._write()

    def _write(self) -> None:
        try:
            self._journal.flush()
        except OSError as error:
            if not self._retrying:
                self._context.log(f"cannot write the journal: {error}")
                self._retrying = True
                self._context.loop.call_later(_RETRY_WRITE_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self._write()

    # ------------------------------------------------------------ after another keeper's end

    def adopted(self, snapshot: Snapshot) -> list[Group]:
        """The groups that an earlier keeper's journal tells of, those that it has seen end with their records."""
        found: list[Group] = []
        for id, facts in list(self._journal.known.items()):
            group = self._adopt(id, facts, snapshot)
            if group is None:
                self._journal.forget(id)
                self._context.log(f"cannot read what the journal tells of {id!r}: it is not taken over")
            else:
                found.append(group)
        return found

    def _adopt(self, id: str, facts: dict[str, Any], snapshot: Snapshot) -> Group | None:
        pid = facts.get("pid")
        if pid is None and "exit" not in facts and facts.get("boot_id") == self._context.boot_id:
            main = self._find(id, snapshot)
            if main is not None:
                facts = {**facts, "pid": main.pid, "start_time": main.start_time}
        group = Group.from_record({"pid": 0, "exit": "", **facts, "id": id}) if valid_id(id) else None
        if group is None:
            return None
        group.batched = True
        record = facts.get("exit")
        if isinstance(record, dict):
            group.exit_path, group.record = "", record
            group.pid = record.get("pid", 0)
            group.state = "gone" if facts.get("gone") else "ending"
        return group

    def _find(self, id: str, snapshot: Snapshot) -> Process | None:
        """The main process of a group that was started, and whose keeper died before it wrote that down."""
        marks = {os.fsencode(f"{GROUP_VARIABLE}={id}"), os.fsencode(f"{KEEPER_VARIABLE}={self._context.key}")}
        for process in snapshot.processes.values():
            if process.session == process.pid and marks.issubset(snapshot.environ(process.pid)):
                return process
        return None
