"""Keeps the collector of cycles from looking at what lives for long: with 100,000 jobs it would look for half a second.

What waits or runs has no cycles, and goes when nobody names it any more.
"""

from __future__ import annotations

import gc

_MANY = 2_000  # tasks: of fewer the collector does not take long


def collect_seldom() -> None:
    """Thousands of jobs come and go, and no cycle is among them: to look for one is a good part of what each costs.

    For a process that is the control plane's alone.
    """
    gc.set_threshold(50_000, 50, 100)


class Garbage:
    """Tells the collector what it need not look at. Used on the loop's thread."""

    def __init__(self) -> None:
        self._spared = 0

    def look(self, live: int) -> None:
        """Spare all that is there now, if so many more tasks live than before; look at it once they are gone."""
        if live > self._spared + _MANY:
            gc.freeze()
            self._spared = live
        elif self._spared and live < _MANY:
            gc.unfreeze()
            self._spared = 0
