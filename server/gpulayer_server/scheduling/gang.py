"""Which machines a job on many machines gets: all in one step, or none.

A machine's place is its network group (its label `gpulayer.dev/network-group`), zone and region. Machines are gathered
by place first, so that a fleet of any size is a short list. The policies:

- `prefer`: the fewest regions, of these the fewest zones, of these the fewest groups, and of equals what fits tightest.
- `require`: one group; where machines carry no such label one zone, or else one region. Where nothing is known of a
  machine's place, nothing says that it is near another one.
- `spread`: the most regions, then zones, then groups.
- `none`: any, those first that the rest can spare.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, combinations, islice
from typing import NamedTuple, TypeVar

from gpulayer.protocol.types import Requirements
from gpulayer_server.scheduling import topology
from gpulayer_server.scheduling.candidate import Candidate, Each

#: The label that says which machines share a fast network.
NETWORK_GROUP = "gpulayer.dev/network-group"
#: Of ways to combine regions, and zones, so many are compared: all of them in a fleet of any usual shape.
_REGION_SETS = 8
_ZONE_SETS = 32
#: So many machines of one place are asked how fast their devices' links are.
_ASKED_FOR_LINKS = 32

Zone = tuple[str, str]  # its region, its name
Key = TypeVar("Key", str, Zone)


class Place(NamedTuple):
    """Where a machine is; '' is unknown. In the order in which crossings cost."""

    region: str
    zone: str
    group: str

    @property
    def unknown(self) -> int:
        """How many of the three are."""
        return self.count("")

    def words(self) -> str:
        """The nearest of the three that is known, like 'network group ib-1'."""
        if self.group:
            return f"network group {self.group}"
        return f"zone {self.zone}" if self.zone else f"region {self.region}"


NOWHERE = Place("", "", "")
Shares = list[tuple[Place, int]]  # so many machines of each place


def place(worker: Candidate) -> Place:
    """Where a worker is."""
    inventory = worker.inventory
    return Place(inventory.region, inventory.zone, inventory.labels.get(NETWORK_GROUP, ""))


def choose_nodes(requirements: Requirements, able: Iterable[Each], room: Callable[[Each], bool]) -> list[Each] | None:
    """As many different workers as the job takes, neighbours beside each other; None where it can't have them now.

    `able`: those that could take it. `room`: whether one can now.
    """
    places: dict[Place, list[Each]] = {}
    for worker in able:
        if room(worker):
            places.setdefault(place(worker), []).append(worker)
    sizes = {where: len(places[where]) for where in sorted(places)}
    shares = _shares(requirements, sizes)
    if shares is None:
        return None
    if requirements.locality == "none":
        every = [worker for there in places.values() for worker in there]
        return heapq.nsmallest(requirements.nodes, every, key=_spared)
    return [worker for where, count in shares for worker in _of_place(requirements, places[where], count)]


def could(requirements: Requirements, able: Iterable[Candidate]) -> bool:
    """Whether these workers would do if all of them were free: else the job's policy, or their number, forbids it."""
    return _shares(requirements, _sizes(able)) is not None


def apart(requirements: Requirements, workers: Iterable[Candidate]) -> str:
    """Why so many machines don't do, where there are enough of them but not near enough; '' for all else."""
    sizes, nodes = _sizes(workers), requirements.nodes
    if sum(sizes.values()) < nodes or requirements.locality != "require" or _require(sizes, nodes) is not None:
        return ""
    known = {where: size for where, size in sizes.items() if where != NOWHERE}
    text = f"needs {nodes} machines of one network group, zone or region"
    if not known:
        return f"{text}, and of none it is known where it is: join with --label {NETWORK_GROUP}=NAME or --zone"
    where = max(known, key=lambda each: (known[each], each))
    return f"{text}, the most are {known[where]} in {where.words()}"


def _sizes(workers: Iterable[Candidate]) -> dict[Place, int]:
    """How many there are at each place, in order."""
    return dict(sorted(Counter(map(place, workers)).items()))


def _shares(requirements: Requirements, sizes: Mapping[Place, int]) -> Shares | None:
    """How many machines to take of which place, of places with so many each, in order."""
    if sum(sizes.values()) < requirements.nodes:
        return None
    if requirements.locality == "require":
        return _require(sizes, requirements.nodes)
    if requirements.locality == "spread":
        return _spread(sizes, requirements.nodes)
    return _prefer(sizes, requirements.nodes)


def _require(sizes: Mapping[Place, int], count: int) -> Shares | None:
    fitting = [(where.unknown, size, where) for where, size in sizes.items() if size >= count and where != NOWHERE]
    return [(min(fitting)[2], count)] if fitting else None


def _prefer(sizes: Mapping[Place, int], count: int) -> Shares:
    by_zone: dict[Zone, dict[Place, int]] = {}
    for where, size in sizes.items():
        by_zone.setdefault((where.region, where.zone), {})[where] = size
    best: tuple[tuple[int, int, int, int], tuple[Place, ...]] | None = None
    for zones in _zone_sets(by_zone, count):
        within = {where: size for zone in zones for where, size in by_zone[zone].items()}
        groups = _tightest(within, count)
        unknown = sum([where.unknown for where in groups])
        found = ((len(zones), len(groups), unknown, sum([within[where] for where in groups])), groups)
        best = found if best is None else min(best, found)
    taken: Shares = []
    for where in best[1] if best is not None else ():
        taken.append((where, min(sizes[where], count)))
        count -= taken[-1][1]
    return sorted(taken)


def _zone_sets(by_zone: Mapping[Zone, Mapping[Place, int]], count: int) -> Iterator[tuple[Zone, ...]]:
    """Sets of zones that could hold all, over the fewest regions."""
    zones = {zone: sum(there.values()) for zone, there in by_zone.items()}
    regions: dict[str, int] = {}
    for (region, _), size in zones.items():
        regions[region] = regions.get(region, 0) + size
    for chosen in _fewest(regions, count, _REGION_SETS):
        yield from _fewest({zone: size for zone, size in zones.items() if zone[0] in chosen}, count, _ZONE_SETS)


def _fewest(sizes: Mapping[Key, int], count: int, most: int) -> Iterator[tuple[Key, ...]]:
    """Sets of the fewest keys whose sizes add up to `count`: `most` of them, those of the largest keys first."""
    largest = sorted(sizes, key=lambda key: (-sizes[key], key))
    fewest = _how_many([sizes[key] for key in largest], count)
    sets = (chosen for chosen in combinations(largest, fewest) if sum([sizes[key] for key in chosen]) >= count)
    return islice(sets, most)


def _how_many(sizes: Iterable[int], count: int) -> int:
    """How many of the sizes, in this order, add up to `count`."""
    summed = accumulate(sizes)
    return next(at for at, total in enumerate(summed, 1) if total >= count)


def _tightest(sizes: Mapping[Place, int], count: int) -> tuple[Place, ...]:
    """The fewest places that hold `count`, the largest first, the last one no larger than it has to be."""
    largest = sorted(sizes, key=lambda where: (-sizes[where], where.unknown, where))
    fewest = _how_many([sizes[where] for where in largest], count)
    whole, rest = largest[: fewest - 1], largest[fewest - 1 :]
    lacking = count - sum([sizes[where] for where in whole])
    last = min([where for where in rest if sizes[where] >= lacking], key=lambda each: (sizes[each], each.unknown, each))
    return (*whole, last)


def _spread(sizes: Mapping[Place, int], count: int) -> Shares:
    """One machine of each region, then one of each zone that has none yet, then of each group; then round by round."""
    order: list[tuple[int, int, Place]] = []  # zones by their number in the region, groups by theirs in the zone
    zones: dict[str, list[str]] = {}
    groups: dict[Zone, int] = {}
    for where in sizes:
        in_region = zones.setdefault(where.region, [])
        if where.zone not in in_region:
            in_region.append(where.zone)
        zone = (where.region, where.zone)
        order.append((groups.get(zone, 0), in_region.index(where.zone), where))
        groups[zone] = groups.get(zone, 0) + 1
    order.sort()
    taken = dict.fromkeys([where for *_, where in order], 0)
    while count:
        for where in taken:
            if count and taken[where] < sizes[where]:
                taken[where] += 1
                count -= 1
    return [(where, number) for where, number in sorted(taken.items()) if number]


def _of_place(requirements: Requirements, there: Sequence[Each], count: int) -> list[Each]:
    """The workers of one place to take: those whose devices are linked fastest, then those that the rest can spare."""
    if requirements.device_count < 2 or count == len(there):
        return heapq.nsmallest(count, there, key=_spared)
    likely = heapq.nsmallest(max(_ASKED_FOR_LINKS, count), there, key=_spared)
    return heapq.nsmallest(count, likely, key=lambda worker: (-_speed(requirements, worker), _spared(worker)))


def _speed(requirements: Requirements, worker: Candidate) -> int:
    devices = topology.choose(requirements, worker)
    return topology.slowest(devices, worker.inventory) if devices else 0


def _spared(worker: Candidate) -> tuple[int, int, str]:
    """What a machine is to others: few devices to strand, then much room, go first."""
    return (len(worker.devices_free), -worker.slots_free, worker.name)
