"""Replaying a remote kernel's messages into the local cell, in order."""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Any

from gpulayer.client.errors import RemoteError
from gpulayer.notebook.words import size
from gpulayer.protocol.records import Kind, Splitter, decode_json, decode_kernel


def cell_number(shell: Any) -> int:
    """The number of the cell that runs, as the notebook shows it. IPython counts up before or after, by version."""
    return shell.displayhook.prompt_count


class Replay:
    """One job's stream into one cell. Bytes in; output at the local front end; the remote exception kept.

    Of more text than `max_output_bytes` the first half and the last half are shown; all of it stays in the stream.
    """

    def __init__(self, shell: Any, job: str, max_output_bytes: int):
        self._shell = shell
        self._job = job
        self._splitter = Splitter()
        self._head_left = max_output_bytes // 2
        self._tail = _Tail(max_output_bytes - max_output_bytes // 2)
        self._touched: set[str] = set()
        self.error: RemoteError | None = None
        self.reply: dict[str, Any] | None = None  # how the kernel says that the cell ended
        self.idle = False  # the cell's own end was seen

    def begin(self, job: str) -> None:
        """The job's name, once it has one."""
        self._job = job

    def restart(self) -> None:
        """A new attempt begins: its stream is a new one."""
        self._splitter = Splitter()
        self.error = self.reply = None
        self.idle = False

    def feed(self, data: bytes) -> None:
        """Replay what these bytes complete."""
        for _, kind, body in self._splitter.feed(data):
            if kind == Kind.KERNEL:
                self._kernel_message(decode_kernel(body))
            elif kind == Kind.REPLY:
                self.reply = decode_json(body)
            elif kind == Kind.MARK:
                mark = decode_json(body)
                self._text("stderr", f"\n[output truncated here: {mark.get('why', 'unknown')}]\n")

    @property
    def succeeded(self) -> bool:
        """Whether the cell's last record was seen, and its reply is well."""
        return self.idle and self.reply is not None and self.reply.get("status") == "ok"

    def flush(self) -> None:
        """Let the front end have what was written: stock ipykernel holds text for 200 ms."""
        for name in self._touched:
            getattr(sys, name).flush()
        self._touched.clear()

    def finish(self) -> None:
        """Show the tail of what was too much, and flush."""
        if self._tail.left_out:
            note = f"\n… {size(self._tail.left_out)} left out here: the whole is in job {self._job}"
            self._write("stdout", f"{note} (%gpulayer attach {self._job} --max-output 1GB) …\n")
            self._tail.left_out = 0
        for name, text in self._tail.drain():
            self._write(name, text)
        self.flush()

    # ---------------------------------------------------------------- messages

    def _kernel_message(self, parts: list[bytes]) -> None:
        kind = json.loads(parts[0]).get("msg_type", "")
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(json.loads(parts[3]))

    def _on_stream(self, content: dict[str, Any]) -> None:
        self._text("stderr" if content["name"] == "stderr" else "stdout", content["text"])

    def _on_display_data(self, content: dict[str, Any]) -> None:
        self._display(content, update=False)

    def _on_update_display_data(self, content: dict[str, Any]) -> None:
        self._display(content, update=True)

    def _on_execute_result(self, content: dict[str, Any]) -> None:
        self.flush()
        hook = self._shell.displayhook
        if hasattr(hook, "session") and hasattr(hook, "pub_socket"):
            result = {
                "data": content["data"],
                "metadata": content.get("metadata", {}),
                "execution_count": cell_number(self._shell),
            }
            topic = getattr(hook, "topic", None)
            hook.session.send(hook.pub_socket, "execute_result", result, parent=hook.parent_header, ident=topic)
        else:
            self._write("stdout", f"Out[{cell_number(self._shell)}]: {content['data'].get('text/plain', '')}\n")

    def _on_clear_output(self, content: dict[str, Any]) -> None:
        self.flush()
        self._shell.display_pub.clear_output(wait=bool(content.get("wait", False)))

    def _on_error(self, content: dict[str, Any]) -> None:
        self.error = RemoteError.named(content["ename"], content["evalue"], list(content["traceback"]))

    def _on_status(self, content: dict[str, Any]) -> None:
        self.idle = content.get("execution_state") == "idle"

    # ---------------------------------------------------------------- output

    def _display(self, content: dict[str, Any], *, update: bool) -> None:
        self.flush()
        transient = dict(content.get("transient") or {})
        if "display_id" in transient:
            # the same id in another job is another display
            transient["display_id"] = f"{self._job}-{transient['display_id']}"
        publish = self._shell.display_pub.publish
        publish(content["data"], content.get("metadata") or {}, transient=transient, update=update)

    def _text(self, name: str, text: str) -> None:
        if self._head_left > 0 and len(text) <= self._head_left:
            self._head_left -= len(text)
            self._write(name, text)
        elif self._head_left > 0:
            head, self._head_left = text[: self._head_left], 0
            self._write(name, head)
            self._tail.add(name, text[len(head) :])
        else:
            self._tail.add(name, text)

    def _write(self, name: str, text: str) -> None:
        if self._touched and name not in self._touched:
            self.flush()  # the other stream's text was first: each has a buffer of its own here
        getattr(sys, name).write(text)
        self._touched.add(name)


class _Tail:
    """The last characters of what was too much to show."""

    def __init__(self, limit: int):
        self._limit = limit
        self._pieces: deque[tuple[str, str]] = deque()
        self._held = 0
        self.left_out = 0

    def add(self, name: str, text: str) -> None:
        """Keep this; let the oldest go."""
        if len(text) > self._limit:
            self.left_out += len(text) - self._limit
            text = text[-self._limit :] if self._limit else ""
        self._pieces.append((name, text))
        self._held += len(text)
        while self._held > self._limit:
            oldest, piece = self._pieces.popleft()
            over = self._held - self._limit
            gone = min(over, len(piece))
            self.left_out += gone
            self._held -= gone
            if gone < len(piece):
                self._pieces.appendleft((oldest, piece[gone:]))

    def drain(self) -> list[tuple[str, str]]:
        """What is kept, and keep nothing."""
        pieces, self._pieces, self._held = list(self._pieces), deque(), 0
        return pieces
