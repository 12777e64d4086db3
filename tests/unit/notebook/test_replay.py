"""Replaying a remote kernel's messages."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gpulayer.notebook.replay import Replay
from gpulayer.protocol.records import Kind, encode_json, encode_kernel


class Shell:
    """A kernel's shell, as far as a replay needs one; what is shown is kept in `shown`, in order."""

    def __init__(self, capture: pytest.CaptureFixture[str]):
        self.shown: list[tuple[str, Any]] = []
        self._capture = capture
        self.display_pub = SimpleNamespace(publish=self._publish, clear_output=self._clear)
        self.displayhook = SimpleNamespace(
            prompt_count=7,
            session=SimpleNamespace(send=self._send),
            pub_socket=None,
            parent_header={"msg_id": "m"},
            topic=b"execute_result",
        )

    def text(self) -> None:
        """Take note of what was printed so far."""
        out, err = self._capture.readouterr()
        self.shown += [(name, text) for name, text in (("stdout", out), ("stderr", err)) if text]

    def _publish(self, data: Any, metadata: Any, *, transient: Any, update: bool) -> None:
        self.text()
        self.shown.append(("update" if update else "display", (data, metadata, transient)))

    def _clear(self, *, wait: bool) -> None:
        self.text()
        self.shown.append(("clear", wait))

    def _send(self, socket: Any, kind: str, content: Any, *, parent: Any, ident: Any) -> None:
        self.text()
        self.shown.append((kind, content))


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def message(kind: str, **content: Any) -> bytes:
    return encode_kernel([json.dumps(part).encode() for part in ({"msg_type": kind}, {}, {}, content)])


def stream(text: str, name: str = "stdout") -> bytes:
    return message("stream", name=name, text=text)


def replayed(shell: Shell, *records: bytes, limit: int = 1_000_000) -> Replay:
    replay = Replay(shell, "job", limit)
    for record in records:
        replay.feed(record)
    replay.finish()
    shell.text()
    return replay


def test_all_kinds_come_in_order(shell: Shell) -> None:
    replayed(
        shell,
        message("status", execution_state="busy"),
        message("execute_input", code="x"),
        stream("a"),
        message("display_data", data={"text/html": "<b>"}, metadata={"m": 1}, transient={"display_id": "d"}),
        stream("b"),
        message("update_display_data", data={"text/html": "<i>"}, metadata={}, transient={"display_id": "d"}),
        message("clear_output", wait=True),
        message("execute_result", data={"text/plain": "2"}, metadata={}, execution_count=99),
        encode_json(Kind.REPLY, {"status": "ok"}),
        message("status", execution_state="idle"),
    )
    assert shell.shown == [
        ("stdout", "a"),
        ("display", ({"text/html": "<b>"}, {"m": 1}, {"display_id": "job-d"})),
        ("stdout", "b"),
        ("update", ({"text/html": "<i>"}, {}, {"display_id": "job-d"})),
        ("clear", True),
        ("execute_result", {"data": {"text/plain": "2"}, "metadata": {}, "execution_count": 7}),
    ]


def test_the_streams_keep_their_order(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local kernel's streams hold text back, each for itself: one is flushed before the other is written to."""
    calls: list[tuple[str, ...]] = []
    for name in ("stdout", "stderr"):
        fake = SimpleNamespace(
            write=lambda text, name=name: calls.append((name, text)), flush=lambda name=name: calls.append((name,))
        )
        monkeypatch.setattr(f"sys.{name}", fake)
    replay = Replay(shell, "job", 100)
    for record in (stream("1"), stream("2"), stream("3", "stderr"), stream("4")):
        replay.feed(record)
    assert calls == [
        ("stdout", "1"), ("stdout", "2"), ("stdout",), ("stderr", "3"), ("stderr",), ("stdout", "4"),
    ]  # fmt: skip
    monkeypatch.undo()


def cleared(shell: Shell, *records: bytes) -> list[str]:
    """What is shown, in order, and when the replay says that all was cleared."""

    def on_clear() -> None:
        shell.text()
        shell.shown.append(("cleared", None))

    replay = Replay(shell, "job", 1000, on_clear=on_clear)
    for record in records:
        replay.feed(record)
    replay.finish()
    shell.text()
    return [kind for kind, _ in shell.shown]


def test_what_stands_above_the_output_is_told_when_that_was_cleared(shell: Shell) -> None:
    assert cleared(shell, stream("a"), message("clear_output"), stream("b")) == ["stdout", "clear", "cleared", "stdout"]


@pytest.mark.parametrize(
    ("kind", "record"),
    [
        ("stdout", stream("b")),
        ("display", message("display_data", data={"text/plain": "d"})),
        ("execute_result", message("execute_result", data={"text/plain": "d"})),
        ("error", message("error", ename="E", evalue="", traceback=[]) + stream("on it goes")),
    ],
)
def test_a_clear_that_waits_clears_with_the_next_output(shell: Shell, kind: str, record: bytes) -> None:
    update = message("update_display_data", data={"text/plain": "u"}, transient={"display_id": "d"})
    shown = cleared(shell, stream("a"), message("clear_output", wait=True), update, record, stream("c"))
    assert shown[:5] == ["stdout", "clear", "update", "cleared", kind]
    assert shown.count("cleared") == 1


def test_a_clear_that_waits_for_ever_clears_nothing(shell: Shell) -> None:
    assert cleared(shell, stream("a"), message("clear_output", wait=True)) == ["stdout", "clear"]


@pytest.mark.parametrize("step", [1, 7, 10_000])
def test_however_the_bytes_come_the_output_is_the_same(shell: Shell, step: int) -> None:
    data = stream("héllo\n") + stream("wörld\n") + message("error", ename="E", evalue="v", traceback=["t"])
    replay = replayed(shell, *[data[at : at + step] for at in range(0, len(data), step)])
    assert "".join(text for _, text in shell.shown) == "héllo\nwörld\n"
    assert replay.error is not None
    assert (type(replay.error).__name__, str(replay.error), replay.error.traceback) == ("E", "v", ["t"])


def test_the_end_is_noticed(shell: Shell) -> None:
    assert replayed(shell, message("status", execution_state="idle")).idle
    assert not replayed(shell, message("status", execution_state="busy")).idle


def test_what_is_not_known_is_passed_over(shell: Shell) -> None:
    replayed(shell, message("comm_open", comm_id="x"), message("debug_event"), stream("on"))
    assert shell.shown == [("stdout", "on")]


def test_where_the_stream_was_cut_it_is_said(shell: Shell) -> None:
    replayed(shell, stream("a"), encode_json(Kind.MARK, {"mark": "truncated", "why": "the machine is lost"}))
    assert shell.shown == [("stdout", "a"), ("stderr", "\n[output truncated here: the machine is lost]\n")]


def test_another_attempt_begins_anew(shell: Shell) -> None:
    replay = Replay(shell, "job", 100)
    first = stream("first\n") + message("error", ename="E", evalue="", traceback=[])
    replay.feed(first + stream("never whole")[:9])
    replay.restart()
    replay.feed(stream("second\n"))
    replay.finish()
    shell.text()
    assert [text for _, text in shell.shown] == ["first\nsecond\n"]
    assert replay.error is None


# ---------------------------------------------------------------- too much text


def test_of_too_much_head_and_tail_are_shown_with_a_note_between(shell: Shell) -> None:
    replayed(shell, *[stream(f"{n:04d}\n") for n in range(1000)], limit=100)
    text = "".join(text for _, text in shell.shown)
    assert text.startswith("0000\n0001\n")
    assert text.endswith("0998\n0999\n")
    assert "\n… 5 kB left out here: the whole is in job job (%gpulayer attach job --max-output 1GB) …\n" in text
    assert len(text) < 300


def test_what_just_fits_is_shown_whole(shell: Shell) -> None:
    replayed(shell, stream("a" * 60), stream("b" * 40), limit=100)
    assert "".join(text for _, text in shell.shown) == "a" * 60 + "b" * 40


def test_one_text_larger_than_all_is_cut_in_its_middle(shell: Shell) -> None:
    replayed(shell, stream("a" * 50 + "x" * 1000 + "b" * 50), limit=100)
    text = "".join(text for _, text in shell.shown)
    assert (text[:50], text[-50:]) == ("a" * 50, "b" * 50)
    assert "xx" not in text
    assert "1 kB left out" in text


def test_the_tail_keeps_its_streams(shell: Shell) -> None:
    replayed(shell, stream("x" * 1000), stream("out"), stream("err", "stderr"), limit=20)
    assert shell.shown[-1] == ("stderr", "err")
    assert shell.shown[0][1].endswith("out")


def test_the_note_comes_once(shell: Shell) -> None:
    replay = replayed(shell, stream("x" * 1000), limit=20)
    replay.finish()
    shell.text()
    assert "".join(text for _, text in shell.shown).count("left out") == 1


def test_displays_are_never_left_out(shell: Shell) -> None:
    replayed(shell, stream("x" * 1000), message("display_data", data={"text/plain": "d"}), limit=20)
    assert [kind for kind, _ in shell.shown].count("display") == 1


def test_a_limit_of_nothing_shows_no_text(shell: Shell) -> None:
    replayed(shell, stream("secret"), limit=0)
    assert "secret" not in "".join(text for _, text in shell.shown)


# ---------------------------------------------------------------- without a front end


def test_a_terminals_shell_prints_results(capsys: pytest.CaptureFixture[str]) -> None:
    shell = SimpleNamespace(displayhook=SimpleNamespace(prompt_count=3))
    replay = Replay(shell, "job", 100)
    replay.feed(message("execute_result", data={"text/plain": "42"}))
    replay.finish()
    assert capsys.readouterr().out == "Out[3]: 42\n"
