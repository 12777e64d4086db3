"""What people see while calls go on."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from gpulayer.functions import showing
from gpulayer.functions.showing import Show
from gpulayer.protocol.calls import MapView
from gpulayer.protocol.records import Kind
from gpulayer.protocol.types import Reason, Requirements, State


class Clock:
    """A clock that goes when a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(showing.time, "monotonic", clock)
    monkeypatch.setattr(showing, "_width", lambda: 200)
    monkeypatch.setenv("TERM", "xterm")
    return clock


def shown(**options: Any) -> Show:
    return Show("sweep", Requirements(), **{"single": False, "progress": None, **options})


def view(state: State = State.RUNNING, **more: Any) -> MapView:
    return MapView(id="k.1", job="k", state=state, **more)


WAITS: dict[str, Any] = {"reasons": (Reason(worker="box", code="slots", text="all 2 slots busy", temporary=True),)}


def test_what_is_over_at_once_shows_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    show = shown()
    show.state(view(done=3))
    clock.now_s += 0.1
    show.tick()
    show.finish()
    assert screen.getvalue() == ""


def test_in_a_terminal_a_map_has_a_bar_and_leaves_a_line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    show = shown()
    show.state(view(total=96, done=31, running=4, failed=1, workers=("a", "b")))
    clock.now_s += 10.0
    show.tick()
    bar = "▓▓▓▓▓░░░░░░░░░░░"
    words = f"● sweep · {bar} 31 of 96 · 1 failed · 4 running on 2 machines · 10.0 s · about 20 s left · map k.1"
    assert screen.getvalue().startswith(f"\r\x1b[2K{words}")
    show.text(0, Kind.CALL_STDOUT, b"")
    assert screen.getvalue().endswith("\r\x1b[2K")
    clock.now_s += 10.0
    show.tick()
    assert "about 10 s left" in screen.getvalue()  # the time runs down until another call is done
    show.state(view(total=96, done=32, left_at=1.0))
    clock.now_s += 1.0
    show.tick()
    assert "32 of 96 · who began it is away, and has more to send · 21.0 s · " in screen.getvalue()
    clock.now_s -= 1.0
    show.state(view(State.SUCCEEDED, total=96, done=96))
    show.finish()
    assert screen.getvalue().endswith("\r\x1b[2K✓ sweep · 96 calls in 20.0 s · map k.1\n")
    assert not shown(progress=False)._line


def test_a_narrow_terminal_has_what_matters() -> None:
    bar = "▓▓▓▓▓░░░░░░░░░░░"
    counts = "31 of 96 · 1 failed · 4 running on 2 machines"
    all_of_it = f"● sweep_of_rates · {bar} {counts} · 10.0 s · about 20 s left · map k.1"
    assert [showing.fitted(all_of_it, width) for width in (120, 110, 100, 80, 70, 55, 45)] == [
        all_of_it,
        f"● sweep_of_rates · {bar} {counts} · 10.0 s · about 20 s left",
        f"● sweep_of_rates · {bar} 31 of 96 · 1 failed · 10.0 s · about 20 s left",
        f"● sweep_of_rates · {bar} 31 of 96 · 1 failed · about 20 s left",
        "● sweep_of_rates · 31 of 96 · 1 failed · about 20 s left",
        "● sweep…f_rates · 31 of 96 · 1 failed · about 20 s left",
        "● swee…rates · 31 of 96 · 1 failed",
    ]
    assert showing.fitted("○ waiting · box: all 2 slots busy · map k.1", 40) == "○ waiting · box: all 2 slots busy"


@pytest.mark.parametrize(
    ("left", "more", "line"),
    [
        ("cancelled", {}, "■ sweep · cancelled after 1 call · 2.0 s · map k.1"),
        ("goes on", {}, "● sweep · goes on · map k.1"),
        ("", {"state": State.FAILED, "failed": 1}, "✗ sweep · failed after 1 call · 2.0 s · map k.1"),
        ("", {"state": State.FAILED, "failed_index": 0}, "✗ sweep · failed in call 0 · 2.0 s · map k.1"),
        ("", {"state": State.REJECTED}, "✗ sweep · no eligible worker · map k.1"),
    ],
)
def test_the_last_line_of_a_map_that_did_not_end_well(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, left: str, more: dict[str, Any], line: str
) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    show = shown()
    show.state(view(**{"total": 9, "done": 1, **more}))
    clock.now_s += 2.0
    show.tick()
    show.finish(left)
    assert screen.getvalue().endswith(f"{line}\n")


def test_a_wait_says_why(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", screen := Screen())
    show = shown(single=True)
    show.state(view(State.QUEUED, single=True, **WAITS))
    clock.now_s += 1.0
    show.tick()
    assert "○ waiting · box: all 2 slots busy · call k.1" in screen.getvalue()
    show.state(view(State.RUNNING, single=True))
    clock.now_s += 1.0
    show.tick()
    show.finish()
    assert screen.getvalue().endswith("\r\x1b[2K")


def test_where_lines_stay_only_long_waits_are_told_each_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", paper := io.StringIO())
    show = shown(single=True)
    show.state(view(State.QUEUED, single=True, **WAITS))
    for _ in range(8):
        clock.now_s += 1.0
        show.tick()
    show.state(view(done=1))
    show.finish()
    assert paper.getvalue() == "○ waiting · box: all 2 slots busy · call k.1\n"


def test_where_lines_stay_a_map_tells_how_far_it_is_if_it_is_to(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", paper := io.StringIO())
    show = shown(progress=True)
    for done in range(1, 5):
        show.state(view(total=5, done=done))
        clock.now_s += 20.0
        show.tick()
    show.state(view(State.SUCCEEDED, total=5, done=5))
    show.finish()
    told = paper.getvalue().splitlines()
    assert [line.split(" · ")[1].partition(" ")[2] for line in told[:-1]] == ["2 of 5", "4 of 5"]
    assert told[-1] == "✓ sweep · 5 calls in 1 min 20 s · map k.1"


def test_a_letter_in_two_parts_and_the_order_of_streams(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show = shown(single=True)
    show.text(0, Kind.CALL_STDOUT, "ä".encode()[:1])
    show.text(0, Kind.CALL_STDERR, b"e")
    show.text(0, Kind.CALL_STDOUT, "ä".encode()[1:])
    show.ended(0, 1)
    show.finish()
    assert capsys.readouterr() == ("ä", "e")
    assert show.written == "eä"
    monkeypatch.setattr(showing, "_KEPT_LETTERS", 3)
    for part in (b"12", b"34", b"56"):
        show.text(0, Kind.CALL_STDOUT, part)
    assert show.written == "56"
