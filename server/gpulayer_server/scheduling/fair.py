"""Whose turn it is: within one priority that owner's who holds least; within one owner who came first."""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from gpulayer_server.scheduling.queue import Group, Order, Queue

Key = TypeVar("Key", bound=Hashable)

#: What a device counts for beside a slot when it is asked who holds least: about the cores that come with one.
DEVICE_WEIGHT = 8


_Entry: TypeAlias = tuple[int, int, Order, str]  # priority, weight, order, owner


class Held(Protocol):
    """What somebody holds of a worker: a slot, and perhaps devices."""

    @property
    def owner(self) -> str: ...

    @property
    def devices(self) -> tuple[object, ...]: ...


@dataclass(kw_only=True, slots=True)
class Use:
    """What an owner's jobs and sessions hold."""

    running: int = 0  # slots
    devices: int = 0

    @property
    def weight(self) -> int:
        """What it is compared by."""
        return self.running + DEVICE_WEIGHT * self.devices


class Usage:
    """What each owner holds now."""

    def __init__(self) -> None:
        self.of: dict[str, Use] = {}

    def add(self, claim: Held) -> None:
        """Somebody took something."""
        use = self.of.get(claim.owner)
        if use is None:
            use = self.of[claim.owner] = Use()
        use.running += 1
        use.devices += len(claim.devices)

    def remove(self, claim: Held) -> None:
        """It is free again."""
        use = self.of[claim.owner]
        use.running -= 1
        use.devices -= len(claim.devices)
        if not use.running:
            del self.of[claim.owner]

    def weight(self, owner: str) -> int:
        """What an owner is compared by."""
        use = self.of.get(owner)
        return 0 if use is None else use.weight


class Turns(Generic[Key]):
    """One walk along the classes that wait, each with its first task, in the order in which they may be placed.

    What is placed on the way counts at once: its owner holds more then, and its class has another first task, which
    stands behind it.
    """

    def __init__(self, queue: Queue[Key], weight: Callable[[str], int], wanted: Callable[[Key], bool]):
        """`weight`: what an owner holds; `wanted`: whether a class is to be looked at, asked as late as it can be."""
        self._queue = queue
        self._weight = weight
        self._wanted = wanted
        self._passed: dict[Group, Order] = {}
        self._heap: list[_Entry] = []
        self._found: dict[Group, _Entry] = {}  # that in the heap which counts
        self._due: list[Group] = list(queue.groups())  # whose next one is to be found
        queue.joined.clear()
        self._turn: Group | None = None

    def next(self) -> Key | None:
        """Whose turn it is now; None where the walk is over."""
        while True:
            groups = self._queue.groups()
            if self._queue.joined:  # classes of which another task is first now, perhaps one of lower priority
                self._due += self._queue.joined
                self._queue.joined.clear()
            for group in self._due:
                self._find(group, groups.get(group))
            self._due.clear()
            if not self._heap:
                return None
            entry = heapq.heappop(self._heap)
            priority, weight, order, owner = entry
            group = (priority, owner)
            if self._found.get(group) is not entry:
                continue  # another one was found since
            self._due.append(group)
            places = groups.get(group, [])
            at = bisect_left(places, order, key=_order)
            right = weight == self._weight(owner) and at < len(places) and places[at][0] == order
            if right and self._wanted(places[at][1]):
                self._passed[group], self._turn = order, group
                return places[at][1]

    def bound(self) -> Order:
        """How far the class whose turn it is may go on: to the next one of its owner, if no other's turn can come."""
        if self._turn is None:
            raise RuntimeError("nobody's turn has come")
        groups, priority = self._queue.groups(), self._turn[0]
        order = self._passed[self._turn]
        if any(group[0] == priority and group != self._turn for group in groups):
            return order
        places = groups.get(self._turn, [])
        at = bisect_right(places, order, key=_order)
        return places[at][0] if at < len(places) else (priority, _LAST, 0)

    def again(self) -> None:
        """Look once more at what was passed over since the last turns: more may be wanted now."""
        self._heap.clear()
        self._due = list(self._queue.groups())

    def _find(self, group: Group, places: list[tuple[Order, Key]] | None) -> None:
        self._found.pop(group, None)
        if places is None:
            return
        passed, wanted = self._passed.get(group), self._wanted
        first = 0 if passed is None else bisect_right(places, passed, key=_order)
        for order, key in places[first:] if first else places:
            if wanted(key):
                entry = self._found[group] = (group[0], self._weight(group[1]), order, group[1])
                heapq.heappush(self._heap, entry)
                return


def _order(entry: tuple[Order, Hashable]) -> Order:
    return entry[0]


_LAST = sys.maxsize
