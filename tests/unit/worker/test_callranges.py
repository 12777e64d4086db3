"""Sets of calls against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.calls import CallRange
from gpulayer_worker.callranges import CallRanges, Span

_SPANS = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda span: (span[0], span[0] + span[1]))
_STEPS = st.lists(st.tuples(st.sampled_from(["add", "cut", "drop"]), st.sampled_from("ab"), _SPANS), max_size=25)


def numbers(spans: list[Span]) -> set[int]:
    return {n for first, stop in spans for n in range(first, stop)}


def numbers_of(calls: CallRanges) -> set[tuple[str, int]]:
    return {(each.map, n) for each in calls for n in range(each.first, each.first + each.count)}


@given(_STEPS, _SPANS)
def test_it_holds_what_a_set_would(steps: list[tuple[str, str, Span]], asked: Span) -> None:
    calls, model = CallRanges(), set[tuple[str, int]]()
    for step, name, (first, stop) in steps:
        some = {(name, n) for n in range(first, stop)}
        if step == "add":
            calls.add(name, first, stop)
            model |= some
        elif step == "cut":
            assert numbers(calls.cut(name, first, stop)) == {n for _, n in some & model}
            model -= some
        else:
            assert numbers(calls.drop(name)) == {n for other, n in model if other == name}
            model = {each for each in model if each[0] != name}
        assert numbers_of(calls) == model
        assert (bool(calls), len(calls)) == (bool(model), len(model))
    wanted = set(range(*asked))
    have = {n for name, n in model if name == "a"}
    assert numbers(calls.within("a", *asked)) == wanted & have
    assert numbers(calls.lacking("a", *asked)) == wanted - have


@given(st.lists(_SPANS, max_size=8))
def test_ranges_that_touch_are_one(spans: list[Span]) -> None:
    calls = CallRanges(CallRange(map="m", first=first, count=stop - first) for first, stop in spans)
    ranges = sorted((each.first, each.first + each.count) for each in calls)
    assert all(one[1] < other[0] for one, other in pairwise(ranges))


def test_nothing_of_it_is_left() -> None:
    calls = CallRanges([CallRange(map="m", first=3, count=4)])
    calls.clear()
    assert not calls
    assert list(calls) == []
