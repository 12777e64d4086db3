"""Which processes belong to a group.

With a cgroup the kernel says so. Else: the main process and its session, whatever descends from them, whatever
belonged to the group at the last look, and whoever carries the group's marker in the environment that it was started
with. A subreaper needs to look for markers among its own children only, for orphans come to it.

An orphan whose environment was cleared carries no marker. It belongs to a group that lived when it started; when
several did, it is left until the last of those ends.
"""

from __future__ import annotations

import os

from gpulayer_worker.keeper.containment import MARKER, cgroup_pids
from gpulayer_worker.keeper.procs import Process, Snapshot
from gpulayer_worker.keeper.spawning import AGENT_GROUP, GROUP_VARIABLE, KEEPER_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpulayer_worker.keeper.context import Context
    from gpulayer_worker.keeper.group import Group


class Members:
    """Finds the processes of groups.

    Arguments:
        context: what the keeper's parts share.
        kind: the containment of new groups.
        groups: all groups by id; read only.
        mains: their main processes that are our children and not reaped yet, by pid; read only.
    """

    def __init__(
        self, context: Context, kind: str, groups: Mapping[str, Group], mains: Mapping[int, Group] | None = None
    ) -> None:
        self._context = context
        self._groups = groups
        self._mains = mains
        self._everywhere = kind == MARKER
        self._key = os.fsencode(f"{KEEPER_VARIABLE}={context.key}")

    def snapshot(self) -> Snapshot:
        """All processes as of now, to look for the members of several groups at once."""
        return Snapshot(self._context.table)

    def none_left(self) -> bool:
        """Whether no process is left of any group of ours whose main process was reaped. Cheap, and sure if True.

        What a dead process leaves comes to us, the subreaper: so nothing is left where all our children are known.
        """
        if self._everywhere or self._mains is None:
            return False
        children = self._context.table.children(self._context.keeper_pid)
        if children is None:
            return False
        return all(pid in self._mains or pid == self._context.agent_pid for pid in children)

    def of(self, group: Group, snapshot: Snapshot, *, ending: bool = False) -> list[Process]:
        """The living processes of a group.

        Arguments:
            group: its `known` is brought up to date.
            snapshot: where to look.
            ending: the group is being killed, so the orphans that only it can own are its members too.
        """
        if group.record is None:
            group.identify(self._context.table)
        if group.cgroup is not None:
            found = self._in_cgroup(group, group.cgroup, snapshot)
        else:
            found = self._by_descent(group, snapshot, ending=ending)
        group.known = {process.identity for process in found}
        return found

    def _in_cgroup(self, group: Group, cgroup: str, snapshot: Snapshot) -> list[Process]:
        same_boot = group.boot_id == self._context.boot_id
        pids = dict.fromkeys(cgroup_pids(cgroup))
        living = [process for process in map(snapshot.living, pids) if process is not None]
        main = snapshot.living(group.pid) if group.pid not in pids and same_boot else None
        if main is not None and main.start_time == group.start_time:
            living.append(main)  # it moved itself elsewhere
        return living

    def _by_descent(self, group: Group, snapshot: Snapshot, *, ending: bool) -> list[Process]:
        excluded = {self._context.keeper_pid, self._context.agent_pid}
        roots = [process for process in snapshot.processes.values() if self._is_root(process, group, snapshot)]
        if ending and not group.adopted and not self._everywhere:
            roots += [orphan for orphan in self._orphans(snapshot) if self._only_of(orphan, group)]
        found: dict[int, Process] = {}
        while roots:
            process = roots.pop()
            if process.pid not in found and process.pid not in excluded:
                found[process.pid] = process
                roots += snapshot.children(process.pid)
        return list(found.values())

    def _is_root(self, process: Process, group: Group, snapshot: Snapshot) -> bool:
        if process.identity == (group.pid, group.start_time) or process.identity in group.known:
            return True
        if _older(process.start_time, group.start_time):
            return False
        if self._in_session(process, group, snapshot):
            return True
        if self._everywhere or group.adopted or process.ppid == self._context.keeper_pid:
            return self._owner(process, snapshot) == group.id
        return False

    def _in_session(self, process: Process, group: Group, snapshot: Snapshot) -> bool:
        """Whether a process is in the session that the main process made."""
        if process.session != group.pid or group.vanished:
            return False
        leader = snapshot.processes.get(group.pid)  # another's, if the pid came round again
        return leader is None or leader.start_time == group.start_time

    def _owner(self, process: Process, snapshot: Snapshot) -> str | None:
        """The group that a process's marker names; None without a marker of this keeper's folder."""
        entries = snapshot.environ(process.pid)
        if self._key not in entries:
            return None
        prefix = os.fsencode(f"{GROUP_VARIABLE}=")
        return next((os.fsdecode(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)), None)

    def _orphans(self, snapshot: Snapshot) -> list[Process]:
        """Our own children that are neither the agent's nor a living group's by name."""
        ours = {self._context.agent_pid, *(group.pid for group in self._groups.values() if group.record is None)}
        owned = {AGENT_GROUP, *(group.id for group in self._groups.values() if group.state != "gone")}
        # a child that has not executed its program yet shows our own environment: it is known by pid
        children = [child for child in snapshot.children(self._context.keeper_pid) if child.pid not in ours]
        return [child for child in children if self._owner(child, snapshot) not in owned]

    def _only_of(self, orphan: Process, group: Group) -> bool:
        """Whether no other living group could have started this orphan."""
        if _older(orphan.start_time, group.start_time):
            return False
        rivals = [
            other
            for other in self._groups.values()
            if other is not group and other.state != "gone" and other.cgroup is None and not other.adopted
        ]
        return all(_older(orphan.start_time, rival.start_time) for rival in rivals)


def _older(one: int | str, other: int | str) -> bool:
    """Whether the first start time is surely before the second; texts of ps(1) do not tell."""
    return isinstance(one, int) and isinstance(other, int) and one < other
