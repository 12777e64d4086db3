"""What the link does for runners: calls that come, results that go."""

from __future__ import annotations

from typing import TypeAlias

from gpulayer.protocol.calls import Calls, CallsAccepted, DropCalls, EndRunner, RecallCalls
from gpulayer_worker.link_events import (
    CallsBack,
    CallsFound,
    DropMap,
    Effect,
    GiveBackCalls,
    Held,
    LetGo,
    ResultsCame,
    RunCalls,
    WindDown,
)

ToRunner: TypeAlias = Calls | CallsAccepted | RecallCalls | DropCalls | EndRunner
OfRunner: TypeAlias = ResultsCame | CallsBack | CallsFound


def hear(held: Held | None, message: ToRunner, out: list[Effect]) -> None:
    """A message for a runner. One that has ended gets nothing more: its end says what it has not done."""
    if held is None or held.calls is None:
        return
    name = message.attempt
    if isinstance(message, CallsAccepted):
        gone = held.calls.accept(message.ranges)
    elif not held.live or held.recorded:
        return
    elif isinstance(message, DropCalls):
        gone = held.calls.drop(message.map)
        out.append(DropMap(attempt=name, map=message.map))
    else:
        gone = []
        _to_run(held, message, out)
    if gone and held.live:
        out.append(LetGo(attempt=name, ranges=tuple(gone)))


def _to_run(held: Held, message: Calls | RecallCalls | EndRunner, out: list[Effect]) -> None:
    match message:
        case Calls(attempt=name, batches=batches):
            new = held.calls.take(batches) if held.calls is not None else ()
            if new:
                out.append(RunCalls(attempt=name, batches=new))
        case RecallCalls(attempt=name, count=count):
            out.append(GiveBackCalls(attempt=name, count=count))
        case EndRunner(attempt=name):
            out.append(WindDown(attempt=name))


def happen(held: Held, event: OfRunner, out: list[Effect]) -> None:
    """Something happened to calls here; what is to be told of it, the pump tells."""
    if held.calls is None or held.recorded:
        return
    match event:
        case ResultsCame(attempt=name, runs=runs, end=end):
            held.spool_end = max(held.spool_end, end)
            stale = held.calls.done(runs, end)
            if stale:
                out.append(LetGo(attempt=name, ranges=tuple(stale)))
        case CallsBack(ranges=ranges, began=began, reason=reason):
            held.calls.give_back(ranges, began=began, reason=reason)
        case CallsFound(ranges=ranges):
            held.calls.found(ranges)
