"""The calls of one attempt on this machine: those that wait, and those that its runner was given. No I/O, no clock.

A runner is given only what takes it some milliseconds: what waits here can be taken to another runner. Calls stay in
ranges: nothing is made for one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field

from gpulayer.protocol.calls import MESSAGE_CALLS, CallBatch, CallRange
from gpulayer_worker.callranges import CallRanges
from gpulayer_worker.runner.wire import BlobPlace

_HANDED_US = 4000.0  # of work at a time
_WEIGHT = 0.3  # of the newest calls in the pace


@dataclass(slots=True)
class Piece:
    """Calls of one batch that stand one behind the other; without a batch they are known by their number only."""

    map: str
    first: int
    stop: int
    batch: CallBatch | None
    places: list[BlobPlace] = field(default_factory=list[BlobPlace])  # of the blobs that they need
    lacks: str = ""  # one of these that was not here, as far as it was looked for

    @property
    def args(self) -> Sequence[bytes]:
        """The packed arguments of each."""
        if self.batch is None:
            return ()
        begin, end = self.first - self.batch.first, self.stop - self.batch.first
        return self.batch.args if end - begin == len(self.batch.args) else self.batch.args[begin:end]

    @property
    def range(self) -> CallRange:
        """As messages name them."""
        return CallRange(map=self.map, first=self.first, count=self.stop - self.first)


class Pace:
    """How many calls a runner is given at a time."""

    def __init__(self) -> None:
        self._mean_us: float | None = None

    def ran(self, count: int, spent_us: int) -> None:
        """So many calls took so long together."""
        mean_us = spent_us / count
        self._mean_us = mean_us if self._mean_us is None else self._mean_us + _WEIGHT * (mean_us - self._mean_us)

    @property
    def window(self) -> int:
        """Calls that are worth some milliseconds; one while nothing is known."""
        if self._mean_us is None:
            return 1
        return max(1, min(MESSAGE_CALLS, int(_HANDED_US / max(self._mean_us, 1.0))))


class CallQueue:
    """Calls in order. Owned by its run.

    Arguments:
        in_order: none may overtake another, as where they share an object.
    """

    def __init__(self, *, in_order: bool = False):
        self._in_order = in_order
        self._waiting: deque[Piece] = deque()
        self._handed: deque[Piece] = deque()
        self.waiting = 0  # calls
        self.handed = 0  # calls
        self.careful = 0  # so many are handed one by one: one of them ended a runner

    def __bool__(self) -> bool:
        return bool(self._waiting or self._handed)

    def put(self, batches: Iterable[CallBatch]) -> None:
        """Calls came."""
        for batch in batches:
            stop = batch.first + len(batch.args)
            self._waiting.append(Piece(batch.map, batch.first, stop, batch))
            self.waiting += len(batch.args)

    def found(self, ranges: Iterable[CallRange]) -> None:
        """A runner has these, which an agent before us gave it."""
        for each in ranges:
            self._handed.append(Piece(each.map, each.first, each.first + each.count, None))
            self.handed += each.count

    # ------------------------------------------------------------ what the runner has

    @property
    def given(self) -> list[Piece]:
        """What the runner has, in order."""
        return list(self._handed)

    @property
    def head(self) -> tuple[str, int] | None:
        """The call that the runner runs, or that it has done and not told yet."""
        return (self._handed[0].map, self._handed[0].first) if self._handed else None

    def holds(self, name: str, index: int) -> bool:
        """Whether the runner has a call."""
        return self._piece_of(name, index) is not None

    def batch_of(self, name: str, index: int) -> CallBatch | None:
        """The batch of a call that the runner has; None where it is not known."""
        piece = self._piece_of(name, index)
        return piece.batch if piece is not None else None

    def _piece_of(self, name: str, index: int) -> Piece | None:
        return next((each for each in self._handed if each.map == name and each.first <= index < each.stop), None)

    # ------------------------------------------------------------ to the runner and back

    def hand(self, window: int, ready: Callable[[Piece], bool], lacking: Container[str] = ()) -> list[Piece]:
        """What the runner is to be given now, so that it has `window` calls; they count as given.

        Nothing while it still has more than half of that. `ready` says whether all is here that calls need: those
        that have to wait are overtaken, unless order matters. It need not be asked while what they lack is `lacking`.
        """
        if self.careful:
            window = 1
        if self.handed * 2 > window or not self._waiting:
            return []
        pieces: list[Piece] = []
        late: list[Piece] = []
        room = window - self.handed
        while room > 0 and self._waiting and not (late and self._in_order):
            piece = self._waiting.popleft()
            head = self._head(piece, room, ready) if piece.lacks not in lacking else None
            if head is None:
                late.append(piece)
                continue
            if head.stop < piece.stop:
                piece.first, piece.lacks = head.stop, ""
                self._waiting.appendleft(piece)
            room -= head.stop - head.first
            pieces.append(head)
        self._waiting.extendleft(reversed(late))
        self._handed += pieces
        given = sum(piece.stop - piece.first for piece in pieces)
        self.handed += given
        self.waiting -= given
        return pieces

    def _head(self, piece: Piece, room: int, ready: Callable[[Piece], bool]) -> Piece | None:
        """As many calls of a piece as there is room for, or the first alone; None where that has to wait, too."""
        for stop in dict.fromkeys((min(piece.stop, piece.first + room), piece.first + 1)):
            head = Piece(piece.map, piece.first, stop, piece.batch)
            if piece.batch is None or not piece.batch.blobs or ready(head):
                return head
            piece.lacks = head.lacks
        return None

    def done(self, name: str, first: int, stop: int) -> None:
        """The runner has these no more."""
        self.careful = max(0, self.careful - (stop - first))
        head = self._handed[0] if self._handed else None
        if head is not None and head.map == name and head.first == first and stop <= head.stop:  # as nearly always
            self.handed -= stop - first
            head.first = stop
            if head.first == head.stop:
                self._handed.popleft()
            return
        self._cut(CallRanges((CallRange(map=name, first=first, count=stop - first),)))

    def handed_over(self) -> list[Piece]:
        """Everything that the runner has, in order: it has it no more."""
        pieces = list(self._handed)
        self._handed.clear()
        self.handed = 0
        return pieces

    def again(self, pieces: Sequence[Piece]) -> list[CallRange]:
        """Let these be the first that wait; those of them that can't be run again, for nobody knows their arguments."""
        for piece in reversed(pieces):
            if piece.batch is not None:
                self._waiting.appendleft(piece)
                self.waiting += piece.stop - piece.first
        return [piece.range for piece in pieces if piece.batch is None]

    def taken_back(self, ranges: Iterable[CallRange]) -> list[CallRange]:
        """The runner gave these back without having begun them: as `again`."""
        return self.again(self._cut(CallRanges(ranges)))

    # ------------------------------------------------------------ away from here

    def recall(self, count: int) -> list[CallRange]:
        """Give away at most so many that wait, the last ones first."""
        ranges: list[CallRange] = []
        while count > 0 and self._waiting:
            piece = self._waiting.pop()
            first = max(piece.first, piece.stop - count)
            if first > piece.first:
                self._waiting.append(Piece(piece.map, piece.first, first, piece.batch))
            ranges.append(CallRange(map=piece.map, first=first, count=piece.stop - first))
            count -= piece.stop - first
            self.waiting -= piece.stop - first
        return ranges

    def drop(self, name: str) -> None:
        """A map's calls are not wanted: those that wait are gone."""
        self._keep([piece for piece in self._waiting if piece.map != name])

    def fail(self, digest: str) -> list[CallRange]:
        """Take out of what waits all batches that need a blob."""
        gone = [piece for piece in self._waiting if piece.batch is not None and digest in piece.batch.blobs]
        self._keep([piece for piece in self._waiting if piece.batch is None or digest not in piece.batch.blobs])
        return [piece.range for piece in gone]

    def lose(self, ranges: Iterable[CallRange]) -> None:
        """The runner has dropped these."""
        self._cut(CallRanges(ranges))

    def _keep(self, pieces: list[Piece]) -> None:
        self._waiting = deque(pieces)
        self.waiting = sum(piece.stop - piece.first for piece in pieces)

    def _cut(self, calls: CallRanges) -> list[Piece]:
        """Take these out of what is handed; those that were in it, in their order."""
        cut: list[Piece] = []
        kept: list[Piece] = []
        for piece in self._handed:
            inside = calls.within(piece.map, piece.first, piece.stop)
            outside = calls.lacking(piece.map, piece.first, piece.stop)
            cut += [Piece(piece.map, first, stop, piece.batch) for first, stop in inside]
            kept += [Piece(piece.map, first, stop, piece.batch) for first, stop in outside]
        self._handed = deque(kept)
        self.handed = sum(piece.stop - piece.first for piece in kept)
        return cut
