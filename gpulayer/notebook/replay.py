"""Replaying a remote kernel's messages into the local cell, in order."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from IPython.core.displayhook import CapturingDisplayHook

from gpulayer.client.errors import RemoteError
from gpulayer.notebook.comms import Comms, Far
from gpulayer.protocol.records import Kind, Splitter, Texts, decode_json, decode_kernel
from gpulayer.protocol.types import JobView
from gpulayer.words import size


def cell_number(shell: Any) -> int:
    """The number of the cell that runs, as the notebook shows it. IPython counts up before or after, by version."""
    return shell.displayhook.prompt_count


def hush(shell: Any) -> None:
    """Have `shell` end a cell without another word where the remote error is shown already, in its place."""
    show = shell._showtraceback

    def show_once(etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        if isinstance(evalue, RemoteError) and evalue.shown:
            shell._last_traceback = stb
        else:
            show(etype, evalue, stb)

    shell._showtraceback = show_once


class Replay:
    """One job's stream into one cell. Bytes in; output at the local front end; the remote exception kept.

    Of more text than `max_output_bytes` the first half and the last half are shown; all of it stays in the stream.
    Where the cell clears its output, `on_clear` is called once that has happened. What the page says to its widgets
    goes to `far`.
    """

    def __init__(
        self,
        shell: Any,
        job: str,
        max_output_bytes: int,
        *,
        on_clear: Callable[[], None] = lambda: None,
        far: Far | None = None,
    ):
        self._shell = shell
        self._job = job
        self.scope = job  # of display ids: the same id in another job is another display, unless they share a kernel
        self._splitter = Splitter()
        self._head_left = max_output_bytes // 2
        self._tail = _Tail(max_output_bytes - max_output_bytes // 2)
        self._touched: set[str] = set()
        self._on_clear = on_clear
        self._clears_next = False  # the front end clears the output when the next one comes
        self._far = far
        self._comms = Comms(shell.get_parent, far) if hasattr(shell, "kernel") else None  # a terminal shows no widgets
        self._texts = Texts()
        self._errors: list[RemoteError] = []  # all that the kernel showed, the last of them not yet shown here
        self.error: RemoteError | None = None
        self.reply: dict[str, Any] | None = None  # how the kernel says that the cell ended
        self.idle = False  # the cell's own end was seen

    def begin(self, job: str) -> None:
        """The job's name, once it has one."""
        self._job = job

    def belongs(self, job: JobView) -> None:
        """What is shown is this job's."""
        self.scope = job.session or job.id
        if self._far is not None:
            self._far.session = job.session

    def restart(self) -> None:
        """A new attempt begins: its stream is a new one."""
        self._splitter, self._texts = Splitter(), Texts()
        self.error = self.reply = None
        self._errors = []
        self.idle = False

    def feed(self, data: bytes) -> None:
        """Replay what these bytes complete."""
        for _, kind, body in self._splitter.feed(data):
            if kind == Kind.KERNEL:
                self._kernel_message(decode_kernel(body))
            elif kind == Kind.REPLY:
                self._on_reply(decode_json(body))
            elif kind in (Kind.STDOUT, Kind.STDERR):
                self._text(*self._texts.take(Kind(kind), body))
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
        elif self._comms is not None and kind in ("comm_open", "comm_msg", "comm_close"):
            self._show_error()
            self.flush()  # what was printed before an Output widget took over is not its
            self._comms.take(kind, parts)

    def _on_stream(self, content: dict[str, Any]) -> None:
        self._show_error()
        self._text("stderr" if content["name"] == "stderr" else "stdout", content["text"])

    def _on_display_data(self, content: dict[str, Any]) -> None:
        self._display(content, update=False)

    def _on_update_display_data(self, content: dict[str, Any]) -> None:
        self._display(content, update=True)

    def _on_execute_result(self, content: dict[str, Any]) -> None:
        self._show_error()
        self._begin()
        hook = self._shell.displayhook
        if isinstance(sys.displayhook, CapturingDisplayHook):  # %%capture, capture_output
            sys.displayhook(_Rendered(content["data"], content.get("metadata", {})))
        elif hasattr(hook, "session") and hasattr(hook, "pub_socket"):
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
        self._show_error()
        self.flush()
        self._clears_next = bool(content.get("wait", False))
        self._shell.display_pub.clear_output(wait=self._clears_next)
        if not self._clears_next:
            self._on_clear()

    def _on_error(self, content: dict[str, Any]) -> None:
        self._show_error()
        self.error = RemoteError.named(content["ename"], content["evalue"], list(content["traceback"]))
        self._errors.append(self.error)

    def _on_reply(self, reply: dict[str, Any]) -> None:
        """Which of the errors ended the cell, if one did: what %tb and %run show is no error of the cell's."""
        self.reply = reply
        for payload in reply.get("payload", ()):
            self._payload(payload)
        if reply.get("status") == "ok":
            self._show_error()
            self.error = None
            return
        ename, evalue = reply.get("ename", ""), reply.get("evalue", "")
        ended = next((error for error in reversed(self._errors) if error.ename == ename), self.error)
        if ename == "UsageError":  # IPython says it in one line on stderr
            ended = RemoteError.named(ename, evalue, [])
            ended.shown = True
        if ended is not self.error:
            self._show_error()
            self.error = ended

    def _payload(self, payload: dict[str, Any]) -> None:
        """What the front end does once the cell has ended: show a page (`len?`), fill the next cell (`%load`)."""
        if payload.get("source") == "set_next_input":
            self._shell.set_next_input(payload["text"], replace=payload.get("replace", False))
        elif hasattr(self._shell, "kernel"):
            self._shell.payload_manager.write_payload(payload)
        else:
            self._write("stdout", payload["data"].get("text/plain", "") + "\n")

    def _show_error(self) -> None:
        """Show the last error where it came: it was not the cell's last word."""
        hook = self._shell.displayhook
        if not self._errors or self._errors[-1].shown:
            return
        error = self._errors[-1]
        error.shown = True
        self._begin()
        if hasattr(hook, "session") and hasattr(hook, "pub_socket"):
            content = {"ename": error.ename, "evalue": error.evalue, "traceback": error.traceback}
            topic = (getattr(hook, "topic", None) or b"").replace(b"execute_result", b"error") or None
            hook.session.send(hook.pub_socket, "error", content, parent=hook.parent_header, ident=topic)
        else:
            self._write("stdout", "\n".join(error.traceback) + "\n")

    def _on_status(self, content: dict[str, Any]) -> None:
        self.idle = content.get("execution_state") == "idle"

    # ---------------------------------------------------------------- output

    def _begin(self) -> None:
        """Something new will be shown."""
        self.flush()
        if self._clears_next:
            self._clears_next = False
            self._on_clear()

    def _display(self, content: dict[str, Any], *, update: bool) -> None:
        self._show_error()
        self.flush() if update else self._begin()
        transient = dict(content.get("transient") or {})
        if "display_id" in transient:
            transient["display_id"] = f"{self.scope}-{transient['display_id']}"
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
        if self._clears_next:
            self._begin()
        if self._touched and name not in self._touched:
            self.flush()  # the other stream's text was first: each has a buffer of its own here
        getattr(sys, name).write(text)
        self._touched.add(name)


class _Rendered:
    """A result that was rendered on the worker, as an object that shows itself."""

    def __init__(self, data: dict[str, Any], metadata: dict[str, Any]):
        self._bundle = data, metadata

    def __repr__(self) -> str:
        return self._bundle[0].get("text/plain", "")

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._bundle


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
