"""The one line under a cell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gpulayer.notebook.status import StatusLine
from gpulayer.protocol.types import JobView, State


class FrontEnd:
    """A kernel's shell: keeps what is displayed."""

    def __init__(self) -> None:
        self.kernel = object()
        self.shown: list[tuple[str, str, bool]] = []
        self.display_pub = SimpleNamespace(publish=self._publish)

    def _publish(self, data: Any, metadata: Any, *, transient: Any, update: bool) -> None:
        self.shown.append((transient["display_id"], data["text/plain"], update))


def job(state: State, **facts: Any) -> JobView:
    return JobView(id="k3f9", state=state, worker="box", **facts)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("gpulayer.notebook.status.time.time", lambda: clock.now)
    monkeypatch.setattr("gpulayer.notebook.status.time.monotonic", lambda: clock.now)
    return clock


def test_it_is_one_display_updated_in_place(clock: SimpleNamespace) -> None:
    shell = FrontEnd()
    line = StatusLine(shell)
    line.show(job(State.ASSIGNED))
    line.show(job(State.RUNNING, started_at=1000.0))
    line.note("something else")
    assert len({display for display, _, _ in shell.shown}) == 1
    assert [update for _, _, update in shell.shown] == [False, True, True]


def test_each_cell_has_its_own(clock: SimpleNamespace) -> None:
    shell = FrontEnd()
    lines = [StatusLine(shell), StatusLine(shell)]
    for line in lines:
        line.show(job(State.ASSIGNED))
        clock.now += 1
    assert len({display for display, _, _ in shell.shown}) == 2


def test_what_is_shown_already_is_not_shown_again(clock: SimpleNamespace) -> None:
    shell = FrontEnd()
    line = StatusLine(shell)
    line.show(job(State.ASSIGNED))
    line.show(job(State.ASSIGNED))
    assert len(shell.shown) == 1


def test_while_it_runs_the_time_goes_on_once_a_second(clock: SimpleNamespace) -> None:
    shell = FrontEnd()
    line = StatusLine(shell)
    line.tick()  # nothing to show yet
    line.show(job(State.RUNNING, started_at=1000.0))
    for _ in range(30):
        clock.now += 0.1
        line.tick()
    assert 3 <= len(shell.shown) <= 4
    line.show(job(State.SUCCEEDED, started_at=1000.0, ended_at=1003.0))
    shown = len(shell.shown)
    clock.now += 10
    line.tick()  # it is over
    assert len(shell.shown) == shown


def test_quiet_it_shows_nothing(clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    for shell in (FrontEnd(), SimpleNamespace()):
        line = StatusLine(shell, quiet=True)
        line.note("◐ sending 3 of 214 files")
        line.show(job(State.SUCCEEDED))
        line.again()
        assert getattr(shell, "shown", []) == []
    assert capsys.readouterr() == ("", "")


def test_after_the_output_was_cleared_it_comes_again_as_the_same_display(clock: SimpleNamespace) -> None:
    shell = FrontEnd()
    line = StatusLine(shell)
    line.again()  # there was nothing to clear
    line.show(job(State.RUNNING, started_at=1000.0))
    line.again()
    line.show(job(State.SUCCEEDED, started_at=1000.0, ended_at=1003.0))
    assert [update for _, _, update in shell.shown] == [False, False, True]
    assert shell.shown[0][:2] == shell.shown[1][:2]
    assert len({display for display, _, _ in shell.shown}) == 1


def test_while_it_starts_it_tells_what_was_sent(clock: SimpleNamespace) -> None:
    shell = FrontEnd()
    line = StatusLine(shell)
    line.sent = "sent 3 of 214 files, 41 kB"
    line.show(job(State.ASSIGNED))
    assert shell.shown[-1][1] == "◐ starting on box · sent 3 of 214 files, 41 kB · job k3f9"


def test_without_a_front_end_it_goes_to_stderr_when_it_matters(
    clock: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    line = StatusLine(SimpleNamespace())
    line.show(job(State.ASSIGNED))
    line.show(job(State.RUNNING, started_at=1000.0))
    clock.now += 5
    line.tick()
    line.show(job(State.SUCCEEDED, started_at=1000.0, ended_at=1005.0))
    out, err = capsys.readouterr()
    assert out == ""
    assert [text[0] for text in err.splitlines()] == ["◐", "✓"]
