"""The text of a job so far."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from gpulayer.client.connection import Subscription
from gpulayer.client.errors import ControlPlaneError, RequestRefused
from gpulayer.notebook import joblog
from gpulayer.notebook.joblog import TextReplay, show_so_far
from gpulayer.notebook.stop import Stop
from gpulayer.protocol.messages import Chunk, Refused, ServerToClient, Update
from gpulayer.protocol.records import Kind, encode_json, encode_kernel
from gpulayer.protocol.types import JobView, Problem, State


class Plane:
    """Answers each subscription as a control plane does: a part of what is there, then the job as it is."""

    def __init__(self, data: bytes, state: State = State.RUNNING, *, attempt: str = "a", part: int = 10_000):
        self.streams = {attempt: data}
        self.view = JobView(id="k3f9", state=state, attempt=attempt, worker="box")
        self.part = part
        self.away = ""
        self.asked: list[tuple[str | None, int]] = []
        self.left = 0
        self.answer: list[ServerToClient] | None = None

    def follow(self, job: str, *, attempt: str | None, offset: int) -> Subscription:
        self.asked.append((attempt, offset))
        subscription = Subscription(1, job=job)
        subscription.attempt, subscription.offset = attempt, offset
        for message in self._answer(attempt, offset) if self.answer is None else self.answer:
            subscription.put(message)
        return subscription

    def _answer(self, attempt: str | None, offset: int) -> list[ServerToClient]:
        current = self.view.attempt or ""
        data = self.streams[current]
        at = offset if attempt == current else 0
        messages: list[ServerToClient] = []
        end = len(data) if self.view.terminal else min(len(data), at + self.part)
        while at < end:
            piece = data[at : min(end, at + self.part)]
            messages.append(Chunk(n=1, attempt=current, offset=at, data=piece))
            at += len(piece)
        return [*messages, Update(n=1, job=self.view)]

    def unfollow(self, subscription: Subscription) -> None:
        self.left += 1


def message(kind: str, **content: Any) -> bytes:
    return encode_kernel([json.dumps(part).encode() for part in ({"msg_type": kind}, {}, {}, content)])


def stream(text: str, name: str = "stdout") -> bytes:
    return message("stream", name=name, text=text)


def replay(limit: int = 1_000_000) -> TextReplay:
    return TextReplay(SimpleNamespace(displayhook=SimpleNamespace(prompt_count=1)), "k3f9", limit)


def show(plane: Any, text: TextReplay | None = None, stop: Stop | None = None) -> JobView:
    return show_so_far(plane, text or replay(), "k3f9", stop or Stop())


@pytest.mark.parametrize("part", [7, 50, 10_000])
def test_all_there_is_of_a_job_that_goes_on(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    plane = Plane(b"".join(stream(f"line {n}\n") for n in range(20)), part=part)
    assert show(plane).state is State.RUNNING
    assert capsys.readouterr().out == "".join(f"line {n}\n" for n in range(20))
    assert plane.asked[-1] == ("a", len(plane.streams["a"]))  # asked once more, and nothing came
    assert plane.left == len(plane.asked)


def test_all_of_a_job_that_has_ended_in_one_go(capsys: pytest.CaptureFixture[str]) -> None:
    plane = Plane(b"".join(stream(f"line {n}\n") for n in range(20)), State.FAILED, part=50)
    assert show(plane).state is State.FAILED
    assert capsys.readouterr().out.endswith("line 19\n")
    assert len(plane.asked) == 1


def test_a_job_that_has_said_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    text = replay()
    assert show(Plane(b""), text).state is State.RUNNING
    assert (text.letters, capsys.readouterr().out) == (0, "")


def test_everything_that_can_be_text_is_and_nothing_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    data = (
        stream("out\n")
        + stream("err\n", "stderr")
        + message("display_data", data={"text/plain": "<Figure>", "image/png": "…"}, metadata={})
        + message("display_data", data={"image/png": "…"}, metadata={})
        + message("update_display_data", data={"text/plain": "again"}, metadata={}, transient={"display_id": "d"})
        + message("clear_output", wait=False)
        + message("comm_open", comm_id="w", target_name="t", data={})
        + message("execute_result", data={"text/plain": "42"}, metadata={})
        + message("error", ename="E", evalue="v", traceback=["the", "traceback"])
        + encode_json(Kind.REPLY, {"status": "error", "ename": "E", "payload": [{"source": "page", "data": {}}]})
        + encode_json(Kind.MARK, {"mark": "truncated", "why": "the machine is lost"})
    )
    show(Plane(data, State.FAILED))
    out, err = capsys.readouterr()
    assert out == "out\n<Figure>\n42\nthe\ntraceback\n"
    assert err == "err\n\n[output truncated here: the machine is lost]\n"


def test_of_too_much_head_and_tail(capsys: pytest.CaptureFixture[str]) -> None:
    show(Plane(b"".join(stream(f"{n:04d}\n") for n in range(1000)), State.SUCCEEDED), replay(100))
    out = capsys.readouterr().out
    assert out.startswith("0000\n")
    assert out.endswith("0999\n")
    assert "left out here" in out


def test_a_job_that_moves_meanwhile_is_shown_as_it_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    plane = Plane(stream("first\n"))
    plane.streams["b"] = stream("second\n")
    ask = plane.follow

    def follow(job: str, *, attempt: str | None, offset: int) -> Subscription:
        if attempt == "a":
            plane.view = JobView(id="k3f9", state=State.RUNNING, attempt="b", worker="box")
        return ask(job, attempt=attempt, offset=offset)

    plane.follow = follow  # type: ignore[method-assign]
    show(plane)
    assert capsys.readouterr().out == "first\nsecond\n"


def test_a_refusal_is_raised() -> None:
    plane = Plane(b"")
    plane.answer = [Refused(n=1, problem=Problem(status=404, code="no_such_job", title="no job k3f9"))]
    with pytest.raises(RequestRefused, match="no job k3f9"):
        show(plane)
    assert plane.left == 1


def test_stop_ends_it() -> None:
    stop = Stop()
    stop.wanted = True
    with pytest.raises(KeyboardInterrupt):
        show(Plane(stream("text")), stop=stop)


def test_a_control_plane_that_does_not_answer_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joblog, "_LOOK_S", 0.001)
    plane = Plane(b"")
    plane.answer, plane.away = [], "Connection refused"
    with pytest.raises(ControlPlaneError, match="the control plane does not answer: Connection refused"):
        show(plane)
