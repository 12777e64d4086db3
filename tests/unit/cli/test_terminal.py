"""What stands on a screen, and what in a file."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gpulayer.cli.terminal import Terminal
from gpulayer.client.transfer import HowFar, bar


class Err(io.TextIOWrapper):
    """Standard error, a terminal's or not."""

    def __init__(self, *, live: bool):
        self.raw_bytes = io.BytesIO()
        super().__init__(self.raw_bytes, encoding="utf-8", write_through=True)
        self._live = live

    def isatty(self) -> bool:
        return self._live

    @property
    def text(self) -> str:
        return self.raw_bytes.getvalue().decode()


@pytest.fixture
def out() -> io.BytesIO:
    return io.BytesIO()


def test_in_a_file_each_line_stands_once(out: io.BytesIO) -> None:
    err = Err(live=False)
    with Terminal(out=out, err=err) as terminal:
        terminal.hint("◐ looking")
        for line in ("○ waiting", "○ waiting", "◐ starting"):
            terminal.status(line)
        for count in (1, 2, 3):
            terminal.status(HowFar.of("◐ sending", count, 3, bar))
        terminal.say("✓ source", "0.2 s")
        terminal.write("stdout", b"a\n")
        terminal.write("stderr", b"b\n")
    lines = err.text.splitlines()
    assert lines[:3] == ["○ waiting", "◐ starting", "◐ sending"]
    assert (lines[3].split(), lines[4]) == (["✓", "source", "0.2", "s"], "b")
    assert "\x1b" not in err.text
    assert out.getvalue() == b"a\n"


def test_on_a_screen_a_line_is_updated_in_place(out: io.BytesIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    err = Err(live=True)
    with Terminal(out=out, err=err) as terminal:
        terminal.status("○ waiting")
        terminal.status("◐ starting")
        assert "\n" not in err.text
        terminal.write("stdout", b"a\n")
        assert err.text.endswith("\r\x1b[2K")
        terminal.say("✓ done")
    assert err.text.endswith("✓\x1b[0m done\n")


def test_no_colour_where_it_is_not_wanted(out: io.BytesIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    err = Err(live=True)
    with Terminal(out=out, err=err) as terminal:
        terminal.say("✓ done")
    assert err.text == "✓ done\n"


def test_a_bar_comes_and_goes(out: io.BytesIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    err = Err(live=True)
    with Terminal(out=out, err=err) as terminal:
        terminal.status(HowFar.of("◐ sending 2 files", 500_000, 1_000_000, bar))
        terminal.status(HowFar.of("◐ sending 2 files", 1_000_000, 1_000_000, bar))
        terminal.say("✓ source")
    assert "sending 2 files" in err.text
    assert "1.0/1.0 MB" in err.text


def test_quiet_leaves_ours_out_and_nothing_else(out: io.BytesIO) -> None:
    err = Err(live=False)
    with Terminal(quiet=True, out=out, err=err) as terminal:
        terminal.status("○ waiting")
        terminal.say("✓ done")
        terminal.write("stderr", b"the program's\n")
        terminal.warn("gpulayer: what has to be known")
    assert err.text == "the program's\ngpulayer: what has to be known\n"


def test_what_others_wrote_gives_the_terminal_no_commands(out: io.BytesIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    err = Err(live=True)
    with Terminal(out=out, err=err) as terminal:
        terminal.say("✓ 1 file: a\x1b]0;title\x07\nb\u202e.csv 漢字\u3000\udcff")
        terminal.warn("\x9b2J")
        terminal.status("◐ \x1b[2J")
    assert err.text.split("\r")[0] == "✓ 1 file: a\\x1b]0;title\\x07\\nb\\u202e.csv 漢字\u3000\\udcff\n\\x9b2J\n"
    assert "\x1b[2J" not in err.text


@pytest.mark.parametrize("live", [True, False])
def test_our_line_begins_anew_behind_half_a_line_of_the_program(live: bool, out: io.BytesIO) -> None:
    err = Err(live=live)
    with Terminal(out=out, err=err) as terminal:
        terminal.write("stderr", b"half")
        terminal.write("stdout", b"\n")  # goes elsewhere: it ends no line here
        terminal.say("done")
        terminal.write("stderr", b"half again")
    assert err.text == "half\ndone\nhalf again" + ("\n" if live else "")


def test_where_both_streams_end_in_one_place_stdout_counts_too(tmp_path: Path) -> None:
    with (tmp_path / "both").open("w+b") as file, open(file.fileno(), "w", closefd=False) as err:
        with Terminal(out=file, err=err) as terminal:
            terminal.write("stdout", b"half")
            terminal.say("done")
        file.seek(0)
        assert file.read() == b"half\ndone\n"
