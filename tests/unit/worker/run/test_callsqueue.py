"""Calls that wait, and those that the runner was given."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.calls import MESSAGE_CALLS, CallBatch, CallRange
from gpulayer_worker.run.callsqueue import CallQueue, Pace, Piece


def batch(first: int, count: int, name: str = "m", blobs: tuple[str, ...] = ()) -> CallBatch:
    args = tuple(b"%s:%d" % (name.encode(), n) for n in range(first, first + count))
    return CallBatch(map=name, first=first, args=args, blobs=blobs)


def span(first: int, count: int = 1, name: str = "m") -> CallRange:
    return CallRange(map=name, first=first, count=count)


def spans(pieces: list[Piece]) -> list[tuple[str, int, int]]:
    return [(piece.map, piece.first, piece.stop - piece.first) for piece in pieces]


def always(piece: Piece) -> bool:
    return True


def unless(*names: str) -> Callable[[Piece], bool]:
    """Ready but for the pieces of batches that need one of these."""
    return lambda piece: piece.batch is not None and not set(names) & set(piece.batch.blobs)


def queue(*batches: CallBatch, in_order: bool = False) -> CallQueue:
    made = CallQueue(in_order=in_order)
    made.put(batches)
    return made


# ---------------------------------------------------------------- pace


def test_one_at_a_time_until_it_is_known_how_long_they_take() -> None:
    pace = Pace()
    assert pace.window == 1
    pace.ran(10, 1000)
    assert pace.window == 40  # 4 ms of 100 µs each
    pace.ran(1, 0)
    assert pace.window > 40


def test_the_window_has_bounds() -> None:
    pace = Pace()
    pace.ran(1000, 0)
    assert pace.window == MESSAGE_CALLS
    for _ in range(10):
        pace.ran(1, 20_000_000)
    assert pace.window == 1


# ---------------------------------------------------------------- to the runner


def test_calls_go_in_order_with_their_arguments_and_more_follow_when_half_is_done() -> None:
    calls = queue(batch(0, 5), batch(5, 5), batch(0, 2, "n"))
    pieces = calls.hand(8, always)
    assert spans(pieces) == [("m", 0, 5), ("m", 5, 3)]
    assert list(pieces[1].args) == [b"m:5", b"m:6", b"m:7"]
    assert (calls.handed, calls.waiting) == (8, 4)
    calls.done("m", 0, 3)
    assert calls.hand(8, always) == []
    calls.done("m", 3, 5)
    assert spans(calls.hand(8, always)) == [("m", 8, 2), ("n", 0, 2)]
    assert calls.head == ("m", 5)


def test_what_is_not_here_yet_is_overtaken() -> None:
    calls = queue(batch(0, 2, blobs=("x",)), batch(2, 2), batch(4, 2, blobs=("y",)))
    assert spans(calls.hand(4, unless("x"))) == [("m", 2, 2), ("m", 4, 2)]
    calls.done("m", 2, 6)
    assert calls.hand(4, unless("x")) == []
    assert spans(calls.hand(4, always)) == [("m", 0, 2)]
    assert calls.waiting == 0


def test_calls_are_looked_at_again_once_what_they_lacked_is_here() -> None:
    calls = queue(batch(0, 2, blobs=("x",)), batch(2, 1, blobs=("y",)))
    asked: list[tuple[int, int]] = []
    lacking = {"x": None, "y": None}

    def ready(piece: Piece) -> bool:
        asked.append((piece.first, piece.stop))
        assert piece.batch is not None
        piece.lacks = next((each for each in piece.batch.blobs if each in lacking), "")
        return not piece.lacks

    assert calls.hand(4, ready, lacking) == []
    assert asked == [(0, 2), (0, 1), (2, 3)]
    assert calls.hand(4, ready, lacking) == []
    assert len(asked) == 3  # nothing has changed
    del lacking["y"]
    assert spans(calls.hand(4, ready, lacking)) == [("m", 2, 1)]
    del lacking["x"]
    assert spans(calls.hand(4, ready, lacking)) == [("m", 0, 2)]
    assert asked[3:] == [(2, 3), (0, 2)]


def test_nothing_is_overtaken_where_order_matters() -> None:
    calls = queue(batch(0, 2, blobs=("x",)), batch(2, 2), in_order=True)
    assert calls.hand(4, unless("x")) == []
    assert spans(calls.hand(4, always)) == [("m", 0, 2), ("m", 2, 2)]


def test_the_first_call_of_a_batch_goes_alone_where_only_that_is_ready() -> None:
    calls = queue(batch(0, 4, blobs=("x",)))
    assert spans(calls.hand(4, lambda piece: piece.stop == 1)) == [("m", 0, 1)]
    assert calls.waiting == 3


def test_one_by_one_where_care_is_due() -> None:
    calls = queue(batch(0, 5))
    assert spans(calls.hand(4, always)) == [("m", 0, 4)]
    pieces = calls.handed_over()
    assert calls.again(pieces) == []
    calls.careful = 4
    for n in range(4):
        assert spans(calls.hand(4, always)) == [("m", n, 1)]
        assert calls.hand(4, always) == []
        calls.done("m", n, n + 1)
    assert calls.careful == 0
    assert spans(calls.hand(4, always)) == [("m", 4, 1)]


# ---------------------------------------------------------------- back, and away


def test_what_the_runner_gives_back_is_the_first_that_waits() -> None:
    calls = queue(batch(0, 3, "n"), batch(0, 3), batch(3, 3))
    calls.hand(6, always)
    assert calls.taken_back([span(1, 2, "n"), span(1, 2), span(9)]) == []
    assert spans(calls.given) == [("n", 0, 1), ("m", 0, 1)]
    assert (calls.handed, calls.waiting) == (2, 7)
    assert spans(calls.hand(9, always)) == [("n", 1, 2), ("m", 1, 2), ("m", 3, 3)]


def test_what_another_agent_gave_to_the_runner_can_t_be_run_again_here() -> None:
    calls = queue(batch(10, 2))
    calls.found([span(0, 3)])
    assert (calls.handed, calls.batch_of("m", 1), calls.holds("m", 1)) == (3, None, True)
    assert calls.taken_back([span(1, 2)]) == [span(1, 2)]
    assert calls.again(calls.handed_over()) == [span(0)]
    assert calls.waiting == 2


def test_the_last_ones_are_recalled_first() -> None:
    calls = queue(batch(0, 4), batch(4, 4))
    calls.hand(1, always)
    assert calls.recall(5) == [span(4, 4), span(3)]
    assert calls.waiting == 2
    assert calls.recall(9) == [span(1, 2)]
    assert calls.recall(1) == []
    assert calls.handed == 1


def test_a_dropped_map_waits_no_more() -> None:
    calls = queue(batch(0, 2), batch(0, 3, "n"), batch(2, 2))
    calls.hand(1, always)
    calls.drop("m")
    assert calls.waiting == 3
    calls.lose([span(0)])
    assert calls.handed == 0
    assert spans(calls.hand(9, always)) == [("n", 0, 3)]


def test_calls_without_their_blobs_are_taken_out() -> None:
    calls = queue(batch(0, 2, blobs=("x",)), batch(2, 2, blobs=("y", "x")), batch(4, 2, blobs=("y",)))
    assert calls.fail("x") == [span(0, 2), span(2, 2)]
    assert calls.waiting == 2
    assert bool(calls)


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 9)),
        st.tuples(st.just("hand"), st.integers(1, 12)),
        st.tuples(st.just("done"), st.integers(1, 6)),
        st.tuples(st.just("back"), st.integers(1, 6)),
        st.tuples(st.just("recall"), st.integers(1, 9)),
        st.tuples(st.just("death"), st.integers(0, 1)),
    ),
    max_size=40,
)


@given(_STEPS)
def test_no_call_is_lost_or_doubled(steps: list[tuple[str, int]]) -> None:
    calls = CallQueue()
    came = 0
    left: list[int] = []  # done, or given back
    for step, number in steps:
        if step == "put":
            calls.put([batch(came, number)])
            came += number
        elif step == "hand":
            calls.hand(number, always)
        elif step == "done":
            given = [n for piece in calls.given for n in range(piece.first, piece.stop)]
            for n in given[:number]:
                calls.done("m", n, n + 1)
                left.append(n)
        elif step == "back":
            given = [n for piece in calls.given for n in range(piece.first, piece.stop)]
            assert calls.taken_back([span(n) for n in given[-number:]]) == []
        elif step == "recall":
            left += [n for each in calls.recall(number) for n in range(each.first, each.first + each.count)]
        else:
            assert calls.again(calls.handed_over()) == []
        given = [n for piece in calls.given for n in range(piece.first, piece.stop)]
        assert len(given) == calls.handed
        assert len(left) == len(set(left))
        assert came == len(left) + calls.handed + calls.waiting
    given = [n for piece in calls.given for n in range(piece.first, piece.stop)]
    waiting = calls.waiting
    calls.handed_over()
    rest = [n for piece in calls.hand(10_000, always) for n in range(piece.first, piece.stop)]
    assert len(rest) == waiting
    assert sorted(left + given + rest) == list(range(came))
