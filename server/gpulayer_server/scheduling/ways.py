"""The ways between the devices of a machine, as numbers, and the best set of them.

Devices are positions here, and sets of them are the bits of an int: bit 0 is the machine's first device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations

#: Up to so many devices every set is looked at.
EXHAUSTIVE = 8
#: Above, sets of so many devices in all are compared.
GROWN = 256
#: So many answers of a shape are remembered: more than there are of 8 devices of which some are free and one job asks.
_REMEMBERED = 4096
#: Two slices of one card: nearer than any two cards without NVLink.
SAME_CARD = 60
#: The speed of ways over PCIe; go-gpuallocator counts alike. Bonded NVLinks count 100 each.
_RANKS = {"PIX": 50, "PXB": 40, "PHB": 30, "NODE": 20, "SYS": 10}
#: The slowest pair of a set that has none.
ALONE = 1 << 30
_ONE_NODE = 1024  # what `Ways.apart` says of devices that are all on one
_PARTS = (4, 2)  # what jobs ask for: the sizes of the sets that are best left whole, the dearest first


def rank(kind: str, count: int = 1) -> int:
    """How fast a link is, as `Link` has its kind and count: more is faster, 0 is unknown."""
    return 100 * max(1, count) if kind == "NV" else _RANKS.get(kind, 0)


@dataclass(frozen=True, kw_only=True)
class Ways:
    """What matters of a machine's devices: machines with equal ones are of one shape."""

    ranks: tuple[tuple[int, ...], ...]  # how fast each device reaches each other one
    numas: tuple[int | None, ...]

    def of(self, positions: tuple[int, ...]) -> Ways:
        """The ways between some of the devices."""
        ranks = tuple(tuple(self.ranks[a][b] for b in positions) for a in positions)
        return Ways(ranks=ranks, numas=tuple(self.numas[a] for a in positions))

    def apart(self, devices: tuple[int, ...]) -> int:
        """How far a set is from lying on one known NUMA node; unknown ones count as nodes of their own."""
        nodes = [self.numas[at] for at in devices]
        unknown = nodes.count(None)
        return (len(set(nodes) - {None}) + unknown) * _ONE_NODE + unknown


def bits(mask: int) -> Iterator[int]:
    """The positions in a set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Weighed:
    """Sets of a shape's devices, and which one is best; what was asked once is remembered."""

    def __init__(self, ways: Ways) -> None:
        self.ways = ways
        self._best: dict[tuple[int, int, int], int] = {}

    def best(self, free: int, usable: int, count: int) -> int:
        """The best set of `count` of the `usable` devices, of which none is not `free`; of equals the first."""
        key = (free, usable, count)
        found = self._best.get(key)
        if found is None:
            if len(self._best) >= _REMEMBERED:
                self._best.clear()
            found = self._best[key] = self._search(free, usable, count)
        return found

    def _search(self, free: int, usable: int, count: int) -> int:
        raise NotImplementedError


class Exhaustive(Weighed):
    """Every set of at most `EXHAUSTIVE` devices."""

    def __init__(self, ways: Ways) -> None:
        super().__init__(ways)
        count = len(ways.ranks)
        self._slowest = [ALONE] * (1 << count)  # pair of each set
        self._total = [0] * (1 << count)  # of the ranks of all of its pairs
        for mask in range(1, 1 << count):
            low = (mask & -mask).bit_length() - 1
            rest = mask & (mask - 1)
            ranks = [ways.ranks[low][at] for at in bits(rest)]
            self._slowest[mask] = min([self._slowest[rest], *ranks])
            self._total[mask] = self._total[rest] + sum(ranks)
        self._apart = [ways.apart(tuple(bits(mask))) for mask in range(1 << count)]
        self._left = {size: self._parted(size, count) for size in _PARTS if size < count}

    def _parted(self, size: int, count: int) -> list[int]:
        """For each set: what the best way to part it into sets of `size` is worth; what is left over is not."""
        worth = [0] * (1 << count)
        for mask in range(1, 1 << count):
            low = mask & -mask
            best = worth[mask ^ low]
            others = [1 << at for at in bits(mask ^ low)]
            for chosen in combinations(others, size - 1):
                part = low + sum(chosen)
                best = max(best, 2 * self._slowest[part] + (self._apart[part] == _ONE_NODE) + worth[mask ^ part])
            worth[mask] = best
        return worth

    def _search(self, free: int, usable: int, count: int) -> int:
        best, most = 0, (-1,)
        for chosen in combinations([1 << at for at in bits(usable)], count):
            mask = sum(chosen)
            left = [worth[free ^ mask] for worth in self._left.values()]
            value = (self._slowest[mask], -self._apart[mask], self._total[mask], *left)
            if value > most:
                best, most = mask, value
        return best


class Grown(Weighed):
    """Of more devices: sets grown from each one, nearest first. Exact where ways are like a tree's, as PCIe's are."""

    def __init__(self, ways: Ways) -> None:
        super().__init__(ways)
        count = len(ways.ranks)
        just: dict[int, list[int]] = {}  # by rank, for each device: those that it reaches so fast
        for a, row in enumerate(ways.ranks):
            for b in range(a):
                reach = just.get(row[b])
                if reach is None:
                    reach = just[row[b]] = [0] * count
                reach[a] |= 1 << b
                reach[b] |= 1 << a
        self._levels = sorted(just, reverse=True)
        self._reach: list[list[int]] = []  # by level, fastest first: those that each device reaches so fast or faster
        for level in self._levels:
            faster = self._reach[-1] if self._reach else [0] * count
            self._reach.append([a | b for a, b in zip(faster, just[level], strict=True)])
        self._order: dict[int, list[int]] = {}

    def _search(self, free: int, usable: int, count: int) -> int:
        for reach in self._reach:
            sets = self._grow(reach, usable, count)
            if sets:
                return max(sets, key=lambda mask: (self._value(mask, free), [-at for at in bits(mask)]))
        return 0

    def _grow(self, reach: list[int], usable: int, count: int) -> list[int]:
        """Sets in which every two reach each other at this level, in order of the devices that they were grown from."""
        found: dict[int, None] = {}
        most = max(8, GROWN // count)
        for seed in bits(usable):
            mask, pool, lacking = 1 << seed, reach[seed] & usable, count - 1
            if pool.bit_count() < lacking:
                continue
            for at in self._nearest(seed):
                if not lacking:
                    break
                if pool >> at & 1:
                    mask |= 1 << at
                    pool &= reach[at]
                    lacking -= 1
            if not lacking:
                found[mask] = None
            if len(found) >= most:
                break
        return list(found)

    def _nearest(self, seed: int) -> list[int]:
        """All devices, the nearest to one first."""
        order = self._order.get(seed)
        if order is None:
            ranks, numas = self.ways.ranks[seed], self.ways.numas
            keys = [(-ranks[at], numas[at] != numas[seed], at) for at in range(len(ranks))]
            order = self._order[seed] = [at for _, _, at in sorted(keys)]
        return order

    def _value(self, mask: int, free: int) -> tuple[int, ...]:
        """Nearness and speed of a set, then the fast ways to what is left that it cuts, the fastest ones first."""
        members = tuple(bits(mask))
        rest = free & ~mask
        cut = [-sum([(reach[at] & rest).bit_count() for at in members]) for reach in self._reach]
        steps = [a - b for a, b in zip(self._levels, [*self._levels[1:], 0], strict=True)]
        inner = [sum([(reach[at] & mask).bit_count() for at in members]) for reach in self._reach]
        total = sum([step * pairs for step, pairs in zip(steps, inner, strict=True)])
        return (-self.ways.apart(members), total, *cut)


@lru_cache(maxsize=1024)
def weighed(ways: Ways) -> Weighed:
    """What there is to know of a shape, worked out once."""
    return Exhaustive(ways) if len(ways.ranks) <= EXHAUSTIVE else Grown(ways)
