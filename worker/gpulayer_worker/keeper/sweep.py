"""Killing what is left of groups until nothing is."""

from __future__ import annotations

import signal

from gpulayer_worker.keeper.containment import kill_cgroup
from gpulayer_worker.keeper.identity import send_signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from gpulayer_worker.keeper.context import Context
    from gpulayer_worker.keeper.group import Group
    from gpulayer_worker.keeper.members import Members
    from gpulayer_worker.keeper.procs import Process, Snapshot

_FIRST_DELAY_S = 0.02
_LAST_DELAY_S = 0.5
_WATCHES = 128  # descriptors for all groups together; whoever gets none is looked at by timer, or when a child ends
_EMPTY_LOOKS = 2  # a look at /proc is no snapshot: a process can be born behind its back


class Sweeper:
    """Kills the members of groups, waits for an end (a reaped child, a pidfd, at last a timer), and looks again.

    Arguments:
        context: what the keeper's parts share.
        members: finds a group's processes.
        on_gone: called when no process of a group is left.
        on_main_lost: called when an adopted group's main process is found gone.
    """

    def __init__(
        self,
        context: Context,
        members: Members,
        *,
        on_gone: Callable[[Group], None],
        on_main_lost: Callable[[Group], None],
    ) -> None:
        self._context = context
        self._members = members
        self._on_gone = on_gone
        self._on_main_lost = on_main_lost
        self._sweeping: dict[str, Group] = {}
        self._due: dict[str, Group] = {}
        self._refused: set[int] = set()
        self._watches = 0

    def start(self, group: Group) -> None:
        """Kill all of a group; harmless when that goes on already."""
        if group.id not in self._sweeping:
            group.sweep_delay_s = _FIRST_DELAY_S
            self._sweeping[group.id] = group
        self._due[group.id] = group

    def poke(self) -> None:
        """Look again at every group that is being killed: a child was reaped."""
        self._due.update(self._sweeping)

    def drop(self, group: Group) -> None:
        """Do no more for this group."""
        self._sweeping.pop(group.id, None)
        self._due.pop(group.id, None)
        self._quiet(group)

    def run_due(self) -> None:
        """Do what has become due; called after each batch of events, so many ends cost one look."""
        while self._due:
            due, self._due = self._due, {}
            ended = [group for group in due.values() if group.record is not None and not group.adopted]
            if ended and self._members.none_left():
                for group in ended:
                    del due[group.id]
                    self._on_gone(group)
            snapshot = self._members.snapshot()
            for group in due.values():
                self._sweep(group, snapshot)

    def _sweep(self, group: Group, snapshot: Snapshot) -> None:
        self._quiet(group)
        members = self._members.of(group, snapshot, ending=True)
        if not members and group.record is None and group.adopted:
            self._on_main_lost(group)
        if members or group.record is None:
            group.empty_looks = 0
            self._kill(group, members)
            self._wait(group, members)
            return
        group.empty_looks += 1
        if group.cgroup is None and group.empty_looks < _EMPTY_LOOKS:
            self._due[group.id] = group
        else:
            self._on_gone(group)

    def _kill(self, group: Group, members: list[Process]) -> None:
        if members and group.cgroup is not None and kill_cgroup(group.cgroup):
            group.killed |= {process.identity for process in members}
            members = [process for process in members if process.pid == group.pid]  # it may have moved elsewhere
        # the main process first: a shell that sees its children killed could end in a way of its own before its turn
        for process in sorted(members, key=lambda process: process.pid != group.pid):
            try:
                if send_signal(self._context.table, process.pid, process.start_time, signal.SIGKILL):
                    group.killed.add(process.identity)
            except PermissionError:  # it became another user's: all we can do is wait and say so
                if process.pid not in self._refused:
                    self._refused.add(process.pid)
                    self._context.log(f"may not kill process {process.pid} of {group.id}: end it by hand")

    def _wait(self, group: Group, members: list[Process]) -> None:
        if members and not self._context.portable and self._watches < _WATCHES:
            last = members[-1]  # one end wakes us, then we look at all again
            group.member_watch = self._context.watch(last.pid, last.start_time, lambda: self._again(group))
            self._watches += 1
        group.sweep_timer = self._context.loop.call_later(group.sweep_delay_s, lambda: self._again(group))
        group.sweep_delay_s = min(_LAST_DELAY_S, group.sweep_delay_s * 2)

    def _again(self, group: Group) -> None:
        if group.id in self._sweeping:
            self._due[group.id] = group

    def _quiet(self, group: Group) -> None:
        if group.sweep_timer is not None:
            group.sweep_timer.cancel()
            group.sweep_timer = None
        if group.member_watch is not None:
            group.member_watch.cancel()
            group.member_watch = None
            self._watches -= 1
