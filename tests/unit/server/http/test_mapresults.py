"""Results for one client: none lost, none twice, in their order, however they come and wherever they are read."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.calls import OK, CallRun, ResultRun
from gpulayer_server.http.mapresults import AsTheyCome, Ordered
from gpulayer_server.store.maps import StoredRun


def a_run(first: int, count: int = 1, size: int = 1) -> CallRun:
    data = tuple([b"%d" % index * size for index in range(first, first + count)])
    return CallRun(map="m.1", first=first, codes=bytes([OK]) * count, data=data)


class Stored:
    """What is committed, as a store gives it."""

    def __init__(self, *runs: CallRun):
        self.runs = list(runs)
        self.looks = 0

    def by_index(self, first: int, limit_bytes: int) -> list[StoredRun]:
        self.looks += 1
        found: list[StoredRun] = []
        for seq, run in sorted(enumerate(self.runs, 1), key=lambda each: each[1].first):
            end = run.first + len(run.codes)
            if run.first <= first < end and (limit_bytes > 0 or not found):
                skip = first - run.first
                found.append(StoredRun(seq, ResultRun(first=first, codes=run.codes[skip:], data=run.data[skip:])))
                limit_bytes -= sum(map(len, run.data))
                first = end
        return found

    def by_coming(self, after: int, limit_bytes: int) -> list[StoredRun]:
        found: list[StoredRun] = []
        for seq, run in enumerate(self.runs[after:], after + 1):
            if limit_bytes > 0 or not found:
                found.append(StoredRun(seq, ResultRun(first=run.first, codes=run.codes, data=run.data)))
                limit_bytes -= sum(map(len, run.data))
        return found


def all_of(results: Ordered | AsTheyCome, limit_bytes: int = 1 << 20) -> list[bytes]:
    data: list[bytes] = []
    while results.waiting:
        data += [each for run in results.take(limit_bytes) for each in run.data]
    return data


def test_what_comes_in_order_never_touches_the_store() -> None:
    stored = Stored()
    results = Ordered(stored.by_index)
    for first in range(0, 100, 10):
        results.accepted(a_run(first, 10))
    (run,) = results.take(1 << 20)
    assert (run.first, len(run.codes), results.cursor) == (0, 100, 100)
    assert run.data == tuple([b"%d" % n for n in range(100)])
    assert not results.waiting
    assert stored.looks == 0


def test_what_is_ahead_waits_for_its_turn() -> None:
    results = Ordered(Stored().by_index)
    results.accepted(a_run(2, 2))
    assert not results.waiting
    assert results.take(100) == []
    results.accepted(a_run(0, 2))
    assert all_of(results) == [b"0", b"1", b"2", b"3"]


def test_too_much_ahead_is_left_to_the_store() -> None:
    runs = [a_run(n, size=100) for n in range(1, 50)]
    stored = Stored(*runs)
    results = Ordered(stored.by_index, limit_bytes=1000)
    for run in runs:
        results.accepted(run)
    assert all_of(results) == []
    stored.runs.append(a_run(0, size=100))
    results.accepted(stored.runs[-1])
    assert all_of(results, 500) == [b"%d" % n * 100 for n in range(50)]
    looks = stored.looks
    later = a_run(50)
    results.accepted(later)
    assert all_of(results) == [b"50"]
    assert stored.looks == looks  # it has caught up: the rest comes from memory


def test_who_comes_later_reads_what_is_there_then_hears_the_rest() -> None:
    stored = Stored(a_run(0, 3), a_run(5, 2))
    results = Ordered(stored.by_index, after=1, done=5)
    assert all_of(results) == [b"1", b"2"]
    stored.runs.append(a_run(3, 2))
    results.accepted(stored.runs[-1])
    assert all_of(results) == [b"3", b"4", b"5", b"6"]


def test_what_the_store_gave_before_it_was_told_comes_once() -> None:
    stored = Stored(a_run(0, 2), a_run(20, 2), a_run(2, 18))  # the last two are committed, and not told yet
    results = Ordered(stored.by_index, done=2)
    first = results.take(1)
    assert [run.data for run in first] == [(b"0", b"1")]
    assert all_of(results) == []  # it waits to be told
    results.accepted(a_run(20, 2))
    results.accepted(a_run(2, 18))
    assert all_of(results) == [b"%d" % n for n in range(2, 22)]


@given(st.data())
def test_each_result_comes_once_and_in_order(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 40))
    cuts = sorted(data.draw(st.sets(st.integers(1, total))) | {0, total})
    runs = [a_run(low, high - low) for low, high in itertools.pairwise(cuts)]
    coming = data.draw(st.permutations(runs))
    committed = data.draw(st.integers(0, len(coming)))
    told = data.draw(st.integers(0, committed))  # the store may know more than was told
    stored = Stored(*coming[:committed])
    results = Ordered(
        stored.by_index, done=sum(len(run.codes) for run in coming[:told]), limit_bytes=data.draw(st.integers(1, 100))
    )
    got: list[bytes] = []
    for at in range(told, len(coming)):
        if data.draw(st.booleans()):
            got += all_of(results, data.draw(st.integers(1, 30)))
        if at >= committed:
            stored.runs.append(coming[at])
        results.accepted(coming[at])
    results.look_again()
    got += all_of(results, 20)
    assert got == [b"%d" % n for n in range(total)]


@given(st.data())
def test_nothing_is_left_behind_without_a_last_look(data: st.DataObject) -> None:
    total = data.draw(st.integers(1, 30))
    coming = data.draw(st.permutations([a_run(n) for n in range(total)]))
    committed = data.draw(st.integers(0, total))
    told = data.draw(st.integers(0, committed))
    stored = Stored(*coming[:committed])
    results = Ordered(stored.by_index, done=told, limit_bytes=data.draw(st.integers(1, 20)))
    got: list[bytes] = []
    for at in range(told, total):
        if data.draw(st.booleans()):
            got += all_of(results, data.draw(st.integers(1, 30)))
        if at >= committed:
            stored.runs.append(coming[at])
        results.accepted(coming[at])
    got += all_of(results)
    assert got == [b"%d" % n for n in range(total)]


def test_as_they_come_the_store_says_where_to_go_on() -> None:
    stored = Stored(a_run(5), a_run(0, 2))
    results = AsTheyCome(stored.by_coming, done=3)
    assert all_of(results, 1) == [b"5", b"0", b"1"]
    assert results.cursor == 2
    stored.runs.append(a_run(3))
    assert not results.waiting
    results.accepted(stored.runs[-1])
    assert all_of(results) == [b"3"]
    again = AsTheyCome(stored.by_coming, after=2, done=4)
    assert all_of(again) == [b"3"]
