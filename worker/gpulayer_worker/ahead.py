"""Small commands that were assigned before there is a slot for them, so that no slot waits for the next one.

How many may wait is the worker's own word: as many as its slots get done in a tenth of a second, and none where
commands take longer. They are kept in memory only: of a connection or an agent that is gone the control plane places
them anew, and what waits for long is given back.
"""

from __future__ import annotations

from collections import OrderedDict

from gpulayer.protocol.messages import Assign

MOST = 64
_WORTH_S = 0.1  # of work may wait
_LONG_S = 0.5  # whoever waited so long was assigned by a wrong guess
_WEIGHT = 0.2  # of the newest time in the pace
_UNKNOWN = -1  # what the control plane thinks


class Ahead:
    """What waits on this worker for a slot, in order. Owned by the link; times are of its clock, in seconds."""

    def __init__(self, slots: int | None):
        """`slots` None: there is no limit, and nothing ever waits."""
        self._slots = slots
        self._waiting: OrderedDict[str, tuple[Assign, float]] = OrderedDict()
        self._began: dict[str, float] = {}  # of those that hold a slot: commands, and since when
        self._others: set[str] = set()  # the rest of those that hold one
        self._pace_s: float | None = None  # from a command's start to its end
        self.told = 0  # how many the control plane thinks may wait; _UNKNOWN: it has to be told

    def __contains__(self, attempt: str) -> bool:
        return attempt in self._waiting

    @property
    def waiting(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    # ------------------------------------------------------------ what holds a slot

    def started(self, assign: Assign, now: float | None) -> None:
        """An attempt holds a slot from now on. `now` None: nobody knows since when."""
        if assign.session is not None:
            return  # its session does
        if assign.spec.command is not None and now is not None:
            self._began[assign.attempt] = now
        else:
            self._others.add(assign.attempt)

    def ended(self, attempt: str, now: float) -> None:
        """It holds none any more."""
        self._others.discard(attempt)
        began = self._began.pop(attempt, None)
        if began is not None:
            pace_s = now - began
            self._pace_s = pace_s if self._pace_s is None else (1 - _WEIGHT) * self._pace_s + _WEIGHT * pace_s

    def free(self, sessions: int) -> bool:
        """Whether a slot is free, where so many sessions hold one each."""
        return self._slots is None or len(self._began) + len(self._others) + sessions < self._slots

    # ------------------------------------------------------------ what waits

    def may_wait(self, assign: Assign) -> bool:
        """Whether an attempt is one that can: others hold more than a slot, or were placed for what they hold."""
        return assign.spec.command is not None and assign.session is None and not assign.devices

    def put(self, assign: Assign, now: float) -> None:
        """Let it wait."""
        self._waiting[assign.attempt] = assign, now

    def next(self) -> Assign:
        """The one that waits longest; it waits no more."""
        return self._waiting.popitem(last=False)[1][0]

    def drop(self, attempt: str) -> bool:
        """It is not wanted any more; whether it waited."""
        return self._waiting.pop(attempt, None) is not None

    def clear(self) -> None:
        """A new connection: the control plane places what it was never told of anew."""
        self._waiting.clear()
        self.told = 0

    def overdue(self, now: float) -> list[str]:
        """Everything that waits, if the first of it does for long: it was a wrong guess, and others may be free.

        How many may wait is news then, though it was told before: whoever assigned these did not go by that.
        """
        first = next(iter(self._waiting.values()), None)
        if first is None or now - first[1] < _LONG_S:
            return []
        self._pace_s = None
        self.told = _UNKNOWN
        names = list(self._waiting)
        self._waiting.clear()
        return names

    def wanted(self) -> int:
        """How many may wait here."""
        if self._slots is None or self._pace_s is None or self._pace_s > _WORTH_S:
            return 0
        return min(MOST, int(self._slots * _WORTH_S / max(self._pace_s, 0.001)))

    def news(self) -> int | None:
        """How many may wait, where the control plane has not heard about that; a little more or less is no news."""
        wanted = self.wanted()
        if wanted == self.told or (wanted and self.told / 2 < wanted < self.told * 2):
            return None
        self.told = wanted
        return wanted
