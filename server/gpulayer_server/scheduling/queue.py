"""The queue: by priority, then first in, first out, within each class of equal requirements.

A class may be one owner's, and have a demand, such as a number of devices: then the first tasks of classes are sorted
by these as well, for `fair.Turns`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

Key = TypeVar("Key", bound=Hashable)

#: Where a task stands: minus its priority, its job's number, its index in the job.
Order: TypeAlias = tuple[int, int, int]
#: Of one priority, one owner and one demand: minus the priority, the owner, the demand.
Group: TypeAlias = tuple[int, str, Hashable]
_Place: TypeAlias = tuple[Order, str]

_COMPACT = 256  # places before the head that are kept at most before the list is made anew


class _Waiting:
    """The tasks of one class, sorted. Those before `head` are gone: to take the first one costs nothing."""

    __slots__ = ("head", "places")

    def __init__(self) -> None:
        self.places: list[_Place] = []
        self.head = 0

    def first(self) -> _Place:
        return self.places[self.head]

    def add(self, place: _Place) -> bool:
        """Take a place; whether it is the first one now."""
        if self.head == len(self.places) or place > self.places[-1]:
            self.places.append(place)
        else:
            insort(self.places, place, lo=self.head)
        return self.places[self.head] is place

    def remove(self, place: _Place) -> bool:
        """Give a place up; whether it was the first one."""
        if self.places[self.head] != place:
            del self.places[self.at(place)]
            return False
        self.head += 1
        if self.head >= _COMPACT and self.head * 2 >= len(self.places):
            del self.places[: self.head]
            self.head = 0
        return True

    def keep(self, wanted: Container[str]) -> None:
        """Take out all but the tasks that are wanted."""
        self.places = [place for place in self.places[self.head :] if place[1] in wanted]
        self.head = 0

    def at(self, place: _Place) -> int:
        return bisect_left(self.places, place, lo=self.head)

    def __len__(self) -> int:
        return len(self.places) - self.head


class Queue(Generic[Key]):
    """Tasks that wait, by class; within a class by `Order`.

    A task that comes back (its worker never started it) keeps its order and so goes before later ones.
    """

    def __init__(
        self,
        owner_of: Callable[[Key], str] | None = None,
        demand_of: Callable[[Key], Hashable] | None = None,
        varied: Callable[[Key], bool] | None = None,
    ) -> None:
        """`owner_of`: whose class it is; without it all are of one owner. `varied`: whether its tasks may be unlike."""
        self.fresh: dict[Key, None] = {}  # classes with a first task unlike the one before, since somebody cleared this
        self.left = False  # likewise: a first task has left
        self.joined: dict[Group, None] = {}  # groups that a class came into, since somebody cleared this
        self._owner_of = owner_of
        self._demand_of = demand_of
        self._owners: dict[str, int] = {}  # classes of each
        self._by_demand: dict[Hashable, dict[Group, None]] = {}
        self._varied = varied
        self._classes: dict[Key, _Waiting] = {}
        self._place_of: dict[str, tuple[Key, _Place]] = {}
        self._groups: dict[Group, list[tuple[Order, Key]]] = {}
        self._filed: dict[Key, tuple[Group, Order]] = {}
        self._moved: dict[Key, None] = {}  # classes whose first task is not filed

    def __len__(self) -> int:
        return len(self._place_of)

    def __contains__(self, task: str) -> bool:
        return task in self._place_of

    def __iter__(self) -> Iterator[str]:
        """All tasks, in order."""
        return iter([task for _, (_, task) in sorted(self._place_of.values(), key=itemgetter(1))])

    def add(self, key: Key, task: str, order: Order) -> None:
        """Let a task wait in class `key`."""
        waiting = self._classes.get(key)
        if waiting is None:
            waiting = self._classes[key] = _Waiting()
            owner = self.owner(key)
            self._owners[owner] = self._owners.get(owner, 0) + 1
        place = (order, task)
        self._place_of[task] = (key, place)
        if waiting.add(place):
            self.fresh[key] = self._moved[key] = None

    def remove(self, task: str) -> None:
        """Take a task out, wherever it stands; one that does not wait is no error."""
        found = self._place_of.pop(task, None)
        if found is None:
            return
        key, place = found
        waiting = self._classes[key]
        if waiting.remove(place):
            self._first_left(key)
        if not waiting:
            self._end(key)

    def remove_all(self, tasks: Iterable[str]) -> None:
        """Take many tasks out; those that do not wait are no error."""
        for key in {self._place_of.pop(task)[0]: None for task in tasks if task in self._place_of}:
            waiting = self._classes[key]
            waiting.keep(self._place_of)
            self._first_left(key)
            if not waiting:
                self._end(key)

    def _end(self, key: Key) -> None:
        del self._classes[key]
        owner = self.owner(key)
        self._owners[owner] -= 1
        if not self._owners[owner]:
            del self._owners[owner]

    def owner(self, key: Key) -> str:
        """Whose class it is."""
        return self._owner_of(key) if self._owner_of is not None else ""

    def _first_left(self, key: Key) -> None:
        self._moved[key] = None
        self.left = True
        if self._varied is not None and self._varied(key):
            self.fresh[key] = None

    def heads(self) -> list[tuple[Order, Key]]:
        """The classes, each with the order of its first task; that which is to be placed first comes first."""
        heads = [(waiting.first(), key) for key, waiting in self._classes.items()]
        return [(place[0], key) for place, key in sorted(heads, key=itemgetter(0))]

    def groups(self) -> dict[Group, list[tuple[Order, Key]]]:
        """Of each priority, owner and demand the first tasks of classes, sorted; to be read until the queue changes."""
        if not self._moved:
            return self._groups
        for key in self._moved:
            self._unfile(key)
            waiting = self._classes.get(key)
            if waiting is not None:
                order = waiting.first()[0]
                demand = self._demand_of(key) if self._demand_of is not None else None
                group = (order[0], self.owner(key), demand)
                self._filed[key] = (group, order)
                places = self._groups.get(group)
                if places is None:
                    places = self._groups[group] = []
                    self._by_demand.setdefault(demand, {})[group] = None
                insort(places, (order, key), key=_order)
                self.joined[group] = None
        self._moved.clear()
        return self._groups

    def _unfile(self, key: Key) -> None:
        group, order = self._filed.pop(key, (None, None))
        if group is None or order is None:
            return
        places = self._groups[group]
        del places[bisect_left(places, order, key=_order)]
        if not places:
            del self._groups[group]
            del self._by_demand[group[2]][group]
            if not self._by_demand[group[2]]:
                del self._by_demand[group[2]]

    def demanding(self, demand: Hashable) -> Iterable[Group]:
        """The groups of a demand, after `groups`."""
        return self._by_demand.get(demand, ())

    def owners(self) -> int:
        """How many owners wait."""
        return len(self._owners)

    def each(self) -> Iterable[Key]:
        """All classes; to be read, until the queue changes."""
        return self._classes.keys()

    def classes(self) -> int:
        """How many classes there are."""
        return len(self._classes)

    def waits(self, key: Key) -> bool:
        """Whether anybody waits in a class."""
        return key in self._classes

    def first(self, key: Key) -> tuple[Order, str] | None:
        """Where the next task of a class stands, and which it is; or None."""
        waiting = self._classes.get(key)
        return waiting.places[waiting.head] if waiting is not None else None

    def head(self, key: Key) -> str | None:
        """The task of a class that is next, or None."""
        waiting = self._classes.get(key)
        return waiting.first()[1] if waiting is not None else None

    def order(self, key: Key) -> Order | None:
        """Where the next task of a class stands, or None."""
        waiting = self._classes.get(key)
        return waiting.first()[0] if waiting is not None else None

    def members(self, key: Key) -> list[str]:
        """The tasks of a class, in order."""
        waiting = self._classes.get(key)
        return [task for _, task in waiting.places[waiting.head :]] if waiting is not None else []

    def first_few(self, key: Key, count: int) -> list[str]:
        """The first tasks of a class, so many at most."""
        waiting = self._classes.get(key)
        return [] if waiting is None else [task for _, task in waiting.places[waiting.head : waiting.head + count]]

    def ahead_of(self, task: str) -> int:
        """How many tasks of its class stand before it."""
        found = self._place_of.get(task)
        if found is None:
            return 0
        key, place = found
        waiting = self._classes[key]
        return waiting.at(place) - waiting.head


def _order(entry: tuple[Order, Hashable]) -> Order:
    return entry[0]
