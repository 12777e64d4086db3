"""Writes what a kernel publishes into the spool of the attempt that runs, instead of sending it."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

from .request import Request

DELIMITER = b"<IDS|MSG>"
SYNC = b"gpulayer-sync"  # the topic of our own message, see children.py
HELD_BYTES = 256 * 1024
DONE_LIMIT = 1000
JSON_PARTS = 4


class Attempt:
    """One attempt while it runs. Only the tee changes it."""

    def __init__(self, request: Request, packed_header: bytes, writer: Any) -> None:
        self.request = request
        self.packed_header = packed_header  # of the execute request, as JSON: the parent of its output
        self.writer = writer
        self.claimed = False
        self.outputs = 0


class Tee:
    """Takes the messages of the iopub channel, in the thread that publishes them, under one lock.

    Only in the kernel's own process: a forked child's messages go ipykernel's way, through a pipe to this process,
    and are taken here. What no attempt can take is kept for the next one, up to `HELD_BYTES`.
    """

    def __init__(self, session: Any, records: Any, spool: Any, reach: Callable[[str], None], interrupts: Any) -> None:
        self.lock = threading.RLock()
        self.sink: Any = None  # what holds the streams' text back; it is set before anything is published
        self.on_sync: Callable[[], None] = lambda: None
        self.attempt: Attempt | None = None
        self._session = session
        self._records = records
        self._spool = spool
        self._reach = reach
        self._interrupts = interrupts
        self._pid = os.getpid()
        self._stock_send: Any = None
        self._done: OrderedDict[str, None] = OrderedDict()
        self._used = False  # an attempt has been here: output before the first is the kernel's own start
        self._admits_status = False
        self._writing = False
        self._queue: deque[tuple[list[Any], bool]] = deque()
        self._held: list[bytes] = []  # payloads
        self._held_bytes = 0
        self._lost_records = self._lost_bytes = 0

    def attach(self, io_thread: Any) -> None:
        """Takes over the sending of ipykernel's iopub thread."""
        self._stock_send = io_thread.send_multipart
        io_thread.send_multipart = self.send_multipart

    @property
    def in_kernel(self) -> bool:
        """Whether this is the kernel's own process, and no child that it has forked."""
        return os.getpid() == self._pid

    # ------------------------------------------------------------------------------------------------ attempts

    def knows(self, attempt: str) -> bool:
        """Whether the attempt runs here or has run here."""
        return attempt in self._done or self.is_current(attempt)

    def is_current(self, attempt: str | None) -> bool:
        """Whether this is the attempt that runs."""
        current = self.attempt
        return current is not None and current.request.attempt == attempt

    def state(self) -> dict[str, Any]:
        """``{"current": id or None, "done": [ids, oldest first]}``; at most a thousand that are done."""
        current = self.attempt
        return {"current": current and current.request.attempt, "done": list(self._done)}

    def open(self, request: Request, header: dict[str, Any]) -> None:
        """Makes `request` the attempt that runs. Raises OSError or RecordError when its spool cannot be written."""
        writer = self._spool.SpoolWriter(request.spool, reserve_bytes=request.reserve_bytes)
        with self.lock, self._interrupts:
            if self.attempt is not None:
                self._abandon(self.attempt)
            self.sink.flush()
            self.attempt = Attempt(request, self._session.pack(header), writer)
            self._used = True
            held, self._held, self._held_bytes = self._held, [], 0
            for payload in held:
                writer.append((payload,))
            if self._lost_records:
                why = "printed while no cell ran, more than is kept"
                mark = {"mark": "dropped", "why": why, "records": self._lost_records, "bytes": self._lost_bytes}
                writer.append_json(self._records.Kind.MARK, mark)
                self._lost_records = self._lost_bytes = 0

    def claim(self, attempt: str) -> bool:
        """Whether the attempt is the current one, and is asked for the first time: it may run."""
        current = self.attempt
        if current is None or current.request.attempt != attempt or current.claimed:
            return False
        current.claimed = True
        return True

    def publish_busy(self, publish: Callable[[], None]) -> None:
        """Lets `publish` write the attempt's first status."""
        with self.lock:
            self._publish_status(publish)
        self._reach("kernel.started")

    def finish(self, reply: dict[str, Any], publish_idle: Callable[[], None]) -> None:
        """Ends the current attempt: the text that is left, the REPLY record, then `publish_idle` as the last one."""
        with self.lock, self._interrupts:
            if self.attempt is None:
                return
            try:
                self.sink.flush()
                self.attempt.writer.append_json(self._records.Kind.REPLY, reply)
                self._reach("kernel.last-byte")
                self._publish_status(publish_idle)
            finally:
                self._close()
        self._reach("kernel.idle-written")

    def _publish_status(self, publish: Callable[[], None]) -> None:
        self._admits_status = True
        try:
            publish()
        finally:
            self._admits_status = False

    def _abandon(self, attempt: Attempt) -> None:
        """Ends an attempt whose idle status never came: ipykernel failed in between."""
        try:
            mark = {"mark": "truncated", "why": "the kernel failed before it could end the cell"}
            attempt.writer.append_json(self._records.Kind.MARK, mark)
        finally:
            self._close()

    def _close(self) -> None:
        attempt, self.attempt = self.attempt, None
        if attempt is None:
            return
        attempt.writer.close()
        self.sink.begin()
        self._done[attempt.request.attempt] = None
        while len(self._done) > DONE_LIMIT:
            self._done.popitem(last=False)

    # ------------------------------------------------------------------------------------------------ messages

    def send_multipart(self, frames: list[Any], *args: Any, **kwargs: Any) -> None:
        """Takes a message's frames as they would go over the wire; stands in for ipykernel's iopub thread."""
        if not self.in_kernel:
            self._stock_send(frames, *args, **kwargs)
            return
        if frames[0] == SYNC:
            self.on_sync()
            return
        start = frames.index(DELIMITER)
        topic = frames[0] if start else b""
        parts = frames[start + 2 :]  # without the delimiter and the signature
        if topic.startswith(b"stream."):  # from a forked child: our own streams write theirs
            content = self._session.unpack(bytes(parts[3]))
            self.sink.write_named(content["name"], content["text"])
            return
        with self.lock, self._interrupts:
            if topic.endswith(b".status") and not self._admits_status:
                return  # of another request than the attempt's
            self.sink.flush()
            self._route(parts, is_output=not topic.endswith((b".status", b".execute_input")))

    def write_text(self, name: str, text: str) -> None:
        """Writes a stream message of `text`. The caller holds the lock, inside a section of the interrupts."""
        pack = self._session.pack
        parent = b"{}" if self.attempt is None else self.attempt.packed_header
        content = pack({"name": name, "text": text})
        self._route([pack(self._session.msg_header("stream")), parent, b"{}", content], is_output=True)

    def _route(self, parts: list[Any], is_output: bool) -> None:
        self._queue.append((parts, is_output))
        if self._writing:  # a finaliser publishes in the middle of a record: right after it
            return
        self._writing = True
        try:
            while self._queue:
                self._take(*self._queue.popleft())
        finally:
            self._writing = False

    def _take(self, parts: list[Any], is_output: bool) -> None:
        parts = [_as_utf8(part) for part in parts[:JSON_PARTS]] + [_as_bytes(part) for part in parts[JSON_PARTS:]]
        attempt = self.attempt
        try:
            payload = self._records.kernel_payload(parts)
            if attempt is None:
                if not self._is_echo(parts):
                    self._hold(payload)
                return
            attempt.writer.append(payload)
        except self._records.RecordError as error:
            self._note_dropped(str(error))
        if is_output and attempt is not None:
            attempt.outputs += 1
            if attempt.outputs == 1:
                self._reach("kernel.first-byte")
            elif attempt.outputs == 5:
                self._reach("kernel.mid-output")

    def _is_echo(self, parts: list[Any]) -> bool:
        """Whether it tells a page what it said itself: between cells nobody waits for that."""
        if self._session.unpack(parts[0])["msg_type"] != "comm_msg":
            return False
        return (self._session.unpack(parts[3]).get("data") or {}).get("method") == "echo_update"

    def _hold(self, payload: list[Any]) -> None:
        if not self._used:
            return
        size = sum(map(len, payload))
        if self._lost_records or self._held_bytes + size > HELD_BYTES:
            self._lost_records += 1
            self._lost_bytes += size
            return
        self._held.append(b"".join(payload))
        self._held_bytes += size

    def _note_dropped(self, why: str) -> None:
        if self.attempt is None:
            self._lost_records += 1
        else:
            mark = {"mark": "dropped", "why": why, "records": 1}
            self.attempt.writer.append_json(self._records.Kind.MARK, mark)


def _as_utf8(part: Any) -> bytes:
    """A JSON part as valid UTF-8: jupyter_client lets single bytes of undecodable file names through."""
    data = bytes(part)
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError:
            return data.decode(errors="replace").encode()
    return data


def _as_bytes(part: Any) -> bytes | memoryview:
    """A raw buffer as a flat view of its bytes, or as a copy where it has no such view."""
    view = memoryview(part)
    try:
        return view.cast("B")
    except TypeError:
        return view.tobytes()
