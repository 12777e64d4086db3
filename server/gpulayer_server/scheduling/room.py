"""An index of what is free: by shapes of equal machines, so that a look costs what changed, not what there is.

Workers that `match.unmet` treats alike are of one shape: whether they could take a set of requirements is asked once.
Of each shape those with a free slot are sorted. A worker that a reservation counts on is filed by what that leaves.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Generic

from gpulayer.protocol.types import Device, Requirements
from gpulayer_server.scheduling import match, topology
from gpulayer_server.scheduling.candidate import Candidate, Each
from gpulayer_server.scheduling.wants import Beside, Entry, Shape, Wants

_LOOKED_AT = 4  # machines that would strand least: so many are asked how well their devices are linked
_SLACK = 1e-6  # cores are added and taken away as fractions
_SPARE = 4096  # sets of requirements with which nobody waits, and that are remembered all the same


@dataclass(frozen=True, kw_only=True, slots=True)
class Pick(Generic[Each]):
    """Where something goes."""

    worker: Each
    devices: tuple[Device, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Filed(Generic[Each]):
    """Where a worker stands in the lists of its shape."""

    shape: Shape[Each]
    free: int
    entry: Entry | None  # None: it is not open
    shared: tuple[int, str] | None


class Room(Generic[Each]):
    """What is free where. It is told of every change of a worker: `came`, `touched`."""

    def __init__(self) -> None:
        self.freed: dict[str, Each] = {}  # workers that may take what they could not, since somebody cleared this
        self.willing: dict[str, Each] = {}  # those that let small commands wait for a slot
        self.version = 0  # raised when another shape comes, or goes, or is there again
        self.frees = 0  # raised when more of a worker may be free
        self.changes = 0  # raised when anybody comes, goes or changes
        self._workers: dict[str, Each] = {}
        self._shapes: dict[Hashable, Shape[Each]] = {}
        self._shape_of: dict[str, Shape[Each]] = {}
        self._named: dict[str, dict[str, Each]] = {}
        self._name_of: dict[str, str] = {}
        self._filed: dict[str, _Filed[Each]] = {}
        self._moved: dict[str, Each] = {}  # those that are not filed as they are
        self._beside: dict[str, Beside[Each]] = {}
        self._wants: dict[Requirements, Wants[Each]] = {}
        self._asked: list[Wants[Each]] = []  # the same, as they came

    @property
    def shape_count(self) -> int:
        """How many kinds of machines there are."""
        return len(self._shapes)

    # ---------------------------------------------------------------- what changes

    def came(self, worker: Each) -> None:
        """A worker is there, or not there any more, or its machine, its name or its slots are others."""
        self.changes += 1
        self._rename(worker)
        key = match.shape(worker)
        shape = self._shapes.get(key)
        before = self._shape_of.get(worker.id)
        if shape is None:
            shape = self._shapes[key] = Shape(key, len(worker.inventory.devices))
        if before is not None and before is not shape:
            self._leave(before, worker.id)
        self._shape_of[worker.id] = shape
        shape.members[worker.id] = worker
        self._appear(shape, worker, worker.reachable)
        self._workers[worker.id] = worker
        self.touched(worker)

    def _rename(self, worker: Each) -> None:
        before = self._name_of.get(worker.id)
        if before is not None and before != worker.name:
            del self._named[before][worker.id]
            if not self._named[before]:
                del self._named[before]
        self._name_of[worker.id] = worker.name
        self._named.setdefault(worker.name, {})[worker.id] = worker

    def _appear(self, shape: Shape[Each], worker: Each, there: bool) -> None:
        known = bool(shape.there)
        if there:
            shape.there[worker.id] = worker
        else:
            shape.there.pop(worker.id, None)
        if known != bool(shape.there):
            self.version += 1

    def _leave(self, shape: Shape[Each], worker_id: str) -> None:
        self._unfile(worker_id)
        worker = shape.members.pop(worker_id)
        self._appear(shape, worker, False)
        if not shape.members:
            del self._shapes[shape.key]
            for wants in self._wants.values():
                wants.forget(shape)

    def took(self, worker: Each) -> None:
        """Less of a worker is free."""
        self._moved[worker.id] = worker

    def touched(self, worker: Each) -> None:
        """More of a worker may be free, or it takes more, or less."""
        self.frees += 1
        self._moved[worker.id] = self.freed[worker.id] = worker
        if worker.room_ahead > 0:
            self.willing[worker.id] = worker

    def keep(self, worker: Each, requirements: Requirements, uuids: frozenset[str]) -> None:
        """Reserve a slot of a worker, these devices, and what the requirements declare."""
        self._beside[worker.id] = Beside(worker, requirements, uuids)
        self._moved[worker.id] = worker

    def keep_no_more(self, worker: Each) -> None:
        """Nothing of a worker is reserved."""
        if self._beside.pop(worker.id, None) is not None:
            self.touched(worker)

    # ---------------------------------------------------------------- requirements

    def wants(self, requirements: Requirements) -> Wants[Each]:
        """The record of a set of requirements."""
        found = self._wants.get(requirements)
        if found is None:
            found = self._wants[requirements] = Wants(requirements)
            self._asked.append(found)
        return found

    def fitting(self, worker: Each) -> Shape[Each]:
        """The shape of a worker, of which `fitting` and `demands` are as they are now; to be read."""
        shape = self._shape_of[worker.id]
        for wants in self._asked[shape.asked :]:
            if wants.pinned is not None or wants.fits(shape, worker):
                shape.fitting.add(wants)
                shape.demands.add(wants.demand)
        shape.asked = len(self._asked)
        return shape

    def forget(self, waiting: Iterable[Wants[Each]]) -> None:
        """Where too many sets are remembered, drop those with which nobody waits."""
        if len(self._wants) > _SPARE:
            self._wants = {wants.requirements: wants for wants in waiting}
            self._asked = list(self._wants.values())
            for shape in self._shapes.values():
                shape.fitting.clear()
                shape.demands.clear()
                shape.asked = 0

    def able(self, wants: Wants[Each]) -> Iterator[Each]:
        """Those who are there and could take it, however busy they are."""
        if wants.pinned is not None:
            for worker in self._named.get(wants.pinned, {}).values():
                if worker.reachable and wants.fits(self._shape_of[worker.id], worker):
                    yield worker
            return
        for shape in self.shapes(wants):
            yield from shape.there.values()

    def shapes(self, wants: Wants[Each]) -> list[Shape[Each]]:
        """The shapes that fit and of which somebody is there, those with the fewest devices first."""
        if wants.version != self.version:
            there = [shape for shape in self._shapes.values() if shape.there]
            fitting = [shape for shape in there if wants.fits(shape, next(iter(shape.there.values())))]
            wants.shapes = sorted(fitting, key=lambda shape: shape.devices)
            wants.version = self.version
        return wants.shapes

    # ---------------------------------------------------------------- what is free

    def seen(self, worker: Each) -> Candidate:
        """A worker as those see it who have nothing reserved there."""
        return self._beside.get(worker.id) or worker

    def reserved(self, worker: Each) -> bool:
        """Whether something of it is reserved."""
        return worker.id in self._beside

    def fits(self, wants: Wants[Each], worker: Each) -> bool:
        """Whether a worker could take it, however busy it is."""
        return wants.fits(self._shape_of[worker.id], worker)

    def could(self, wants: Wants[Each], worker: Each) -> bool:
        """Whether a worker has room for it, beside what is reserved there."""
        seen = self._beside.get(worker.id) or worker if self._beside else worker
        if seen.slots_free < 1 or not worker.reachable or worker.full:
            return False
        if wants.whole and len(seen.devices_free) < wants.count:
            return False
        if wants.ram_bytes > seen.ram_left_bytes or (wants.cpu_cores and wants.cpu_cores - _SLACK > seen.cpu_left):
            return False
        if not wants.fits(self._shape_of[worker.id], worker):
            return False
        return wants.light or match.has_room(wants.requirements, seen)

    def best_of(self, wants: Wants[Each], workers: Iterable[Each]) -> Pick[Each] | None:
        """Where it goes best of these few."""
        found = [worker for worker in workers if self.could(wants, worker)]
        return self._best(wants, found) if found else None

    def best(self, wants: Wants[Each]) -> Pick[Each] | None:
        """Where it goes best of all."""
        if wants.pinned is not None:
            return self.best_of(wants, self._named.get(wants.pinned, {}).values())
        self.settle()
        if wants.kind is not None:
            found = list(islice(self._with_devices(wants), 1 if wants.count == 1 else _LOOKED_AT))
        else:
            found = list(islice(self._without(wants), 1))
        return self._best(wants, found)

    def roomy(self, wants: Wants[Each]) -> Iterator[Each]:
        """All that have room for it, beside what is reserved there."""
        self.settle()
        for shape in self.shapes(wants):
            for free, entries in list(shape.open.items()) if shape.open else ():
                if wants.whole and free < wants.count:
                    continue
                for _, _, worker_id in list(entries):
                    worker = self._workers[worker_id]
                    if self.could(wants, worker):
                        yield worker

    def pick(self, wants: Wants[Each], worker: Each, seen: Candidate | None = None) -> Pick[Each] | None:
        """What it would get on a worker that has room for it; None where no devices can be found after all."""
        if wants.kind is None:
            return Pick(worker=worker)
        devices = topology.choose(wants.requirements, seen or self.seen(worker))
        return None if devices is None else Pick(worker=worker, devices=devices)

    def _best(self, wants: Wants[Each], workers: list[Each]) -> Pick[Each] | None:
        picks = [self.pick(wants, worker) for worker in workers]
        found = [pick for pick in picks if pick is not None]
        if len(found) > 1:
            found.sort(key=lambda pick: self._cost(wants, pick))
        return found[0] if found else None

    def _cost(self, wants: Wants[Each], pick: Pick[Each]) -> tuple[int, int, int, str]:
        """What it would strand: devices for one that needs none, else well linked ones, then any."""
        worker = pick.worker
        seen = self.seen(worker)
        if wants.kind is None:
            return (0, len(worker.inventory.devices), -seen.slots_free, worker.name)
        left = len(seen.devices_free)
        if wants.share_bytes is not None and pick.devices[0].uuid in seen.vram_left:
            return (-1, seen.vram_left[pick.devices[0].uuid], -seen.slots_free, worker.name)
        linked = topology.slowest(pick.devices, worker.inventory) if wants.count > 1 else 0
        return (-linked, left, -seen.slots_free, worker.name)

    def _without(self, wants: Wants[Each]) -> Iterator[Each]:
        """Those with room for something without devices: those with the fewest devices first, then the roomiest."""
        shapes = self.shapes(wants)
        for devices in dict.fromkeys(shape.devices for shape in shapes):
            alike = [shape.open.values() for shape in shapes if shape.devices == devices]
            yield from self._roomy_of([entries for lists in alike for entries in lists], wants)

    def _with_devices(self, wants: Wants[Each]) -> Iterator[Each]:
        """Those with room: shared devices that are begun, then those that would have the fewest devices left."""
        shapes = self.shapes(wants)
        if wants.share_bytes is not None:
            begun = [shape.sharing[bisect_left(shape.sharing, (wants.share_bytes, "")) :] for shape in shapes]
            for _, worker_id in heapq.merge(*begun):
                if self.could(wants, self._workers[worker_id]):
                    yield self._workers[worker_id]
        by_free: dict[int, list[list[Entry]]] = {}
        for shape in shapes:
            for free, entries in shape.open.items():
                if free >= wants.count:
                    by_free.setdefault(free, []).append(entries)
        for free in sorted(by_free):
            yield from self._roomy_of(by_free[free], wants)

    def _roomy_of(self, lists: list[list[Entry]], wants: Wants[Each]) -> Iterator[Each]:
        for _, _, worker_id in heapq.merge(*lists) if len(lists) > 1 else lists[0] if lists else ():
            worker = self._workers[worker_id]
            if self.could(wants, worker):
                yield worker

    # ---------------------------------------------------------------- the lists

    def settle(self) -> None:
        """File those that changed as they are now."""
        for worker in self._moved.values():
            self._file(worker)
        self._moved.clear()

    def _file(self, worker: Each) -> None:
        shape, seen = self._shape_of[worker.id], self.seen(worker)
        is_open = worker.reachable and seen.slots_free > 0 and not worker.full
        entry = (-seen.slots_free, worker.name, worker.id) if is_open else None
        free = len(seen.devices_free) if is_open else 0
        left = max(seen.vram_left.values(), default=None) if is_open and seen.vram_left else None
        filed = _Filed(shape=shape, free=free, entry=entry, shared=None if left is None else (left, worker.id))
        if self._filed.get(worker.id) == filed:
            return
        self._unfile(worker.id)
        self._filed[worker.id] = filed
        if filed.entry is not None:
            insort(shape.open.setdefault(free, []), filed.entry)
        if filed.shared is not None:
            insort(shape.sharing, filed.shared)
        if worker.room_ahead <= 0:
            self.willing.pop(worker.id, None)

    def _unfile(self, worker_id: str) -> None:
        filed = self._filed.pop(worker_id, None)
        if filed is None:
            return
        if filed.entry is not None:
            entries = filed.shape.open[filed.free]
            del entries[bisect_left(entries, filed.entry)]
            if not entries:
                del filed.shape.open[filed.free]
        if filed.shared is not None:
            del filed.shape.sharing[bisect_left(filed.shape.sharing, filed.shared)]
