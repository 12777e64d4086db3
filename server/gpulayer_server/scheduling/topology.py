"""Which devices of a machine a job gets: those that talk to each other fastest, and that the rest can spare.

The best set is the one whose slowest pair is fastest; then the one that lies on the fewest NUMA nodes; then the one
with more fast pairs beside the slowest; then the one that strands the rest least: what is left holds the best fours,
and then the best pairs, over all ways to part it (the thought of go-gpuallocator's best-effort policy). Every set is
looked at where at most `EXHAUSTIVE` devices may be taken; above, a bounded number of sets grown from each device.
Machines of one shape share what was worked out for any of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulayer.protocol.types import Device, Inventory, Link, Requirements
from gpulayer_server.scheduling import vacancy
from gpulayer_server.scheduling.asked import Asked, asked
from gpulayer_server.scheduling.candidate import Candidate
from gpulayer_server.scheduling.ways import ALONE, EXHAUSTIVE, SAME_CARD, Ways, Weighed, bits, rank, weighed

__all__ = ["ALONE", "EXHAUSTIVE", "choose", "rank", "slowest", "subset"]

#: So many machines are kept in numbers; one that is not is read again, in microseconds.
_KEPT = 16_384


class _Machine:
    """The devices of a machine by position, and what its ways are worth."""

    def __init__(self, devices: Sequence[Device], links: Iterable[Link]) -> None:
        self.devices = tuple(devices)
        self.at = {device.uuid: at for at, device in enumerate(devices)}
        self.ways = _ways(self.devices, links)
        self._weighed: Weighed | None = None

    def mask(self, devices: Iterable[Device]) -> int:
        """A set of its devices."""
        return sum({1 << self.at[device.uuid] for device in devices})

    def best(self, free: int, usable: int, count: int) -> tuple[Device, ...]:
        """The best of the usable ones, in the machine's order."""
        if count == usable.bit_count():
            chosen = usable
        elif len(self.devices) > EXHAUSTIVE >= usable.bit_count():
            places = tuple(bits(usable))
            every = (1 << len(places)) - 1
            found = weighed(self.ways.of(places)).best(every, every, count)
            chosen = sum([1 << places[at] for at in bits(found)])
        else:
            self._weighed = self._weighed or weighed(self.ways)
            chosen = self._weighed.best(free, usable, count)
        return tuple([self.devices[at] for at in bits(chosen)])


_machines: dict[tuple[int, int], tuple[tuple[Device, ...], tuple[Link, ...], _Machine]] = {}


def _machine(inventory: Inventory) -> _Machine:
    """The machine of an inventory, which holds as long as the inventory's own tuples are there."""
    key = (id(inventory.devices), id(inventory.links))
    kept = _machines.get(key)
    if kept is None:
        if len(_machines) >= _KEPT:
            del _machines[next(iter(_machines))]
        # the tuples are kept, so that nothing else can get their ids
        kept = _machines[key] = (inventory.devices, inventory.links, _Machine(inventory.devices, inventory.links))
    return kept[2]


def _ways(devices: Sequence[Device], links: Iterable[Link]) -> Ways:
    """Links tell of whole cards or of their slices; slices of one card are the nearest of all over PCIe."""
    at = {device.uuid: place for place, device in enumerate(devices)}
    ranks = [[0] * len(devices) for _ in devices]
    of_cards: dict[tuple[str, str], int] = {}
    for link in links:
        a, b = at.get(link.a), at.get(link.b)
        if a is not None and b is not None:
            ranks[a][b] = ranks[b][a] = rank(link.kind, link.count)
        else:
            of_cards[link.a, link.b] = of_cards[link.b, link.a] = rank(link.kind, link.count)
    slices = [place for place, device in enumerate(devices) if device.parent]
    for a, b in ((a, b) for a in slices for b in range(len(devices)) if a != b and not ranks[a][b]):
        one, other = devices[a].parent, devices[b].parent or devices[b].uuid
        ranks[a][b] = ranks[b][a] = SAME_CARD if one == other else of_cards.get((one, other), 0)
    return Ways(ranks=tuple(map(tuple, ranks)), numas=tuple([device.numa for device in devices]))


def subset(
    devices: Sequence[Device], links: Iterable[Link], count: int, keep: Sequence[Device] | None = None
) -> tuple[Device, ...]:
    """The best `count` of the devices, in order of their index.

    `keep`: all that are free, among them those that this job can't use: what is left of them is to be stranded least;
    None: `devices`. Raises `ValueError` where there are fewer than `count`.
    """
    if not 0 <= count <= len(devices):
        raise ValueError(f"{count} of {len(devices)} devices")
    if not count:
        return ()
    every = {device.uuid: device for device in (*devices, *(keep or ()))}
    machine = _Machine(sorted(every.values(), key=lambda device: (device.index, device.uuid)), links)
    usable = machine.mask(devices)
    return machine.best(machine.mask(keep or devices) | usable, usable, count)


def slowest(devices: Sequence[Device], inventory: Inventory) -> int:
    """How fast the slowest pair of a machine's devices is, as `rank` has it; more than any link for fewer than two."""
    machine = _machine(inventory)
    places = [machine.at[device.uuid] for device in devices]
    return min([machine.ways.ranks[a][b] for a in places for b in places if a < b], default=ALONE)


def choose(requirements: Requirements, worker: Candidate) -> tuple[Device, ...] | None:
    """The devices that a job is to take on this worker now, in the inventory's order; none if it asks for none.

    None where it can't have them now. One device of a size that is told is the smallest that has it. A share goes to
    the fullest card on which it still fits, by what was declared and by what others were measured to use, so that whole
    cards stay free.
    """
    asks = asked(requirements)
    if asks.kind is None:
        return ()
    if asks.share_bytes is not None:
        return _shared(asks, asks.share_bytes, worker)
    vacant = vacancy.free_devices(asks, worker)
    if len(vacant) < asks.count:
        return None
    alone = _alone(vacant, worker)
    usable = alone if len(alone) >= asks.count else vacant
    return _best(worker, _smallest(usable) if asks.count == 1 and asks.vram_bytes is not None else usable, asks.count)


def _best(worker: Candidate, usable: Sequence[Device], count: int) -> tuple[Device, ...]:
    machine = _machine(worker.inventory)
    return machine.best(machine.mask(worker.devices_free), machine.mask(usable), count)


def _smallest(devices: Sequence[Device]) -> Sequence[Device]:
    """Those with the least memory: larger ones are left to those who need them."""
    least = min([device.vram_bytes or 0 for device in devices])
    return [device for device in devices if (device.vram_bytes or 0) == least]


def _alone(devices: Sequence[Device], worker: Candidate) -> list[Device]:
    """Those on which no process of somebody else's was seen."""
    if worker.sample is None:
        return list(devices)
    beside = {each.uuid for each in worker.sample.devices if each.foreign}
    return [device for device in devices if device.uuid not in beside]


def _shared(asks: Asked, wanted: int, worker: Candidate) -> tuple[Device, ...] | None:
    """A device in shared use before a free one; of these the one with the least left; of equals what strands least."""
    lefts = {device.uuid: vacancy.share_left(worker, device) for device in worker.inventory.devices}
    fitting = [device for device in vacancy.shareable_devices(asks, worker) if lefts[device.uuid] >= wanted]
    begun = [device for device in fitting if device.uuid in worker.vram_left]
    if begun:
        return (min(begun, key=lambda device: lefts[device.uuid]),)
    if not fitting:
        return None
    least = min(lefts[device.uuid] for device in fitting)
    return _best(worker, [device for device in fitting if lefts[device.uuid] == least], 1)
