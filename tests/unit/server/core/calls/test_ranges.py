"""Ranges are sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpulayer_server.core.calls.ranges import Range, Ranges

spans = st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda each: (each[0], each[0] + each[1]))
deeds = st.lists(st.tuples(st.sampled_from(["add", "remove", "take"]), spans), max_size=30)


def members(ranges: list[Range]) -> list[int]:
    return [index for first, end in ranges for index in range(first, end)]


@given(deeds, spans)
def test_ranges_are_the_set_that_they_stand_for(deeds: list[tuple[str, Range]], asked: Range) -> None:
    ranges, plain = Ranges(), set[int]()
    for deed, (first, end) in deeds:
        if deed == "add":
            ranges.add(first, end)
            plain |= set(range(first, end))
        elif deed == "remove":
            assert ranges.remove(first, end) == len(plain & set(range(first, end)))
            plain -= set(range(first, end))
        else:
            taken = sorted(plain)[: end - first]
            assert members(ranges.take(end - first)) == taken
            plain -= set(taken)
        kept = list(ranges)
        assert members(kept) == sorted(plain)
        assert ranges.count == len(plain)
        assert all(kept[at][1] < kept[at + 1][0] for at in range(len(kept) - 1)), "neighbours are one range"
        assert ranges.pieces == len(kept)
    inside = [index for index in range(*asked) if index in plain]
    assert members(ranges.within(*asked)) == inside
    assert members(ranges.missing(*asked)) == [index for index in range(*asked) if index not in plain]
    assert all((index in ranges) == (index in plain) for index in range(55))
