"""Requests are checked before anything is done."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer_worker.keeper.requests import Requests

SPAWN = {"op": "spawn", "id": "a", "argv": ["true"], "env": {}, "cwd": "/", "exit": "/exit"}


class Recorder:
    """Stands in for groups and agent, and notes what reaches them."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def spawn(self, *, id: str, program: Any, exit_path: str, reply: Any) -> None:
        self.calls.append(("spawn", (id, program.argv, program.env, program.cwd, program.stdout, exit_path)))
        reply({"ok": True})

    def send(self, id: str, number: int) -> dict[str, Any]:
        self.calls.append(("signal", (id, number)))
        return {"ok": True}

    def kill(self, id: str, reply: Any) -> None:
        self.calls.append(("kill", id))
        reply({"ok": True})

    def announce(self, code: int) -> None:
        self.calls.append(("leaving", code))


def ask(request: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """The one reply, and what was done."""
    recorder, replies = Recorder(), []
    Requests(recorder, recorder, "marker").handle(request, replies.append)  # type: ignore[arg-type]
    (reply,) = replies
    return reply, recorder.calls


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"op": None}, "unknown operation None"),
        ({"op": ["spawn"]}, "unknown operation"),
        ({"op": "dance"}, "there are spawn, run, look, keep, drop, signal, kill, list, forget, leaving, say, ping"),
        ({"id": "a/b"}, "id 'a/b'"),
        ({"id": None}, "id None"),
        ({"argv": "true"}, "argv"),
        ({"argv": []}, "argv"),
        ({"argv": [""]}, "argv"),
        ({"argv": ["true", 1]}, "argv"),
        ({"argv": ["true", "a\0b"]}, "argv"),
        ({"argv": ["true", "\ud800"]}, "argv"),
        ({"env": None}, "env is not an object"),
        ({"env": {"A": 1}}, "env: 'A'"),
        ({"env": {"A=B": "1"}}, "env: 'A=B'"),
        ({"env": {"": "1"}}, "env: ''"),
        ({"cwd": "relative"}, "cwd 'relative' is not an absolute path"),
        ({"exit": None}, "exit None"),
        ({"stdout": "relative"}, "stdout 'relative'"),
        ({"op": "signal", "signal": "INT"}, "signal 'INT'"),
        ({"op": "signal", "signal": 1000}, "signal 1000"),
        ({"op": "leaving", "code": None}, "code None is not an exit code"),
        ({"op": "say", "text": None}, "text is not a string"),
    ],
)
def test_a_wrong_request_is_named_and_nothing_is_done(change: dict[str, Any], named: str) -> None:
    reply, calls = ask({**SPAWN, **change})
    assert reply["ok"] is False
    assert named in reply["error"]
    assert calls == []


def test_right_requests_arrive() -> None:
    whole = {**SPAWN, "env": {"A": "b"}, "stdout": "/out", "stderr": None}
    assert ask(whole)[1] == [("spawn", ("a", ["true"], {"A": "b"}, "/", "/out", "/exit"))]
    assert ask({"op": "signal", "id": "a", "signal": 2})[1] == [("signal", ("a", 2))]
    assert ask({"op": "kill", "id": "a"})[1] == [("kill", "a")]
    assert ask({"op": "leaving", "code": 77})[1] == [("leaving", 77)]
    assert ask({"op": "ping"})[0]["containment"] == "marker"


def test_what_the_agent_says_is_one_line_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    replies: list[dict[str, Any]] = []
    text = "control plane out of\nreach\x1b[2J"
    Requests(recorder, recorder, "marker").handle({"op": "say", "text": text}, replies.append)  # type: ignore[arg-type]
    assert capfd.readouterr().err == "gpulayer: control plane out of reach [2J\n"
    assert replies == []
