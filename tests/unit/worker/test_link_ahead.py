"""Small commands wait on the worker for a slot, as many as it asked for, and none for long."""

from __future__ import annotations

import pytest

from gpulayer.protocol.messages import Ahead, Assign, CancelAttempt, NotStarted
from gpulayer.protocol.types import CommandSpec, Device, JobSpec
from gpulayer_worker.ahead import MOST
from gpulayer_worker.link import Connected, Ended, Full, Link, Persist, SayHello, Start, Tick
from tests.support.link import DONE, Wire, assign

GPU = Device(uuid="u", kind="cuda", index=0)


def command(attempt: str, *, devices: tuple[Device, ...] = (), leased: bool = False) -> Assign:
    spec = JobSpec(command=CommandSpec(argv=("true",)))
    return Assign(attempt=attempt, job="j", spec=spec, devices=devices, leased=leased)


@pytest.fixture
def wire() -> Wire:
    """Two slots, and a connection."""
    made = Wire(Link(slots=2))
    made.welcome()
    return made


def end(wire: Wire, attempt: str) -> None:
    wire.do(Ended(attempt=attempt, end=0, outcome=DONE, began=True, gone=True))


def started(wire: Wire) -> list[str]:
    return [each.assign.attempt for each in wire.found(Start)]


def test_what_has_no_slot_waits_and_starts_in_order(wire: Wire) -> None:
    for name in "abcd":
        wire.hear(command(name))
    assert wire.out == []
    end(wire, "a")
    assert started(wire) == ["c"]
    end(wire, "b")
    assert started(wire) == ["d"]


def test_it_is_written_down_when_it_starts(wire: Wire) -> None:
    for name in "abc":
        wire.hear(command(name))
    end(wire, "a")
    kinds = [type(each) for each in wire.out if getattr(each, "attempt", "c") == "c"]
    assert kinds.index(Persist) < kinds.index(Start)


def test_an_assignment_that_waits_already_changes_nothing(wire: Wire) -> None:
    for name in "abcc":
        wire.hear(command(name))
    end(wire, "a")
    end(wire, "b")
    assert started(wire) == []


def test_cells_and_what_has_devices_do_not_wait(wire: Wire) -> None:
    for name in "ab":
        wire.hear(command(name))
    wire.hear(assign("cell"))
    assert started(wire) == ["cell"]
    wire.hear(command("gpu", devices=(GPU,)))
    assert started(wire) == ["gpu"]


def test_one_that_waits_is_given_back_when_it_is_cancelled(wire: Wire) -> None:
    for name in "abc":
        wire.hear(command(name))
    wire.hear(CancelAttempt(attempt="c"))
    assert [message.attempt for message in wire.sent() if isinstance(message, NotStarted)] == ["c"]
    end(wire, "a")
    assert started(wire) == []


def test_quick_ones_ask_for_more_and_slow_ones_for_none(wire: Wire) -> None:
    wire.hear(command("a"))
    wire.now += 0.01
    end(wire, "a")
    [told] = [message for message in wire.sent() if isinstance(message, Ahead)]
    assert 2 < told.count <= MOST
    wire.hear(command("b"))
    wire.now += 60.0
    end(wire, "b")
    assert [message.count for message in wire.sent() if isinstance(message, Ahead)] == [0]


def test_what_waits_for_long_is_given_back(wire: Wire) -> None:
    for name in "abcd":
        wire.hear(command(name))
    wire.now += 0.2
    wire.do(Tick())
    assert not any(isinstance(message, NotStarted) for message in wire.sent())
    wire.now += 0.4
    wire.do(Tick())
    assert [message.attempt for message in wire.sent() if isinstance(message, NotStarted)] == ["c", "d"]
    end(wire, "a")
    assert started(wire) == []


@pytest.mark.parametrize("asked", [False, True])
def test_who_gives_back_says_first_that_none_may_wait_whatever_was_told_before(wire: Wire, asked: bool) -> None:
    """Else they come again at once: the control plane may think so by a word that this worker does not know of."""
    if asked:
        wire.hear(command("quick"))
        wire.now += 0.01
        end(wire, "quick")
        assert any(isinstance(message, Ahead) for message in wire.sent())
    for names in ("abcd", "ef"):
        for name in names:
            wire.hear(command(name))
        wire.now += 0.6
        wire.do(Tick())
        told, *given_back = [message for message in wire.sent() if isinstance(message, (Ahead, NotStarted))]
        assert told == Ahead(count=0)
        assert [message.attempt for message in given_back if isinstance(message, NotStarted)] == [*names[-2:]]
    wire.now += 0.6
    wire.do(Tick())
    assert not any(isinstance(message, (Ahead, NotStarted)) for message in wire.sent())


def test_a_new_connection_begins_with_nothing_that_waits(wire: Wire) -> None:
    for name in "abc":
        wire.hear(command(name))
    wire.do(Connected())
    [hello] = wire.found(SayHello)
    assert [each.attempt for each in hello.attempts] == ["a", "b"]
    end(wire, "a")
    assert started(wire) == []


def test_what_can_no_longer_start_is_given_back(wire: Wire) -> None:
    for name in "abc":
        wire.hear(command(name))
    wire.do(Full(reason="disk low"))
    end(wire, "a")
    assert started(wire) == []
    assert [message.reason for message in wire.sent() if isinstance(message, NotStarted)] == ["disk low"]


def test_without_a_limit_nothing_waits_and_nothing_is_asked_for() -> None:
    wire = Wire()
    wire.welcome()
    for name in "abcdef":
        wire.hear(command(name))
        assert started(wire) == [name]
    end(wire, "a")
    assert not any(isinstance(message, Ahead) for message in wire.sent())
