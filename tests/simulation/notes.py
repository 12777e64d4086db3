"""What an agent notes on the disk of its attempts, and what it may hear of them when they are over."""

from __future__ import annotations

import msgspec

from gpulayer.protocol.types import Outcome, State
from gpulayer_worker import link
from gpulayer_worker.layout import AttemptRecord
from tests.simulation.cellrun import LATE
from tests.simulation.simulator import Violation


def late_events(name: str) -> tuple[link.Event, ...]:
    """What may be heard of an attempt that was let go of."""
    outcome = Outcome(state=State.FAILED, problem=LATE)
    return (
        link.Doing(attempt=name, text=LATE),
        link.Began(attempt=name),
        link.SpoolGrew(attempt=name, end=10**9),
        link.Ended(attempt=name, end=10**9, outcome=outcome),
        link.GaveBack(attempt=name, reason=LATE),
        link.Gone(attempt=name),
    )


def alone(held: link.Held) -> bool:
    """Whether an attempt has begun, in a kernel of its own."""
    return held.began and held.assign.session is None


def record_of(held: link.Held) -> bytes:
    """What stands on the disk of an attempt."""
    return msgspec.msgpack.encode(AttemptRecord.of(held, assign=held.assign))


def held_in(data: bytes) -> link.Held:
    """The attempt that a record on the disk holds."""
    held = msgspec.msgpack.decode(data, type=AttemptRecord).held()
    if held is None:
        raise Violation("a record without its assignment")
    return held
