"""Placement in three answers: placed, waiting, rejected at once.

A look costs what changed: lines with another first task are tried everywhere, all others only where something came
free. That nothing else can be placed was so before.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from gpulayer_server.core import reserving, waiting
from gpulayer_server.core.assigning import NOBODY, assign, into_session, open_session
from gpulayer_server.core.ending import reject
from gpulayer_server.core.events import Effects
from gpulayer_server.core.explaining import known
from gpulayer_server.core.state import Job, Task, Worker
from gpulayer_server.scheduling import gang, match
from gpulayer_server.scheduling.fair import Turns
from gpulayer_server.scheduling.match import explain
from gpulayer_server.scheduling.queue import Order
from gpulayer_server.scheduling.room import Pick
from gpulayer_server.scheduling.wants import SESSION, Line, Wants, demands

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_MANY = 8  # where more workers have something free, the index is asked instead of each of them


def place_waiting(plane: Plane, now: float, out: Effects) -> None:
    """Place what can be placed, in the order of turns; reject what came and no worker could take."""
    queue, room = plane.queue, plane.room
    if plane.reservations:
        reserving.drop_of_gone(plane)
    if queue:
        if queue.left and room.willing:
            _no_more_kept(plane)
        if queue.fresh or room.freed:
            _Round(plane, now, out).go()
    queue.fresh.clear()
    room.freed.clear()
    queue.left = False


def reject_impossible(plane: Plane, now: float, out: Effects) -> None:
    """Reject all that no worker could take, after a change of the fleet, and with time."""
    for line in list(plane.queue.each()):
        wants = waiting.wants_of(plane, line)
        while wants is not None and (task_id := plane.queue.head(line)) is not None:
            task = plane.tasks[task_id]
            if not _reject_if_impossible(plane, line, wants, task, now, out):
                break
            wants = waiting.wants_of(plane, line)


def _no_more_kept(plane: Plane) -> bool:
    """One who stood before others has left: where he kept them from waiting for a slot, they may now. Where any is."""
    freed = plane.room.freed
    before = len(freed)
    for worker in plane.room.willing.values():
        if worker.room_ahead > 0 and worker.slots_free < 1:
            freed[worker.id] = worker
    return len(freed) > before


class _Round:
    """One walk along the lines."""

    def __init__(self, plane: Plane, now: float, out: Effects):
        self.plane = plane
        self.now = now
        self.out = out
        self.queue, self.room = plane.queue, plane.room
        self.fresh, self.freed = plane.queue.fresh, plane.room.freed
        self.unwanted: set[Wants[Worker]] = set()  # that fit nowhere where something came free
        self.maybe: set[Wants[Worker]] | None = None  # those that may; None: all
        self.kinds: set[Hashable] = set()  # what kinds of things these need
        self.reserved: set[Wants[Worker]] = set()
        self.frees = 0  # of the room, when it was looked at what may be wanted
        self.kept: set[str] = set()  # workers whose next slot is for one that stands before the rest

    def go(self) -> None:
        self._look_at_freed()
        sieve = None if self.maybe is None else self._likely
        turns = Turns(self.queue, self.plane.usage.weight, self._wanted, self._demands(), sieve)
        while self._anything() and (line := turns.next()) is not None:
            bound = turns.bound()
            while (first := self.queue.first(line)) is not None:
                if first[0] > bound:
                    break
                others_wait = self.queue.classes() > 1  # the one that leaves now may have been the only other one
                if not self._place(line, self.plane.tasks[first[1]]):
                    self.fresh.pop(line, None)
                    break
                waiting_ahead = self.room.willing and others_wait and _no_more_kept(self.plane)
                if waiting_ahead or self.room.frees != self.frees:  # a reservation that is over frees its workers
                    self._look_at_freed()
                    turns.again(self._demands() or ())
            else:
                self.fresh.pop(line, None)

    def _look_at_freed(self) -> None:
        """Begin anew with what may be wanted: what could go where something is free, if all of it was."""
        self.unwanted.clear()
        self.frees = self.room.frees
        if len(self.freed) > _MANY:
            self.maybe = None
            return
        shapes = [self.room.fitting(worker) for worker in self.freed.values()]
        self.maybe = set[Wants[Worker]]().union(*[shape.fitting for shape in shapes])
        self.kinds = {SESSION}.union(*[shape.demands for shape in shapes])
        self.reserved = {reservation.wants for reservation in self.plane.reservations.values()}
        self.maybe |= self.reserved
        self.kinds |= {wants.demand for wants in self.reserved}

    def _likely(self, places: list[tuple[Order, Line]]) -> Iterable[tuple[Order, Line]]:
        """Of the first tasks of lines those that may be wanted; who runs in a session is looked at by itself."""
        maybe = self.maybe
        if maybe is None:
            return places
        return (place for place in places if place[1].wants in maybe or place[1].wants is None)

    def _not_now(self, wants: Wants[Worker]) -> None:
        """It fits nowhere where something came free; of a line for which there is a reservation it may all the same."""
        self.unwanted.add(wants)
        if self.maybe is not None and wants not in self.reserved:
            self.maybe.discard(wants)

    def _demands(self) -> set[Hashable] | None:
        """What could be met where something came free; None: all."""
        if len(self.freed) > _MANY:
            return None
        met = {demand for worker in self.freed.values() for demand in demands(worker)}
        if self.maybe is not None:
            met &= self.kinds
        return met

    def _anything(self) -> bool:
        """Whether anything is left to look at: lines, or workers with something free."""
        if self.fresh:
            return True
        while self.freed:
            worker = next(iter(self.freed.values()))
            if worker.slots_free > 0 or worker.room_ahead > 0:
                return True
            del self.freed[worker.id]
        return False

    def _wanted(self, line: Line) -> bool:
        """Whether a line is to be looked at: its first task came, or somewhere something is free that it fits on."""
        if line in self.fresh:
            return True
        wants = line.wants or waiting.wants_of(self.plane, line)
        if wants is None:
            return False
        kept = reserving.reserved_for(self.plane, line) if wants.big else {}
        if wants in self.unwanted and not kept:
            return False
        if len(self.freed) > _MANY:
            return True
        for worker in self.freed.values():
            if self.room.could(wants, worker) or (wants.plain and self._may_wait(wants, worker)):
                return True
            if worker.id in kept and self._has_kept(wants, worker):
                return True
        if not kept:
            self._not_now(wants)
        return False

    def _may_wait(self, wants: Wants[Worker], worker: Worker) -> bool:
        """Whether a small command may wait there for a slot."""
        return (
            worker.room_ahead > 0
            and worker.conn is not None
            and not worker.full
            and not self.room.reserved(worker)
            and self.room.fits(wants, worker)
        )

    def _has_kept(self, wants: Wants[Worker], worker: Worker) -> bool:
        """Whether there is room where it is reserved."""
        there = worker.conn is not None and self.room.fits(wants, worker)
        return there and match.has_room(wants.requirements, worker)

    # ---------------------------------------------------------------- one task

    def _place(self, line: Line, task: Task) -> bool:
        """Place or reject the first task of a line, of a job on many machines all of them; False: it waits."""
        plane = self.plane
        job = plane.jobs[task.job]
        session = plane.session_of.get(line.session) if line.session is not None else None
        if session is not None:
            return into_session(plane, job, task, session, self.now, self.out)
        wants = line.wants if line.wants is not None else self.room.wants(job.spec.requirements)
        if plane.limits and waiting.over_limit(plane, line.owner, wants):
            plane.limited.setdefault(line.owner, {})[line] = None
        elif wants.nodes > 1:
            if self._place_all(line, job, wants):
                return True
            self._not_now(wants)
        else:
            pick = self._choose(line, job, wants)
            if pick is not None:
                self._give(job, task, pick)
                return True
            if not wants.plain:  # whether a small command may wait for a slot depends on its line
                self._not_now(wants)
        return _reject_if_impossible(plane, line, wants, task, self.now, self.out)

    def _give(self, job: Job, task: Task, pick: Pick[Worker], nodes: tuple[str, ...] = ()) -> None:
        plane = self.plane
        if job.spec.command is None and job.session_key is not None:
            session = open_session(plane, job, pick, self.now, self.out)
            assign(plane, job, task, pick.worker, session.devices, session, self.now, self.out)
        else:
            assign(plane, job, task, pick.worker, pick.devices, None, self.now, self.out, nodes)
        if plane.reservations:
            reserving.drop(plane, task.id)

    def _choose(self, line: Line, job: Job, wants: Wants[Worker]) -> Pick[Worker] | None:
        everywhere = line in self.fresh or len(self.freed) > _MANY
        pick = self.room.best(wants) if everywhere else self.room.best_of(wants, self.freed.values())
        if pick is not None:
            return pick
        for kept in reserving.reserved_for(self.plane, line).values() if wants.big else ():
            if self._has_kept(wants, kept.worker):
                return self.room.pick(wants, kept.worker, kept.worker)
        if not wants.plain or job.spec.command is None:
            return None
        willing = self.room.willing if everywhere else self.freed
        soonest = self._soonest(line, wants, willing.values())
        return Pick(worker=soonest) if soonest is not None else None

    def _place_all(self, line: Line, job: Job, wants: Wants[Worker]) -> bool:
        """Place all tasks of a job, each on a worker of its own, or none."""
        kept = reserving.reserved_for(self.plane, line)
        if not kept and self.room.frees < wants.not_before:
            return False
        able = {worker.id: worker for worker in self.room.roomy(wants)}
        able |= {name: each.worker for name, each in kept.items() if self._has_kept(wants, each.worker)}
        if len(able) < wants.nodes:
            wants.not_before = self.room.frees + wants.nodes - len(able)  # one more machine at a time, at most
            return False
        chosen = gang.choose_nodes(wants.requirements, list(able.values()), lambda _: True)
        if chosen is None:
            return False
        picks = [self.room.pick(wants, worker, worker if worker.id in kept else None) for worker in chosen]
        found = [pick for pick in picks if pick is not None]
        if len(found) < wants.nodes:
            return False
        nodes = tuple([pick.worker.name for pick in found])
        for task, pick in zip(job.tasks, found, strict=True):
            self._give(job, task, pick, nodes)
        return True

    # ---------------------------------------------------------------- work ahead of slots

    def _soonest(self, line: Line, wants: Wants[Worker], willing: Iterable[Worker]) -> Worker | None:
        """The worker that ends small commands so soon that one more may wait there."""
        best: Worker | None = None
        most = (0, "")
        for worker in willing:
            rank = (worker.room_ahead, worker.name)
            if rank > most and self._may_wait(wants, worker) and not self._is_kept(line, worker):
                best, most = worker, rank
        return best

    def _is_kept(self, line: Line, worker: Worker) -> bool:
        """Whether the next slot there is for somebody who stands before this line and waits for nothing but a slot."""
        if worker.id in self.kept:
            return True
        if self.queue.classes() == 1:
            return False
        order = self.queue.order(line)
        here = (order[0], self.plane.usage.weight(line.owner), order) if order is not None else (0, 0, (0, 0, 0))
        for (priority, owner, _), places in self.queue.groups().items():
            weight = self.plane.usage.weight(owner)
            for first, other in places:
                if (priority, weight, first) >= here:
                    break
                if other is not line and self._slotless(other, worker):
                    self.kept.add(worker.id)
                    return True
        return False

    def _slotless(self, line: Line, worker: Worker) -> bool:
        wants = waiting.wants_of(self.plane, line)
        if wants is None or wants.nodes > 1 or waiting.over_limit(self.plane, line.owner, wants):
            return False
        return self.room.fits(wants, worker) and bool(match.slotless(wants.requirements, (worker,)))


# ---------------------------------------------------------------- rejected


def _reject_if_impossible(plane: Plane, line: Line, wants: Wants[Worker], task: Task, now: float, out: Effects) -> bool:
    """Reject a task that no worker could take; False: it waits."""
    if line.patient or now < plane.local_expected_until or _could(plane, wants, now):
        return False
    reject(plane, task, explain(wants.requirements, known(plane, now)), NOBODY, now, out)
    return True


def _could(plane: Plane, wants: Wants[Worker], now: float) -> bool:
    """Whether those who are known could take it; looked at once for the fleet as it is, as long as they can."""
    room = plane.room
    if wants.possible == room.changes:
        return True
    if wants.nodes == 1:
        possible = next(iter(room.able(wants)), None) is not None
    else:
        possible = gang.could(wants.requirements, room.able(wants))
    if possible:
        wants.possible = room.changes
        return True
    able = (worker for worker in known(plane, now) if room.fits(wants, worker))
    return gang.could(wants.requirements, able) if wants.nodes > 1 else next(able, None) is not None
