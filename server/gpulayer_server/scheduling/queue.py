"""The queue: by priority, then first in, first out, within each class of equal requirements."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Container, Hashable, Iterable, Iterator
from typing import TypeAlias

#: Where a task stands: minus its priority, its job's number, its index in the job.
Order: TypeAlias = tuple[int, int, int]
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

    def add(self, place: _Place) -> None:
        if self.head == len(self.places) or place > self.places[-1]:
            self.places.append(place)
        else:
            insort(self.places, place, lo=self.head)

    def remove(self, place: _Place) -> None:
        if self.places[self.head] == place:
            self.head += 1
            if self.head >= _COMPACT and self.head * 2 >= len(self.places):
                del self.places[: self.head]
                self.head = 0
        else:
            del self.places[self.at(place)]

    def keep(self, wanted: Container[str]) -> None:
        """Take out all but the tasks that are wanted."""
        self.places = [place for place in self.places[self.head :] if place[1] in wanted]
        self.head = 0

    def at(self, place: _Place) -> int:
        return bisect_left(self.places, place, lo=self.head)

    def __len__(self) -> int:
        return len(self.places) - self.head


class Queue:
    """Tasks that wait, by class; within a class by `Order`.

    A task that comes back (its worker never started it) keeps its order and so goes before later ones.
    """

    def __init__(self) -> None:
        self._classes: dict[Hashable, _Waiting] = {}
        self._place_of: dict[str, tuple[Hashable, _Place]] = {}

    def __len__(self) -> int:
        return len(self._place_of)

    def __contains__(self, task: str) -> bool:
        return task in self._place_of

    def __iter__(self) -> Iterator[str]:
        """All tasks, in order."""
        return iter([task for _, (_, task) in sorted(self._place_of.values(), key=_by_place)])

    def add(self, key: Hashable, task: str, order: Order) -> None:
        """Let a task wait in class `key`."""
        waiting = self._classes.get(key)
        if waiting is None:
            waiting = self._classes[key] = _Waiting()
        place = (order, task)
        waiting.add(place)
        self._place_of[task] = (key, place)

    def remove(self, task: str) -> None:
        """Take a task out, wherever it stands; one that does not wait is no error."""
        found = self._place_of.pop(task, None)
        if found is None:
            return
        key, place = found
        waiting = self._classes[key]
        waiting.remove(place)
        if not waiting:
            del self._classes[key]

    def remove_all(self, tasks: Iterable[str]) -> None:
        """Take many tasks out; those that do not wait are no error."""
        for key in {self._place_of.pop(task)[0] for task in tasks if task in self._place_of}:
            waiting = self._classes[key]
            waiting.keep(self._place_of)
            if not waiting:
                del self._classes[key]

    def heads(self) -> list[tuple[Order, Hashable]]:
        """The classes, each with the order of its first task; that which is to be placed first comes first."""
        heads = [(waiting.first(), key) for key, waiting in self._classes.items()]
        return [(place[0], key) for place, key in sorted(heads, key=_by_first)]

    def head(self, key: Hashable) -> str | None:
        """The task of a class that is next, or None."""
        waiting = self._classes.get(key)
        return waiting.first()[1] if waiting is not None else None

    def order(self, key: Hashable) -> Order | None:
        """Where the next task of a class stands, or None."""
        waiting = self._classes.get(key)
        return waiting.first()[0] if waiting is not None else None

    def members(self, key: Hashable) -> list[str]:
        """The tasks of a class, in order."""
        waiting = self._classes.get(key)
        return [task for _, task in waiting.places[waiting.head :]] if waiting is not None else []

    def ahead_of(self, task: str) -> int:
        """How many tasks of its class stand before it."""
        found = self._place_of.get(task)
        if found is None:
            return 0
        key, place = found
        waiting = self._classes[key]
        return waiting.at(place) - waiting.head


def _by_place(found: tuple[Hashable, _Place]) -> _Place:
    return found[1]


def _by_first(found: tuple[_Place, Hashable]) -> _Place:
    return found[0]
