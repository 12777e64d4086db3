"""A virtual clock, hosts whose clocks differ and that may sleep, and the processes on them. One thread, no waiting."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from math import inf
from typing import Any

Call = Callable[..., None]
Missed = tuple["Process | Alarm", int, Call, tuple[Any, ...]]


_GAP_S = 11.0


class Violation(AssertionError):
    """Something that must never happen has happened."""


class Simulator:
    """Owns the time. Everything random in a run comes from its one generator, so that a seed replays."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None):
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 0.0  # seconds of true time
        self.events = 0  # a message that arrives, or an event that a plane or a link handles
        self.trace = trace
        self._heap: list[tuple[float, int, Process | Alarm, int, Call, tuple[Any, ...]]] = []
        self._n = 0

    def push(self, at: float, process: Process | Alarm, call: Call, args: tuple[Any, ...]) -> None:
        """Call something at a time, unless its process ends before."""
        self._n += 1
        heapq.heappush(self._heap, (at, self._n, process, process.life, call, args))

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        until = self.now + seconds
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            at, _, process, life, call, args = pop(heap)
            if process.life != life:
                continue
            if process.host.asleep:
                process.host.missed.append((process, life, call, args))
                continue
            self.now = at
            call(*args)
        self.now = until

    def push_again(self, missed: list[Missed]) -> None:
        """Call now, in order, what a host slept through."""
        for process, life, call, args in missed:
            self._n += 1
            heapq.heappush(self._heap, (self.now, self._n, process, life, call, args))

    def log(self, who: str, *what: object) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace(f"{self.now:12.6f}  {who:<8}  {' '.join(map(str, what))}")


class Host:
    """A machine. Its clock counts sleep, and runs a little fast or slow."""

    def __init__(self, sim: Simulator, name: str, *, clock_s: float, rate: float):
        self.sim = sim
        self.name = name
        self.asleep = False
        self.dead = False
        self.awake_since = 0.0
        self.rested_at = 0.0  # when it last woke from a sleep that its own clock shows as a gap
        self.missed: list[Missed] = []  # what would have happened: it happens when it wakes
        self._alarm = Alarm(sim)
        self._clock_s = clock_s
        self._rate = rate

    def clock(self) -> float:
        """Seconds, as this host counts them."""
        return self._clock_s + self.sim.now * self._rate

    def sleep(self, seconds: float) -> None:
        """Stand still for so long; for good, if that is infinite."""
        self.sim.log(self.name, "dies for good" if seconds == inf else f"sleeps for {seconds:.1f} s")
        self.asleep = True
        self._asleep_since = self.sim.now
        self._alarm.life += 1
        if seconds < inf:
            self.sim.push(self.sim.now + seconds, self._alarm, self.wake, ())
        else:
            self.dead = True

    def wake(self) -> None:
        """Go on, if it slept: everything that it missed happens now."""
        if self.asleep and not self.dead:
            self.sim.log(self.name, "wakes")
            self.asleep = False
            self.awake_since = self.sim.now
            if self.sim.now - self._asleep_since > _GAP_S:
                self.rested_at = self.sim.now
            missed, self.missed = self.missed, []
            if self.sim.random.random() < 0.5:  # what had come by the network may be looked at before the timers
                missed.sort(key=lambda each: not each[2].__name__.startswith("arrive"))
            self.sim.push_again(missed)


class Alarm:
    """What wakes a host: it never sleeps itself."""

    def __init__(self, sim: Simulator):
        self.sim = sim
        self.host = self
        self.asleep = False
        self.missed: list[Missed] = []
        self.life = 0


class Process:
    """Something that runs on a host: it sleeps with it, and what it planned ends with its life."""

    def __init__(self, host: Host):
        self.host = host
        self.sim = host.sim
        self.life = 0

    def after(self, delay_s: float, call: Call, *args: Any) -> None:
        """Call something later, if this life lasts."""
        self.sim.push(self.sim.now + delay_s, self, call, args)

    def end_life(self) -> None:
        """Nothing that was planned will happen."""
        self.life += 1
