"""Results that are gathered into frames, and kept until they are accepted."""

from __future__ import annotations

import random
from typing import Any

from gpulayer_worker.runner import wire
from gpulayer_worker.runner.outbox import Kept, Outbox


class Sent:
    """Takes the frames of an outbox."""

    def __init__(self) -> None:
        self.frames: list[Any] = []
        self.outbox = Outbox(self._take, lambda: 77)

    def _take(self, data: bytes) -> None:
        self.frames += wire.Splitter().feed(data)

    def add(self, name: str, index: int, now: int = 0) -> bool:
        return self.outbox.add(name, index, 0, b"%d" % index, 2000, None, now)

    def ranges(self) -> list[tuple[str, int, int]]:
        return [(frame.map, frame.first, len(frame.codes)) for frame in self.frames]


def test_results_that_touch_are_one_frame() -> None:
    sent = Sent()
    assert not any(sent.add("m.1", index) for index in (3, 4, 5))
    sent.add("m.1", 7)
    sent.add("m.2", 8)
    sent.outbox.flush()
    assert sent.ranges() == [("m.1", 3, 3), ("m.1", 7, 1), ("m.2", 8, 1)]
    first = sent.frames[0]
    assert (list(first.data), first.spent_us, first.rss_bytes) == ([b"3", b"4", b"5"], 6, 77)


def test_it_is_time_to_flush_at_so_many_results_or_after_10_ms() -> None:
    sent, most = Sent(), wire.FLUSH_RESULTS
    assert [sent.add("m.1", index) for index in range(most)] == [False] * (most - 1) + [True]
    sent.outbox.flush()
    assert not sent.add("m.1", most, now=1_000_000)
    assert sent.add("m.1", most + 1, now=11_000_000)


def test_frames_are_kept_until_all_of_them_is_accepted() -> None:
    sent = Sent()
    for index in range(6):
        sent.add("m.1", index)
    sent.outbox.flush()
    sent.add("m.1", 6)
    assert sent.outbox.unaccepted() == [("m.1", 0, 7)]
    assert len(sent.outbox.frames()) == 1
    sent.outbox.accept("m.2", 0, 9)
    sent.outbox.accept("m.1", 4, 9)
    sent.outbox.accept("m.1", 0, 2)
    assert len(sent.outbox.frames()) == 1
    sent.outbox.accept("m.1", 2, 2)
    assert sent.outbox.frames() == []


def test_a_kept_frame_is_done_once_its_parts_cover_it() -> None:
    chance = random.Random(5)
    for _ in range(200):
        kept = Kept("m", 10, 20, b"")
        left = set(range(10, 30))
        while left:
            first = chance.randrange(5, 32)
            end = first + chance.randrange(1, 12)
            left -= set(range(first, end))
            assert kept.accept(first, end) is (not left)
