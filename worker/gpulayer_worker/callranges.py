"""Sets of calls, by the ranges that they stand in: a thousand calls that follow each other are one entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from gpulayer.protocol.calls import CallRange

#: From the first index up to the one after the last.
Span: TypeAlias = tuple[int, int]


class CallRanges:
    """A set of calls, by map and index."""

    def __init__(self, ranges: Iterable[CallRange] = ()):
        self._spans: dict[str, list[Span]] = {}  # sorted, with a gap between any two; no map without one
        for each in ranges:
            self.add(each.map, each.first, each.first + each.count)

    def __bool__(self) -> bool:
        return bool(self._spans)

    def __len__(self) -> int:
        return sum(stop - first for spans in self._spans.values() for first, stop in spans)

    def __iter__(self) -> Iterator[CallRange]:
        for name, spans in self._spans.items():
            for first, stop in spans:
                yield CallRange(map=name, first=first, count=stop - first)

    def add(self, name: str, first: int, stop: int) -> None:
        """Calls `first` up to `stop` of a map belong to it now."""
        spans = self._spans.get(name)
        if spans is None:
            self._spans[name] = [(first, stop)]
        elif first > spans[-1][1]:
            spans.append((first, stop))
        elif first == spans[-1][1]:  # most come in order
            spans[-1] = spans[-1][0], stop
        else:
            apart = [span for span in spans if span[1] < first or span[0] > stop]
            near = [span for span in spans if span[1] >= first and span[0] <= stop]
            joined = min([first, *(span[0] for span in near)]), max([stop, *(span[1] for span in near)])
            self._spans[name] = sorted([*apart, joined])

    def within(self, name: str, first: int, stop: int) -> list[Span]:
        """Which of these calls belong to it."""
        spans = self._spans.get(name)
        if spans is None:
            return []
        return [(max(a, first), min(b, stop)) for a, b in spans if a < stop and b > first]

    def lacking(self, name: str, first: int, stop: int) -> list[Span]:
        """Which of these calls don't."""
        lacking: list[Span] = []
        for a, b in self.within(name, first, stop):
            if a > first:
                lacking.append((first, a))
            first = b
        if first < stop:
            lacking.append((first, stop))
        return lacking

    def cut(self, name: str, first: int, stop: int) -> list[Span]:
        """Take these calls out; those that were in it."""
        spans = self._spans.get(name)
        if spans is None:
            return []
        if spans[0][0] == first and stop < spans[0][1]:  # most go in order
            spans[0] = stop, spans[0][1]
            return [(first, stop)]
        found = self.within(name, first, stop)
        if found:
            ends = [(a, min(b, first)) for a, b in spans if a < first]
            rest = [(max(a, stop), b) for a, b in spans if b > stop]
            if ends or rest:
                self._spans[name] = ends + rest
            else:
                del self._spans[name]
        return found

    def drop(self, name: str) -> list[Span]:
        """Take out all calls of a map; those that were in it."""
        return self._spans.pop(name, [])

    def clear(self) -> None:
        """Take out everything."""
        self._spans.clear()


def ranges_of(name: str, spans: Iterable[Span]) -> list[CallRange]:
    """Spans of one map, as messages name them."""
    return [CallRange(map=name, first=first, count=stop - first) for first, stop in spans]
