"""Reservations: who waits long for much gets the workers on which it is soonest free; others go on beside that.

Without them jobs that need little would take each device as it becomes free, and one that needs many at once, or many
machines, would wait for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from gpulayer_server.core import waiting
from gpulayer_server.core.state import Worker
from gpulayer_server.scheduling import reserve
from gpulayer_server.scheduling.queue import Order
from gpulayer_server.scheduling.reserve import Kept
from gpulayer_server.scheduling.wants import Line, Wants

if TYPE_CHECKING:
    from gpulayer_server.core.plane import Plane

_MOST = 4  # at once


@dataclass(kw_only=True, slots=True)
class Reservation:
    """Workers on which what a task needs, or each task of its job, is kept for it."""

    task: str  # the first of its line
    wants: Wants[Worker]
    kept: dict[str, Kept[Worker]]  # by worker
    chosen_at: float


def drop(plane: Plane, task: str) -> None:
    """What was reserved for a task is everybody's."""
    reservation = plane.reservations.pop(task, None)
    if reservation is not None:
        for kept in reservation.kept.values():
            plane.room.keep_no_more(kept.worker)
        plane.look_for_room = True


def drop_of_gone(plane: Plane) -> None:
    """Drop the reservations of those who wait no more."""
    for task in [task for task in plane.reservations if task not in plane.queue]:
        drop(plane, task)


def look(plane: Plane, now: float) -> None:
    """Time passed: reserve for those who wait too long, the first in the order first; for some a better set."""
    aged = sorted(_aged(plane, now), key=lambda found: found[0])[:_MOST]
    firsts = {task for _, task, _ in aged}
    for task in [task for task in plane.reservations if task not in firsts]:
        drop(plane, task)
    for _, task, wants in aged:
        _reserve(plane, task, wants, now)


def _aged(plane: Plane, now: float) -> list[tuple[Order, str, Wants[Worker]]]:
    queue, found = plane.queue, list[tuple[Order, str, Wants[Worker]]]()
    for line in queue.each():
        wants = waiting.wants_of(plane, line)
        if wants is None or not wants.big:
            continue
        task, order = queue.head(line), queue.order(line)
        if task is None or order is None or waiting.over_limit(plane, line.owner, wants):
            continue
        if line.stuck is None or line.stuck[0] != task:
            line.stuck = (task, now)
        elif now - line.stuck[1] >= plane.settings.reserve_after_s and _enough(plane, wants):
            found.append((order, task, wants))
    return found


def _enough(plane: Plane, wants: Wants[Worker]) -> bool:
    """Whether as many are there as it takes: who waits for machines that are to come reserves none."""
    return sum(1 for _ in islice(plane.room.able(wants), wants.nodes)) == wants.nodes


def _reserve(plane: Plane, task: str, wants: Wants[Worker], now: float) -> None:
    room, before = plane.room, plane.reservations.get(task)
    if before is not None:
        lost = [each.worker for each in before.kept.values() if not _stands(plane, wants, each.worker)]
        if not lost and now - before.chosen_at < plane.settings.reserve_after_s:
            return
        if lost:
            drop(plane, task)
            before = None
    others = {worker for each in plane.reservations.values() if each is not before for worker in each.kept}
    able = [worker for worker in room.able(wants) if not worker.full and worker.id not in others]
    found = reserve.soonest(wants.requirements, able)
    if before is not None and before.kept:
        before.chosen_at = now
        left = sum(reserve.price(wants.requirements, each.worker).price for each in before.kept.values())
        if not found or sum(each.price for each in found) >= left:
            return  # never for one that is no better: what is waited for there comes nearer with each end
        drop(plane, task)
    # Where none can be had now, that is kept as well: it is looked for again when this one is old.
    kept = {each.worker.id: each for each in found}
    plane.reservations[task] = Reservation(task=task, wants=wants, kept=kept, chosen_at=now)
    for each in found:
        room.keep(each.worker, wants.requirements, each.uuids)
    plane.look_for_room = True


def _stands(plane: Plane, wants: Wants[Worker], worker: Worker) -> bool:
    return worker.conn is not None and not worker.full and plane.room.fits(wants, worker)


def reserved_for(plane: Plane, line: Line) -> dict[str, Kept[Worker]]:
    """What is reserved for the first task of a line, by worker."""
    if not plane.reservations:
        return {}
    reservation = plane.reservations.get(plane.queue.head(line) or "")
    return {} if reservation is None else reservation.kept
