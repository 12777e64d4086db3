"""A job's output as events of JSON: what a browser follows."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterable
from typing import Any

import msgspec
from tornado import websocket

from gpulayer.protocol.records import Kind, Splitter, Texts, decode_call, decode_json, decode_kernel, decode_text
from gpulayer.protocol.types import FRAME_DATA_BYTES, JobView
from gpulayer_server.http.base import Socket
from gpulayer_server.shell import log

_NO_SUCH_JOB = 4404
_BAD_QUERY = 4400
_OF_CALLS = {Kind.CALL_STDOUT: Kind.STDOUT, Kind.CALL_STDERR: Kind.STDERR, Kind.CALL_ITEM: Kind.CALL_ITEM}


class EventsSocket(Socket):
    """GET /v1/jobs/ID/events?attempt=A&after=SEQ&index=N, a websocket; without an index it is the first task's output.

    `job` first and at each change, `attempt` before its first event, `events` in order from record SEQ + 1 of attempt A
    on, or from the first where another attempt runs by now. The next frame goes when the last one was taken.
    """

    def open(self, name: str) -> None:  # type: ignore[override]
        """Send what there is, then follow until the job is over."""
        super().open()
        after = self.get_query_argument("after", "-1")
        if not after.removeprefix("-").isdecimal():
            self.close(_BAD_QUERY, "after must be a whole number")
            return
        index = self.get_query_argument("index", "")
        if index and not index.isdecimal():
            self.close(_BAD_QUERY, "index must be a whole number")
            return
        self._name, self._after, self._index = name, int(after), int(index) if index else None
        self._news = asyncio.Event()
        self._view: JobView | None = None  # the newest, not yet told
        self._attempt: str | None = None
        self._offset = 0
        self._splitter, self._texts = Splitter(), Texts()
        self.shell.clients.add(self)
        self.shell.after_commits(self._start)

    def _start(self) -> None:
        if self not in self.shell.clients:
            return  # it left meanwhile
        self._view = self.shell.view(self._name, self._index)
        if self._view is None:
            self.close(_NO_SUCH_JOB, "no such job")
            return
        self._known = self.get_query_argument("attempt", self._attempt_of(self._view) or "")
        self.shell.follow(self._name, self, self._index)
        self._task = asyncio.ensure_future(self._send_all())

    def update(self, view: JobView) -> None:
        """The job is another now."""
        self._view = view
        self._news.set()

    def wake(self) -> None:
        """Its stream grew."""
        self._news.set()

    async def _send_all(self) -> None:
        """A terminal job comes after its last event."""
        over = False
        try:
            while not over:
                self._news.clear()
                view, self._view = self._view, None
                over = view is not None and view.terminal
                if view is not None and not over:
                    await self._say(type="job", job=view)
                attempt = self._attempt_of(view) if view is not None else None
                if attempt is not None and attempt != self._attempt:
                    await self._begin(attempt, self._after if attempt == self._known else -1)
                await self._send_events()
                if over:
                    await self._say(type="job", job=view)
                else:
                    await self._news.wait()
        except websocket.WebSocketClosedError:
            return  # it asks again, from where it was
        except Exception:  # noqa: BLE001 logged; the page connects again
            log.exception("the events of job %s can't be told", self._name)
            self.close(1011, "the job's output can't be read now")
            return
        self.close(1000, "the job is over")

    def _attempt_of(self, view: JobView) -> str | None:
        """Whose output it is: of a job with many tasks, not always that of the task which it shows."""
        return self.shell.first_attempt(self._name) if view.tasks else view.attempt

    async def _begin(self, attempt: str, after: int) -> None:
        self._attempt = attempt
        seq = max(0, after + 1)
        self._offset = self.shell.streams.offset_of(attempt, seq) if seq else 0
        self._splitter, self._texts = Splitter(seq), Texts()
        await self._say(type="attempt", attempt=attempt)

    async def _send_events(self) -> None:
        streams = self.shell.streams
        attempt = self._attempt
        while attempt is not None and streams.visible(attempt) > self._offset:
            data = streams.read(attempt, self._offset, FRAME_DATA_BYTES)
            self._offset += len(data)
            found = joined(as_event(seq, kind, body, self._texts) for seq, kind, body in self._splitter.feed(data))
            if found:
                await self._say(type="events", events=found)

    async def _say(self, **message: Any) -> None:
        await self.write_message(as_json(message))

    async def on_message(self, message: str | bytes) -> None:
        """Nothing is expected from this side."""

    def on_close(self) -> None:
        """Follow no more."""
        self.shell.clients.discard(self)
        task = getattr(self, "_task", None)
        if task is not None:
            self.shell.unfollow(self._name, self)
            task.cancel()


def as_json(message: dict[str, Any]) -> str:
    """A message as text that every JSON reader takes: no NaN; a half of a surrogate pair stays one."""
    try:
        return msgspec.json.encode(message).decode()
    except UnicodeEncodeError:
        plain = json.dumps(msgspec.to_builtins(message))
        return json.dumps(json.loads(plain, parse_constant=lambda name: None))


def as_event(seq: int, kind: int, body: memoryview, texts: Texts | None = None) -> dict[str, Any]:
    """A record as an event; `msg_type` names a kernel's message, for other records it is their kind.

    `texts` decodes what a command wrote: one for all records of a stream.
    """
    if kind == Kind.TEXT:
        fd, text = decode_text(body)
        content = {"name": "stderr" if fd == 2 else "stdout", "text": text.decode(errors="replace")}
        return {"seq": seq, "kind": "text", "msg_type": "stream", "content": content}
    if kind in (Kind.STDOUT, Kind.STDERR):
        name, text = (texts or Texts()).take(Kind(kind), body)
        return {"seq": seq, "kind": "text", "msg_type": "stream", "content": {"name": name, "text": text}}
    if kind in _OF_CALLS:
        return _of_call(seq, Kind(kind), body, texts or Texts())
    if kind != Kind.KERNEL:
        name = Kind(kind).name.lower()
        return {"seq": seq, "kind": name, "msg_type": name, "content": decode_json(body)}
    header, _, metadata, content, *buffers = decode_kernel(body)
    event = {"seq": seq, "kind": "kernel", "msg_type": json.loads(header)["msg_type"], "content": json.loads(content)}
    if metadata != b"{}":
        event["metadata"] = json.loads(metadata)
    if buffers:
        event["buffers"] = [base64.b64encode(buffer).decode() for buffer in buffers]
    return event


def _of_call(seq: int, kind: Kind, body: memoryview, texts: Texts) -> dict[str, Any]:
    """What a call wrote is text as that of any program; of an item only is told that it is there."""
    name, index, number, data = decode_call(body)
    if kind is Kind.CALL_ITEM:
        content = {"map": name, "index": index, "number": number, "size_bytes": len(data)}
        return {"seq": seq, "kind": "call_item", "msg_type": "call_item", "content": content}
    stream, text = texts.take(_OF_CALLS[kind], data)
    return {"seq": seq, "kind": "text", "msg_type": "stream", "content": {"name": stream, "text": text}}


def joined(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events, neighbouring texts of one stream as one, which bears the last one's number."""
    result: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events:
        last = result[-1] if result else None
        if (
            last is not None
            and event["msg_type"] == last["msg_type"] == "stream"
            and event["content"]["name"] == last["content"]["name"]
        ):
            texts.append(event["content"]["text"])
            last["seq"] = event["seq"]
            continue
        _close(result, texts)
        texts = [event["content"]["text"]] if event["msg_type"] == "stream" else []
        result.append(event)
    _close(result, texts)
    return result


def _close(result: list[dict[str, Any]], texts: list[str]) -> None:
    if len(texts) > 1:
        result[-1]["content"] = {**result[-1]["content"], "text": "".join(texts)}
