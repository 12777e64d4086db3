"""Whose turn it is: within one priority that owner's who holds least; within one owner who came first."""

from __future__ import annotations

import heapq
import sys
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from gpulayer_server.scheduling.queue import Group, Order, Queue

Key = TypeVar("Key", bound=Hashable)

#: What a device counts for beside a slot when it is asked who holds least: about the cores that come with one.
DEVICE_WEIGHT = 8


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


class _Turn(NamedTuple):
    """A class that may be next of its owner's. They are sorted by the first two."""

    order: Order
    n: int
    owner: str
    group: Group | None  # of which it is the first that is wanted; None: it is looked at by itself
    key: Any  # a Key: Python 3.10 has no generic ones


class _Owner(NamedTuple):
    """An owner who may be next, with tasks of one priority."""

    priority: int  # minus it
    weight: int  # what he held when this was made
    order: Order  # of his first class
    name: str


class Turns(Generic[Key]):
    """One walk along the classes that wait, each with its first task, in the order in which they may be placed.

    What is placed on the way counts at once: its owner holds more then, and its class has another first task, which
    stands behind it.
    """

    def __init__(
        self,
        queue: Queue[Key],
        weight: Callable[[str], int],
        wanted: Callable[[Key], bool],
        demands: Iterable[Hashable] | None = None,
        likely: Callable[[list[tuple[Order, Key]]], Iterable[tuple[Order, Key]]] | None = None,
    ):
        """`weight`: what an owner holds; `wanted`: whether a class is to be looked at, asked as late as it can be;
        `demands`: only classes of these are, and those that are `fresh`; None: all; `likely`: of some places those
        whose classes may be wanted, as a quick sieve before that.
        """
        self._queue = queue
        self._weight = weight
        self._wanted = wanted
        self._likely = likely
        self._demands = None if demands is None else dict.fromkeys(demands)
        self._passed: dict[Group, Order] = {}
        self._owners: list[_Owner] = []  # a heap
        self._listed: dict[tuple[int, str], _Owner] = {}  # that in the heap which counts
        self._turns: dict[tuple[int, str], list[_Turn]] = {}  # heaps, by priority and owner
        self._found: dict[Group, _Turn] = {}  # that in its heap which counts
        self._due: dict[tuple[int, str], list[Group]] = {}  # by priority and owner: whose next one is to be found
        self._alone: list[Key] = []  # fresh ones that are to come into the heaps
        self._turn: _Turn | None = None
        self._n = 0
        self.again()

    def again(self, demands: Iterable[Hashable] = ()) -> None:
        """Look once more at what was passed over since the last turns: more may be wanted now, of these demands too."""
        queue, groups = self._queue, self._queue.groups()
        for all_of in (self._owners, self._listed, self._turns, self._found, self._due, self._passed, queue.joined):
            all_of.clear()
        if self._demands is None:
            for group in groups:
                self._find_later(group)
            return
        self._demands.update(dict.fromkeys(demands))
        for demand in self._demands:
            for group in queue.demanding(demand):
                self._find_later(group)
        self._alone = list(queue.fresh)

    def next(self) -> Key | None:
        """Whose turn it is now; None where the walk is over."""
        while True:
            self._gather()
            turn = self._pop()
            if turn is None:
                return None
            group, key = turn.group, turn.key
            if group is None:
                if key not in self._queue.fresh:
                    continue
                self._alone.append(key)
            elif self._found.get(group) is not turn:
                continue  # another one was found since
            else:
                self._find_later(group)
            if self._queue.order(key) != turn.order or not self._wanted(key):
                continue
            if group is not None:
                self._passed[group] = turn.order
            self._turn = turn
            return key

    def _pop(self) -> _Turn | None:
        """The first class of the owner who is next."""
        while self._owners:
            owner = heapq.heappop(self._owners)
            where = (owner.priority, owner.name)
            if self._listed.get(where) is not owner:
                continue
            turn = None
            if owner.weight == self._weight(owner.name):
                if where in self._due:
                    self._find_all(where)
                else:
                    turn = heapq.heappop(self._turns[where])
            self._list(where)
            if turn is not None:
                return turn
        return None

    def _list(self, where: tuple[int, str]) -> None:
        """Put an owner into the heap, as he stands now."""
        turns = self._turns.get(where)
        if where in self._due:
            first = _FIRST
        elif turns:
            first = turns[0].order
        else:
            self._listed.pop(where, None)
            return
        owner = self._listed[where] = _Owner(where[0], self._weight(where[1]), first, where[1])
        heapq.heappush(self._owners, owner)

    def bound(self) -> Order:
        """How far the class whose turn it is may go on: to the next one, or not at all where others' turn may come."""
        turn = self._turn
        if turn is None:
            raise RuntimeError("nobody's turn has come")
        if self._queue.owners() > 1:
            return turn.order
        for where in [where for where in self._due if where[0] == turn.order[0]]:
            self._find_all(where)
            self._list(where)
        bound = min([turns[0].order for turns in self._turns.values() if turns], default=_LAST)
        bound = min([bound, *[(priority, -1, 0) for priority, _ in self._due]])
        if turn.group is not None:
            places = self._queue.groups().get(turn.group, [])
            at = bisect_right(places, turn.order, key=_order)
            if at < len(places):
                bound = min(bound, places[at][0])
        return max(bound, turn.order)  # some in the heaps may be history

    def _gather(self) -> None:
        """See to those whose turn may come now since something was placed."""
        queue = self._queue
        queue.groups()
        if queue.joined:  # groups with other classes, since another task is first in these
            for group in queue.joined:
                if self._demands is None or group[2] in self._demands:
                    self._find_later(group)
            queue.joined.clear()
        for key in self._alone:
            order = queue.order(key)
            if order is not None and key in queue.fresh:
                self._push(order, queue.owner(key), None, key)
        self._alone.clear()

    def _find_later(self, group: Group) -> None:
        """An owner's classes are not looked at before it may be his turn."""
        where = group[:2]
        due = self._due.get(where)
        if due is None:
            self._due[where] = [group]
            self._list(where)
        elif group not in due:
            due.append(group)

    def _find_all(self, where: tuple[int, str]) -> None:
        groups = self._queue.groups()
        for group in self._due.pop(where):
            self._find(group, groups.get(group))

    def _find(self, group: Group, places: list[tuple[Order, Key]] | None) -> None:
        self._found.pop(group, None)
        if places is None:
            return
        passed, wanted = self._passed.get(group), self._wanted
        first = 0 if passed is None else bisect_right(places, passed, key=_order)
        left = places[first:] if first else places
        for order, key in left if self._likely is None else self._likely(left):
            if wanted(key):
                self._found[group] = self._push(order, group[1], group, key)
                return

    def _push(self, order: Order, owner: str, group: Group | None, key: Key) -> _Turn:
        self._n += 1
        turn = _Turn(order, self._n, owner, group, key)
        where = (order[0], owner)
        turns = self._turns.setdefault(where, [])
        heapq.heappush(turns, turn)
        if turns[0] is turn:
            self._list(where)
        return turn


def _order(entry: tuple[Order, Hashable]) -> Order:
    return entry[0]


_FIRST: Order = (-sys.maxsize, 0, 0)
_LAST: Order = (sys.maxsize, 0, 0)
