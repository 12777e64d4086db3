"""Calls that wait in a runner."""

from __future__ import annotations

import random

from gpulayer_worker.runner import wire
from gpulayer_worker.runner.inbox import Inbox


def test_calls_are_handed_out_in_order_and_counted_as_running() -> None:
    inbox = Inbox()
    inbox.put(wire.Calls("m.1", 5, [b"a", b"b"]))
    inbox.put(wire.Calls("m.2", 0, [b"c"]))
    assert inbox.waiting() == [("m.1", 5, 2), ("m.2", 0, 1)]
    seen = []
    while (batch := inbox.next()) is not None:
        seen.append((batch.map, inbox.index, batch.args[batch.at - 1]))
        assert inbox.runs() == (batch.map, inbox.index, 0)
    assert seen == [("m.1", 5, b"a"), ("m.1", 6, b"b"), ("m.2", 0, b"c")]
    assert (inbox.runs(), inbox.waiting()) == (None, [])


def test_each_call_has_one_fate_whatever_is_taken_back() -> None:
    chance = random.Random(3)
    inbox, fates, given = Inbox(), [], []
    for step in range(400):
        match chance.randrange(4):
            case 0:
                name, count = f"m.{chance.randrange(3)}", chance.randrange(5)
                inbox.put(wire.Calls(name, step * 10, [b""] * count))
                given += [(name, step * 10 + i) for i in range(count)]
            case 1:
                if (batch := inbox.next()) is not None:
                    fates.append((batch.map, inbox.index))
            case 2:
                found = inbox.drop(f"m.{chance.randrange(3)}") if chance.random() < 0.2 else []
                fates += [(name, first + i) for name, first, count in found for i in range(count)]
            case _:
                found = inbox.recall(chance.randrange(3))
                fates += [(name, first + i) for name, first, count in found for i in range(count)]
    fates += [(name, first + i) for name, first, count in inbox.waiting() for i in range(count)]
    assert sorted(fates) == sorted(given)
