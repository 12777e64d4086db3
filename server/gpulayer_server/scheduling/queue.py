"""The queue: first in, first out within each class of equal requirements."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator


class Queue:
    """Tasks that wait, by class; within a class by `order`.

    A task that comes back (its worker never started it) keeps its order and so goes before later ones.
    """

    def __init__(self) -> None:
        self._classes: dict[Hashable, OrderedDict[str, int]] = {}
        self._class_of: dict[str, Hashable] = {}

    def __len__(self) -> int:
        return len(self._class_of)

    def __contains__(self, task: str) -> bool:
        return task in self._class_of

    def __iter__(self) -> Iterator[str]:
        """All tasks, in order."""
        everything = [(order, task) for waiting in self._classes.values() for task, order in waiting.items()]
        return iter([task for _, task in sorted(everything)])

    def add(self, key: Hashable, task: str, order: int) -> None:
        """Let a task wait in class `key`."""
        waiting = self._classes.setdefault(key, OrderedDict())
        last = next(reversed(waiting.values()), order)
        waiting[task] = order
        self._class_of[task] = key
        if order < last:
            self._classes[key] = OrderedDict(sorted(waiting.items(), key=lambda item: item[1]))

    def remove(self, task: str) -> None:
        """Take a task out, wherever it stands; one that does not wait is no error."""
        key = self._class_of.pop(task, None)
        if key is None:
            return
        waiting = self._classes[key]
        del waiting[task]
        if not waiting:
            del self._classes[key]

    def classes(self) -> list[Hashable]:
        """The classes, the one whose head waits longest first."""
        return sorted(self._classes, key=lambda key: next(iter(self._classes[key].values())))

    def head(self, key: Hashable) -> str | None:
        """The task of a class that is next, or None."""
        waiting = self._classes.get(key)
        return next(iter(waiting)) if waiting else None

    def members(self, key: Hashable) -> list[str]:
        """The tasks of a class, in order."""
        return list(self._classes.get(key, ()))

    def ahead_of(self, task: str) -> int:
        """How many tasks of its class stand before it."""
        waiting = self._classes.get(self._class_of.get(task), OrderedDict())
        for place, name in enumerate(waiting):
            if name == task:
                return place
        return 0
