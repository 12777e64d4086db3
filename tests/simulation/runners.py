"""Runners' processes: each has loaded a function, runs its calls one by one, and keeps results until they are wanted.

They outlive agents. What a call will do is in its argument: 'KEY:INDEX:SECONDS:DEED'.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from gpulayer.protocol.calls import OK, RAISED, CallBatch, CallRange, CallRun
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.records import Kind, encode_call
from tests.simulation.machine import Kernel, Program, Spool
from tests.simulation.simulator import Process, Violation

#: A map, and an index in it.
CallKey: TypeAlias = tuple[str, int]


class Given:
    """A call, as a runner has it."""

    __slots__ = ("arg", "deed", "key", "seconds")

    def __init__(self, name: str, index: int, arg: bytes):
        self.key: CallKey = (name, index)
        self.arg = arg
        _, said, seconds, self.deed = arg.decode().split(":")
        self.seconds = float(seconds)
        if int(said) != index:
            raise Violation(f"call {index} of {name} comes with the argument of call {said}")


def given(batches: Sequence[CallBatch]) -> list[Given]:
    """The calls of a message."""
    return [Given(each.map, each.first + n, arg) for each in batches for n, arg in enumerate(each.args)]


def ranges(keys: Sequence[CallKey]) -> tuple[CallRange, ...]:
    """Calls as messages have them, one by one."""
    return tuple([CallRange(map=name, first=index) for name, index in keys])


class Runner(Program):
    """The process. Its kernel is what holds the slot."""

    def __init__(self, kernel: Kernel, attempt: str, assign: Assign, spool: Spool):
        Process.__init__(self, kernel.machine)  # what a program does follows from its calls
        self.kernel = kernel
        self.attempt = attempt
        self.index = assign.index
        self.spec = assign.spec
        self.spool = spool
        self.live = True
        self.began_at = self.sim.now
        self.queue: deque[Given] = deque()
        self.running: Given | None = None
        self.results: dict[CallKey, CallRun] = {}
        self.told: Callable[[], None] | None = None  # the agent's: who waits for results
        self._unwanted = ""  # the map of what runs, when it is not wanted

    @property
    def keys(self) -> list[CallKey]:
        """What it has, without those that have a result."""
        running = [self.running] if self.running is not None else []
        return [each.key for each in (*running, *self.queue)]

    def give(self, call: Given) -> None:
        """One more call. What it has already it is not given again."""
        if call.key in self.results or call.key in self.keys:
            raise Violation(f"{self.attempt} is given {call.key}, which it has")
        self.queue.append(call)
        self._next()

    def let_go(self, each: CallRange) -> None:
        """Results that were accepted."""
        for index in range(each.first, each.first + each.count):
            self.results.pop((each.map, index), None)

    def drop(self, name: str) -> None:
        """The calls of a map are not wanted; the one that runs is interrupted."""
        self.queue = deque(each for each in self.queue if each.key[0] != name)
        self.results = {key: run for key, run in self.results.items() if key[0] != name}
        running = self.running
        heeds = running is not None and running.deed != "deaf"
        if running is not None and heeds and running.key[0] == name and self._unwanted != name:
            self._unwanted = name
            self.end_life()
            self.after(0.3 * self.sim.random.random(), self._interrupted)

    def _interrupted(self) -> None:
        self.running, self._unwanted = None, ""
        self._next()
        self._tell()

    def _next(self) -> None:
        if self.running is not None or not self.queue or not self.live:
            return
        call = self.running = self.queue.popleft()
        self.kernel.machine.truth.calls.began(self, call)
        if call.deed == "print" or self.sim.random.random() < 0.1:
            self._write(call, b"begun\n")
        self.after(call.seconds, self._done, call)

    def _write(self, call: Given, text: bytes) -> None:
        self.spool.data += encode_call(Kind.CALL_STDOUT, call.key[0], call.key[1], 0, text)
        self.kernel.machine.truth.calls.wrote(self.attempt, call.key, len(self.spool.data))

    def _done(self, call: Given) -> None:
        if call.deed == "die" or (call.deed == "die once" and self.kernel.machine.truth.calls.runs[call.key] == 1):
            self.kernel.die()
            return
        if call.deed == "print":
            self._write(call, f"{self.attempt} did {call.key}\n".encode() * 20)
        for _ in range(80 if call.deed == "flood" else 0):  # more than may be on its way at once
            self._write(call, bytes(64 * 1024))
        (name, index), code = call.key, RAISED if call.deed == "raise" else OK
        data = f"{self.attempt} {name} {index}".encode()
        spent_us = round(call.seconds * 1e6)
        self.results[call.key] = CallRun(map=name, first=index, codes=bytes([code]), data=(data,), spent_us=spent_us)
        self.running = None
        self._next()
        self._tell()

    def _tell(self) -> None:
        if self.told is not None:
            self.told()

    def interrupt(self) -> None:
        """SIGINT: what runs ends, and with it the process."""
        if self.live:
            self.after(0.5 * self.sim.random.random(), self.kernel.die)


def load(kernel: Kernel, assign: Assign, spool: Spool) -> Runner:
    """Let a fresh process load its function."""
    runner = Runner(kernel, assign.attempt, assign, spool)
    kernel.program = runner
    truth = kernel.machine.truth
    if assign.attempt in truth.programs:
        truth.replaced(runner)
    else:
        truth.began(kernel.machine, runner)
    return runner
