"""What a worker's runner holds, and how far the control plane knows of it. No I/O, no clock.

A call is held from when it came until its result is accepted, or until it was given back: a hello declares it for so
long. What is held already is not taken once more. Results are told in the order in which they came, each after the
text of its call, and again on each new connection, until they are accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from gpulayer.protocol.calls import (
    MESSAGE_BYTES,
    MESSAGE_CALLS,
    CallBatch,
    CallRange,
    CallRun,
    CallsDone,
    CallsReturned,
)
from gpulayer_worker.callranges import CallRanges, ranges_of


@dataclass
class _Back:
    """Calls that were given back, which nobody was told yet."""

    calls: CallRanges
    began: bool
    reason: str


class HeldCalls:
    """The calls of one attempt. Only the link changes it."""

    def __init__(self, attempt: str):
        self._attempt = attempt
        self._calls = CallRanges()  # that wait here, or that the runner has
        self._ended = CallRanges()  # those with a result that is not accepted
        self._results: list[tuple[CallRun, int]] = []  # with how far the text reached; the first `_told` are told
        self._told = 0  # on this connection
        self._back: list[_Back] = []

    def __bool__(self) -> bool:
        return bool(self._calls or self._results or self._back)

    @property
    def declared(self) -> tuple[CallRange, ...]:
        """What a hello says of it."""
        return tuple(
            each for calls in (self._calls, self._ended, *(back.calls for back in self._back)) for each in calls
        )

    # ------------------------------------------------------------ what the control plane says

    def take(self, batches: Sequence[CallBatch]) -> tuple[CallBatch, ...]:
        """Calls came; those that are new here."""
        new: list[CallBatch] = []
        for batch in batches:
            first, stop = batch.first, batch.first + len(batch.args)
            for back in self._back:  # a stray: what is given back is told before anything comes anew
                back.calls.cut(batch.map, first, stop)
            if not self._calls.within(batch.map, first, stop) and not self._ended.within(batch.map, first, stop):
                self._calls.add(batch.map, first, stop)
                new.append(batch)
                continue
            for begin, end in self._calls.lacking(batch.map, first, stop):
                for a, b in self._ended.lacking(batch.map, begin, end):
                    self._calls.add(batch.map, a, b)
                    new.append(part_of(batch, a - first, b - first))
        return tuple(new)

    def accept(self, ranges: Iterable[CallRange]) -> list[CallRange]:
        """These are accepted, or not wanted; those of them that had a result here: the runner may let go of it."""
        gone: list[CallRange] = []
        for each in ranges:
            gone += ranges_of(each.map, self._ended.cut(each.map, each.first, each.first + each.count))
        if gone:
            self._forget_results({each.map for each in gone})
        return gone

    def drop(self, name: str) -> list[CallRange]:
        """A map is not wanted any more; what had a result of its calls."""
        self._calls.drop(name)
        for back in self._back:
            back.calls.drop(name)
        gone = ranges_of(name, self._ended.drop(name))
        if gone:
            self._forget_results({name})
        return gone

    def _forget_results(self, names: set[str]) -> None:
        """Keep of these maps' results those that stand in `_ended`."""
        kept: list[tuple[CallRun, int]] = []
        told = 0
        for number, (run, at) in enumerate(self._results):
            parts = [run] if run.map not in names else self._kept_of(run)
            kept += [(part, at) for part in parts]
            if number < self._told:
                told += len(parts)
        self._results, self._told = kept, told

    def _kept_of(self, run: CallRun) -> list[CallRun]:
        count = len(run.codes)
        spans = self._ended.within(run.map, run.first, run.first + count)
        if spans == [(run.first, run.first + count)]:
            return [run]
        return [_piece(run, first - run.first, stop - run.first) for first, stop in spans]

    # ------------------------------------------------------------ what happens here

    def found(self, ranges: Iterable[CallRange]) -> None:
        """A runner that an agent before us started has these."""
        for each in ranges:
            self._calls.add(each.map, each.first, each.first + each.count)

    def done(self, runs: Iterable[CallRun], at: int) -> list[CallRange]:
        """Results came, and the text of their calls ends before byte `at` of the stream.

        Returns those that nobody waits for, or that were accepted before: the runner may let go of them.
        """
        stale: list[CallRange] = []
        for run in runs:
            first, stop = run.first, run.first + len(run.codes)
            came = self._calls.cut(run.map, first, stop)
            for a, b in came:
                self._ended.add(run.map, a, b)
                self._results.append((_piece(run, a - first, b - first), at))
            if came != [(first, stop)]:  # a runner tells again what it told another agent
                for a, b in CallRanges(ranges_of(run.map, came)).lacking(run.map, first, stop):
                    stale += ranges_of(run.map, self._ended.lacking(run.map, a, b))
        return stale

    def give_back(self, ranges: Iterable[CallRange], *, began: bool, reason: str) -> None:
        """These did not come to an end here. What is not held, or has a result, stays as it is."""
        back = CallRanges()
        for each in ranges:
            for first, stop in self._calls.cut(each.map, each.first, each.first + each.count):
                back.add(each.map, first, stop)
        if back:
            self._back.append(_Back(back, began, reason))

    def over(self) -> None:
        """The attempt ended: what has no result is known to be without, by its end."""
        self._calls.clear()

    def forget(self) -> None:
        """Nothing of it is wanted."""
        self._calls.clear()
        self._ended.clear()
        self._results, self._told, self._back = [], 0, []

    # ------------------------------------------------------------ what goes out

    def again(self) -> None:
        """A new connection: nothing was told on it."""
        self._told = 0

    def pump(self, sent: int) -> list[CallsDone | CallsReturned]:
        """What is to be told now, where the first `sent` bytes of the stream were sent; it counts as told."""
        if self._told == len(self._results) and not self._back:
            return []
        runs: list[CallRun] = []
        while self._told < len(self._results) and self._results[self._told][1] <= sent:
            runs.append(self._results[self._told][0])
            self._told += 1
        out: list[CallsDone | CallsReturned] = [CallsDone(attempt=self._attempt, runs=each) for each in _messages(runs)]
        for back in self._back:
            if back.calls:
                ranges = tuple(back.calls)
                out.append(CallsReturned(attempt=self._attempt, ranges=ranges, began=back.began, reason=back.reason))
        self._back = []
        return out


def part_of(batch: CallBatch, begin: int, end: int) -> CallBatch:
    """Calls `begin` up to `end` of a batch, counted in it."""
    if begin == 0 and end == len(batch.args):
        return batch
    return replace(batch, first=batch.first + begin, args=batch.args[begin:end])


def _piece(run: CallRun, begin: int, end: int) -> CallRun:
    count = len(run.codes)
    if begin == 0 and end == count:
        return run
    return replace(
        run,
        first=run.first + begin,
        codes=run.codes[begin:end],
        data=run.data[begin:end],
        spent_us=run.spent_us * (end - begin) // count,
    )


def _messages(runs: list[CallRun]) -> list[tuple[CallRun, ...]]:
    """Runs as messages carry them: those that touch are one, and no message has too much of them."""
    messages: list[tuple[CallRun, ...]] = []
    now: list[CallRun] = []
    group: list[CallRun] = []
    calls = size = 0
    for run in runs:
        run_bytes = sum(map(len, run.data))
        if (group or now) and (calls + len(run.codes) > MESSAGE_CALLS or size + run_bytes > MESSAGE_BYTES):
            messages.append((*now, _joined(group)))
            now, group, calls, size = [], [], 0, 0
        if group and not _touch(group[-1], run):
            now.append(_joined(group))
            group = []
        group.append(run)
        calls += len(run.codes)
        size += run_bytes
    if group:
        messages.append((*now, _joined(group)))
    return messages


def _touch(one: CallRun, other: CallRun) -> bool:
    return other.first == one.first + len(one.codes) and other.map == one.map


def _joined(group: list[CallRun]) -> CallRun:
    """Runs that stand one behind the other, as one."""
    if len(group) == 1:
        return group[0]
    return CallRun(
        map=group[0].map,
        first=group[0].first,
        codes=b"".join(run.codes for run in group),
        data=tuple(data for run in group for data in run.data),
        blobs=tuple(dict.fromkeys(digest for run in group for digest in run.blobs)),
        spent_us=sum(run.spent_us for run in group),
    )
