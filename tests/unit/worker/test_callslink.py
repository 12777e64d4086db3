"""What a runner holds, in whatever order frames, deaths and reconnects come."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gpulayer.protocol.calls import (
    MESSAGE_BYTES,
    MESSAGE_CALLS,
    OK,
    CallBatch,
    CallRange,
    CallRun,
    CallsDone,
    CallsReturned,
)
from gpulayer_worker.callslink import HeldCalls

_CALLS = 40


def batch(first: int, count: int, name: str = "m") -> CallBatch:
    return CallBatch(map=name, first=first, args=tuple(b"%d" % n for n in range(first, first + count)))


def run(first: int, count: int, name: str = "m", size: int = 1) -> CallRun:
    return CallRun(map=name, first=first, codes=bytes((OK,)) * count, data=(b"x" * size,) * count, spent_us=count)


def span(first: int, count: int = 1, name: str = "m") -> CallRange:
    return CallRange(map=name, first=first, count=count)


def numbers(ranges: tuple[CallRange, ...] | list[CallRange]) -> set[int]:
    return {n for each in ranges for n in range(each.first, each.first + each.count)}


@dataclass
class Runner:
    """It keeps results until they are accepted, and may tell of them again."""

    waiting: set[int]
    results: set[int]


class Lease(RuleBasedStateMachine):
    """A control plane, a connection that breaks, an agent that may die, and a runner that lives on, or dies."""

    def __init__(self) -> None:
        super().__init__()
        self.held = HeldCalls("a")
        self.runner = Runner(set(), set())
        self.connected = True
        self.sent = 0  # bytes of the stream
        self.end = 0
        self.wire: list[CallsDone | CallsReturned] = []  # that the control plane has not read yet
        self.answers: list[CallRange] = []  # that the agent has not read yet
        self.flying: set[int] = set()  # what the control plane thinks is here
        self.accepted: set[int] = set()
        self.dropped = False
        self.ran: dict[int, int] = {}  # by call, how often it came to an end here

    # ------------------------------------------------------------ the control plane

    @precondition(lambda self: self.connected)
    @rule(first=st.integers(0, _CALLS - 1), count=st.integers(1, 8))
    def dispatch(self, first: int, count: int) -> None:
        free = [n for n in range(first, min(_CALLS, first + count)) if n not in self.flying | self.accepted]
        batches = tuple(batch(n, 1) for n in free)
        new = self.held.take(batches)
        self.flying |= set(free)
        assert {each.first for each in new}.isdisjoint(self.runner.waiting | self.runner.results)
        self.runner.waiting |= {each.first for each in new}

    @precondition(lambda self: self.connected)
    @rule(first=st.integers(0, _CALLS - 1), count=st.integers(1, 8))
    def dispatch_what_is_here_already(self, first: int, count: int) -> None:
        here = self.runner.waiting
        wanted = [n for n in range(first, min(_CALLS, first + count)) if n in here]
        assert self.held.take([batch(n, 1) for n in wanted]) == ()

    @rule(count=st.integers(1, 3))
    def the_plane_reads(self, count: int) -> None:
        for message in self.wire[:count]:
            self._read(message)
        self.wire = self.wire[count:]

    def _read(self, message: CallsDone | CallsReturned) -> None:
        if isinstance(message, CallsReturned):
            assert numbers(message.ranges).isdisjoint(self.accepted)
            self.flying -= numbers(message.ranges)
            return
        for each in message.runs:
            told = set(range(each.first, each.first + len(each.codes)))
            self.accepted |= told
            self.flying -= told
            self.answers.append(span(each.first, len(each.codes)))

    @rule(count=st.integers(1, 3))
    def the_agent_reads(self, count: int) -> None:
        self._let_go(self.held.accept(self.answers[:count]))
        self.answers = self.answers[count:]

    def _let_go(self, ranges: list[CallRange]) -> None:
        gone = numbers(ranges)
        assert gone <= self.accepted or self.dropped
        self.runner.results -= gone

    # ------------------------------------------------------------ the runner

    @rule(data=st.data())
    def calls_end(self, data: st.DataObject) -> None:
        if not self.runner.waiting:
            return
        first = data.draw(st.sampled_from(sorted(self.runner.waiting)))
        stop = first
        while stop in self.runner.waiting and stop - first < 5:
            self.ran[stop] = self.ran.get(stop, 0) + 1
            stop += 1
        told = set(range(first, stop))
        self.runner.waiting -= told
        self.runner.results |= told
        self.end += 10
        assert self.held.done([run(first, stop - first)], self.end) == []

    @rule()
    def the_runner_tells_all_again(self) -> None:
        before = self.held.declared
        for n in sorted(self.runner.results):
            self._let_go(self.held.done([run(n, 1)], self.end))
        assert numbers(self.held.declared) == numbers(before)

    @rule(data=st.data(), began=st.booleans())
    def calls_go_back(self, data: st.DataObject, began: bool) -> None:
        if self.runner.waiting:
            some = data.draw(st.sets(st.sampled_from(sorted(self.runner.waiting)), min_size=1, max_size=4))
            self.runner.waiting -= some
            self.held.give_back([span(n) for n in sorted(some)], began=began, reason="")

    # ------------------------------------------------------------ the connection, and the agent

    @precondition(lambda self: self.connected)
    @rule()
    def it_is_pumped(self) -> None:
        told = self.held.pump(self.sent)
        self.wire += told

    @rule()
    def text_is_sent(self) -> None:
        self.sent = self.end

    @precondition(lambda self: self.connected)
    @rule(arrives=st.integers(0, 3))
    def the_connection_breaks(self, arrives: int) -> None:
        """Some of what was on its way arrives, the rest is lost."""
        for message in self.wire[:arrives]:
            self._read(message)
        self.wire, self.answers, self.connected = [], [], False

    @precondition(lambda self: not self.connected)
    @rule()
    def it_is_back(self) -> None:
        declared = numbers(self.held.declared)
        self.connected = True
        self.held.again()
        self.flying = declared - self.accepted
        self.sent = self.end

    @rule()
    def the_agent_dies(self) -> None:
        """The next one learns from the runner what there is, and hears its results again."""
        self.wire, self.answers, self.connected = [], [], False
        self.held = HeldCalls("a")
        self.held.found([span(n) for n in sorted(self.runner.waiting | self.runner.results)])
        for n in sorted(self.runner.results):
            assert self.held.done([run(n, 1)], self.end) == []

    # ------------------------------------------------------------ what must hold

    @invariant()
    def everything_is_declared(self) -> None:
        assert self.runner.waiting | self.runner.results <= numbers(self.held.declared)

    def teardown(self) -> None:
        """Once everything is quiet nothing is held, and nothing is told any more."""
        if not self.connected:
            self.it_is_back()
        for _ in range(3):
            self.text_is_sent()
            self.it_is_pumped()
            self.the_plane_reads(len(self.wire) or 1)
            self.the_agent_reads(len(self.answers) or 1)
        assert self.held.pump(self.sent) == []
        assert numbers(self.held.declared) == self.runner.waiting
        assert self.runner.results == set()
        assert self.flying == self.runner.waiting
        assert all(n in self.accepted for n in self.ran)


Lease.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestLease = Lease.TestCase


# ---------------------------------------------------------------- in particular


def test_runs_that_touch_are_one_in_a_message() -> None:
    held = HeldCalls("a")
    held.take([batch(0, 10), batch(20, 2)])
    for first, count in ((0, 4), (4, 2), (20, 2), (6, 4)):
        held.done([run(first, count)], 0)
    (told,) = held.pump(0)
    assert isinstance(told, CallsDone)
    assert [(each.first, len(each.codes), each.spent_us) for each in told.runs] == [(0, 6, 6), (20, 2, 2), (6, 4, 4)]
    assert held.pump(0) == []


def test_a_message_has_so_many_calls_and_bytes_at_most() -> None:
    held = HeldCalls("a")
    held.take([batch(0, 2 * MESSAGE_CALLS)])
    for first in range(0, 2 * MESSAGE_CALLS, 100):
        held.done([run(first, min(100, 2 * MESSAGE_CALLS - first))], 0)
    messages = held.pump(0)
    counts = [sum(len(each.codes) for each in told.runs) for told in messages if isinstance(told, CallsDone)]
    assert sum(counts) == 2 * MESSAGE_CALLS
    assert max(counts) <= MESSAGE_CALLS
    large = HeldCalls("a")
    large.take([batch(0, 3)])
    for first in range(3):
        large.done([run(first, 1, size=MESSAGE_BYTES)], 0)
    assert len(large.pump(0)) == 3


def test_a_result_waits_for_the_text_of_its_call() -> None:
    held = HeldCalls("a")
    held.take([batch(0, 2)])
    held.done([run(0, 1)], 100)
    held.done([run(1, 1)], 300)
    assert held.pump(99) == []
    (first,) = held.pump(299)
    assert isinstance(first, CallsDone)
    assert first.runs[0].first == 0
    (second,) = held.pump(300)
    assert isinstance(second, CallsDone)
    assert second.runs[0].first == 1


def test_results_that_were_accepted_in_part_are_told_again_in_part() -> None:
    held = HeldCalls("a")
    held.take([batch(0, 10)])
    held.done([run(0, 10)], 0)
    held.pump(0)
    assert held.accept([span(0, 3), span(5, 2)]) == [span(0, 3), span(5, 2)]
    held.again()
    (told,) = held.pump(0)
    assert isinstance(told, CallsDone)
    assert [(each.first, len(each.codes)) for each in told.runs] == [(3, 2), (7, 3)]


def test_a_map_that_is_dropped_is_forgotten_with_its_results() -> None:
    held = HeldCalls("a")
    held.take([batch(0, 4), batch(0, 2, "n")])
    held.done([run(0, 2)], 0)
    held.give_back([span(2)], began=True, reason="signal 9")
    assert held.drop("m") == [span(0, 2)]
    assert held.declared == (span(0, 2, "n"),)
    assert held.pump(0) == []
    assert held.done([run(3, 1)], 0) == [span(3)]  # the one that was interrupted


def test_what_was_accepted_long_ago_may_be_let_go_of_when_it_is_told_again() -> None:
    held = HeldCalls("a")
    assert held.done([run(0, 3)], 0) == [span(0, 3)]
    held.take([batch(0, 4)])
    held.done([run(1, 1)], 0)
    assert held.done([run(0, 3)], 0) == []
    assert held.declared == (span(3), span(0, 3))


def test_a_call_that_comes_again_is_taken_once() -> None:
    held = HeldCalls("a")
    held.take([batch(2, 3)])
    held.done([run(3, 1)], 0)
    new = held.take([batch(0, 8)])
    assert [(each.first, each.args) for each in new] == [(0, (b"0", b"1")), (5, (b"5", b"6", b"7"))]


def test_what_is_given_back_is_told_once_with_its_reason() -> None:
    held = HeldCalls("a")
    held.take([batch(0, 6)])
    held.give_back([span(1)], began=True, reason="signal 9")
    held.give_back([span(1, 3), span(9)], began=False, reason="")
    assert held.pump(0) == [
        CallsReturned(attempt="a", ranges=(span(1),), began=True, reason="signal 9"),
        CallsReturned(attempt="a", ranges=(span(2, 2),)),
    ]
    assert held.pump(0) == []
    assert held.declared == (span(0), span(4, 2))


def test_after_the_end_only_results_are_left() -> None:
    held = HeldCalls("a")
    held.take([batch(0, 6)])
    held.done([run(0, 1)], 0)
    held.over()
    assert held.declared == (span(0),)
    held.forget()
    assert not held
