"""Sets of indices, kept as ranges: what is done with a thousand neighbours costs what it costs with one."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]  # the first, and the one behind the last


class Ranges:
    """A set of indices. Neighbours are one range; ranges ascend and never touch."""

    __slots__ = ("_ends", "_starts", "count")

    def __init__(self, ranges: Iterable[Range] = ()):
        self._starts: list[int] = []
        self._ends: list[int] = []
        self.count = 0  # of indices
        for first, end in ranges:
            self.add(first, end)

    def __iter__(self) -> Iterator[Range]:
        """The ranges, ascending."""
        return iter(list(zip(self._starts, self._ends, strict=True)))

    def __contains__(self, index: int) -> bool:
        at = bisect_right(self._starts, index) - 1
        return at >= 0 and index < self._ends[at]

    @property
    def first(self) -> int:
        """The lowest index. Raises IndexError where there is none."""
        return self._starts[0]

    @property
    def pieces(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def add(self, first: int, end: int) -> None:
        """Add the indices from `first` to before `end`."""
        if first >= end:
            return
        starts, ends = self._starts, self._ends
        if not starts or first > ends[-1]:
            starts.append(first)
            ends.append(end)
            self.count += end - first
            return
        low = bisect_left(ends, first)  # the first range that touches
        high = bisect_right(starts, end)  # the first that lies behind
        if low == high:
            starts.insert(low, first)
            ends.insert(low, end)
            self.count += end - first
            return
        before = sum([ends[at] - starts[at] for at in range(low, high)])
        first, end = min(first, starts[low]), max(end, ends[high - 1])
        starts[low:high], ends[low:high] = [first], [end]
        self.count += end - first - before

    def remove(self, first: int, end: int) -> int:
        """Take these indices out, as far as they are in; how many were."""
        if first >= end:
            return 0
        starts, ends = self._starts, self._ends
        low = bisect_right(ends, first)  # the first range that ends behind `first`
        high = bisect_left(starts, end)  # the first that lies behind
        if low >= high:
            return 0
        before = sum([ends[at] - starts[at] for at in range(low, high)])
        left: list[Range] = []
        if starts[low] < first:
            left.append((starts[low], first))
        if ends[high - 1] > end:
            left.append((end, ends[high - 1]))
        starts[low:high] = [each[0] for each in left]
        ends[low:high] = [each[1] for each in left]
        removed = before - sum([each[1] - each[0] for each in left])
        self.count -= removed
        return removed

    def take(self, count: int) -> list[Range]:
        """Take the lowest indices out, so many at most; as ranges, ascending."""
        taken: list[Range] = []
        starts, ends, at = self._starts, self._ends, 0
        while count > 0 and at < len(starts):
            first, end = starts[at], min(ends[at], starts[at] + count)
            taken.append((first, end))
            count -= end - first
            self.count -= end - first
            if end < ends[at]:
                starts[at] = end
            else:
                at += 1
        del starts[:at], ends[:at]
        return taken

    def within(self, first: int, end: int) -> list[Range]:
        """What of this range is in."""
        found: list[Range] = []
        starts, ends = self._starts, self._ends
        for at in range(bisect_right(ends, first), len(starts)):
            if starts[at] >= end:
                break
            found.append((max(first, starts[at]), min(end, ends[at])))
        return [each for each in found if each[0] < each[1]]

    def missing(self, first: int, end: int) -> list[Range]:
        """What of this range is not in."""
        found: list[Range] = []
        for low, high in self.within(first, end):
            if first < low:
                found.append((first, low))
            first = high
        if first < end:
            found.append((first, end))
        return found

    def clear(self) -> None:
        """Take all out."""
        self._starts.clear()
        self._ends.clear()
        self.count = 0
