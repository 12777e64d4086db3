"""The kernel: ipykernel's, for which an execute request is an attempt with a spool of its own."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import sys
from collections.abc import Callable
from typing import Any

from ipykernel.ipkernel import IPythonKernel

from .comms import CommMessages
from .direct import PORT, Direct
from .request import Refused, Request, Surroundings, read

TEXT_CHARS = 4000  # of an exception's text in the REPLY record; all of it is in the error message
PAYLOADS = ("page", "set_next_input")
PAGE_CHARS = 100_000
PADDING_LIMIT = 100_000
MAGIC_LINE = "# %%gpulayer "  # the magic's own line, with which a notebook's cell comes: line numbers count it


def shortened(payload: dict[str, Any]) -> dict[str, Any] | None:
    """What a front end does once a cell has ended, if it is one of `PAYLOADS`; a page is cut at `PAGE_CHARS`."""
    if payload.get("source") not in PAYLOADS:
        return None
    if payload["source"] == "set_next_input":
        return payload if len(payload.get("text", "")) <= PAGE_CHARS else None
    text = payload["data"].get("text/plain", "")
    if len(text) > PAGE_CHARS:
        text = f"{text[:PAGE_CHARS]}\n[the rest is left out: {len(text) - PAGE_CHARS} characters]"
    return {**payload, "data": {"text/plain": text}}


class PeakMemory:
    """The most memory that this process has had so far. Where the cheap figure has not moved, the exact one has not."""

    def __init__(self) -> None:
        self._usage = -1
        self._peak = 0

    def bytes(self) -> int:
        """It, now."""
        usage = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        if usage != self._usage:
            self._usage, self._peak = usage, peak_rss_bytes()
        return self._peak


def peak_rss_bytes() -> int:
    """The same, from what the system keeps of this process alone: `getrusage` counts what ran in it before, too."""
    try:
        fd = os.open("/proc/self/status", os.O_RDONLY)
    except OSError:  # not Linux
        pass
    else:
        try:
            status = os.read(fd, 8192)
        finally:
            os.close(fd)
        found = re.search(rb"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
        if found:
            return int(found[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def failure(error: BaseException) -> dict[str, Any]:
    """What an execute reply says about `error`."""
    return {"status": "error", "ename": type(error).__name__, "evalue": str(error), "traceback": []}


class Later:
    """Stands in for the shell channel: keeps a cell's reply until its idle status, which is waited for, is written."""

    def __init__(self) -> None:
        self._channel: Any = None
        self._replies: list[tuple[Any, dict[str, Any]]] = []

    def before(self, channel: Any) -> Later:
        """This, for `channel`; None where nobody waits for a reply."""
        self._channel = channel
        return self

    def send_multipart(self, frames: Any, **options: Any) -> None:
        """Keeps a reply."""
        if self._channel is not None:
            self._replies.append((frames, options))

    def send(self) -> None:
        """Sends what was kept."""
        while self._replies:
            frames, options = self._replies.pop(0)
            self._channel.send_multipart(frames, **options)


class SpoolKernel(IPythonKernel):
    """Runs one attempt after the other, each asked for by one execute request, and says how it ended."""

    parent: Any  # the SpoolKernelApp
    session: Any
    shell: Any
    io_loop: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._execute_sleep = 0.0  # ipykernel's wait for its iopub thread, which sends nothing here
        self._tee = self.parent.tee
        self._interrupts = self.parent.interrupts
        self._surroundings = Surroundings()
        self._refusals: dict[str, str] = {}
        self._outcome: dict[str, Any] | None = None
        self._values: dict[str, Any] | None = None  # digest and size of what the cell left
        self._later = Later()
        self._dispatched: set[Any] = set()
        self._peak = PeakMemory()
        if hasattr(self.shell, "_tee"):  # IPython 9 keeps a copy of all that is printed for as long as it lives
            self.shell._tee = lambda channel: contextlib.nullcontext()
        self._ask_exit = self.shell.ask_exit
        self.shell.ask_exit = self._leave
        self._leaving = False
        self._transform_cell = self.shell.transform_cell
        self.shell.transform_cell = self._transform_line
        self.control_handlers["gpulayer_state_request"] = self.gpulayer_state_request
        self.control_handlers["gpulayer_comm_request"] = CommMessages(self).take

    def _leave(self) -> None:
        """The cell calls exit(): ipykernel ends the process a moment after the cell; the agent is told with its end."""
        self._leaving = True
        self._ask_exit()

    def _transform_line(self, raw_cell: str) -> str:
        """What a cell becomes before it is compiled: of one line below the magic's own, what IPython makes of one line.

        That is: `ls`, `exit`, an alias or a macro by its mere name.
        """
        cell = self._transform_cell(raw_cell)
        lines = cell.splitlines(keepends=True)
        if len(lines) != 2 or not lines[0].startswith(MAGIC_LINE):
            return cell
        with self.shell.builtin_trap:
            return lines[0] + self.shell.prefilter_manager.prefilter_lines(lines[1]) + "\n"

    def start(self) -> None:
        """Starts to take requests; the loop of the main thread runs next."""
        super().start()
        loop = self.io_loop.asyncio_loop
        self._interrupts.wake(loop)
        direct = Direct(f"{self.parent.ip}-{PORT}", loop, self.parent.records, self.dispatch)
        # A window system's own loop, once a cell has asked for one, looks at the shell channel and at nothing else.
        self.observe(lambda change: direct.close() if change["new"] is not None else None, "eventloop")

    def dispatch(self, frames: list[Any]) -> None:
        """As ipykernel does with what comes on the shell channel."""
        if hasattr(self, "shell_main"):
            task = self.io_loop.asyncio_loop.create_task(self.shell_main(None, frames))
            self._dispatched.add(task)
            task.add_done_callback(self._dispatched.discard)
        else:  # ipykernel 6
            schedule: Any = getattr(self, "schedule_dispatch")  # noqa: B009 - not in ipykernel 7
            schedule(self.dispatch_shell, frames)

    async def gpulayer_state_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Answers which attempt runs and which have run; see `Tee.state`."""
        self.session.send(stream, "gpulayer_state_reply", self._tee.state(), parent, ident)

    # ------------------------------------------------------------------------------------- a request's arrival

    def set_parent(self, ident: Any, parent: Any, channel: str = "shell") -> None:
        """Opens the attempt that a new execute request asks for: from here on, output is its."""
        if channel == "shell" and parent.get("header", {}).get("msg_type") == "execute_request":
            self._arrived(parent)
        super().set_parent(ident, parent, channel)

    def _arrived(self, message: dict[str, Any]) -> None:
        msg_id = message["header"]["msg_id"]
        if self._tee.knows(msg_id):
            return
        try:
            request = read(message)
            self._tee.open(request, message["header"])
        except Refused as refusal:
            self._refusals[msg_id] = str(refusal)
        except (OSError, ValueError) as error:
            self._refusals[msg_id] = f"the spool cannot be written: {error}"
        else:
            self._outcome = self._values = None
            self._interrupts.remember()

    def should_handle(self, stream: Any, msg: Any, idents: Any) -> Any:
        """Keeps execute requests away that are refused, or that came before: an agent sends again after a crash."""
        if msg["header"]["msg_type"] != "execute_request":
            return super().should_handle(stream, msg, idents)
        msg_id = msg["header"]["msg_id"]
        if self._tee.claim(msg_id):
            return True
        refusal = self._refusals.pop(msg_id, None)
        if refusal is not None:
            self.log.error("refused the request %s: %s", msg_id, refusal)
            self.session.send(stream, "execute_reply", failure(Refused(refusal)), msg, idents)
        return False

    async def _flush_control_queue(self) -> None:
        """Waits for no other thread before a cell: ipykernel 6 does, for requests to abort that nobody sends here."""

    def pre_handler_hook(self) -> None:
        """Has an interrupt end what is handled; a cell's begin later, when its code does."""
        if self._tee.attempt is None:
            super().pre_handler_hook()

    def post_handler_hook(self) -> None:
        """Undoes the above; a cell's have ended before, when its code did."""
        if self._tee.attempt is None:
            super().post_handler_hook()

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        if not self._tee.in_kernel:
            return
        message: Any = parent or self.get_parent(channel)
        if channel != "shell" or not self._tee.is_current(message.get("header", {}).get("msg_id")):
            return
        if status == "idle":
            self._end_attempt(lambda: super(SpoolKernel, self)._publish_status(status, channel, parent))
        else:
            self._tee.publish_busy(lambda: super(SpoolKernel, self)._publish_status(status, channel, parent))

    def _end_attempt(self, publish_idle: Callable[[], None]) -> None:
        self._interrupts.ignore()
        try:
            self.parent.capture.drain()
            self.parent.children.await_sent()
            self._tee.finish(self._reply(), publish_idle)
        except (OSError, ValueError) as error:  # whoever waits for the cell sees that its stream has no end
            self.log.error("the end of a cell could not be written: %s", error)
        self._later.send()

    def _abort_queues(self, *args: Any) -> None:
        """Aborts nothing: what follows a failed cell is for whoever sends the cells to say."""

    # --------------------------------------------------------------------------------------- a request's cell

    async def execute_request(self, stream: Any, ident: Any, parent: Any) -> None:
        """Runs the attempt's cell in the surroundings that it asks for."""
        attempt = self._tee.attempt
        stream = self._later.before(stream if ident else None)
        try:
            self._prepare(attempt.request)
        except (OSError, TypeError, ValueError, MemoryError) as error:
            self._outcome = self._shown(error)
            self.session.send(stream, "execute_reply", self._outcome, parent, ident)
            return
        await super().execute_request(stream, ident, parent)

    def _shown(self, error: BaseException) -> dict[str, Any]:
        """What an execute reply says about an error that no code of the cell raised; it is shown in one line."""
        outcome = failure(error)
        content = {name: outcome[name] for name in ("ename", "evalue")}
        content["traceback"] = [f"{content['ename']}: {content['evalue']}"]
        self.send_response(self.iopub_socket, "error", content, ident=self._topic("error"))
        return outcome

    def _prepare(self, request: Request) -> None:
        if request.inputs:
            self.shell.push(self.parent.exchange.take(request))
        before = os.getcwd()
        self._surroundings.apply(request)
        if os.getcwd() != before:  # the folder that %cd goes back to, and says where it fails
            self.shell.starting_dir = os.getcwd()
            self.shell.user_ns["_dh"][:] = [os.getcwd()]
        if not request.execution_count:
            return
        self.shell.execution_count = request.execution_count
        for history in (self.shell.history_manager.input_hist_parsed, self.shell.history_manager.input_hist_raw):
            missing = min(request.execution_count, PADDING_LIMIT) - len(history)
            history.extend([""] * missing)  # so that In[7] is the cell that the notebook calls 7

    async def do_execute(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Runs the code; interrupts reach it and nothing around it."""
        try:
            if self._interrupts.admit():
                raise KeyboardInterrupt
            self._outcome = await super().do_execute(*args, **kwargs)
            self._leave_values()
        except KeyboardInterrupt as error:
            self._interrupts.ignore()
            self.shell.showtraceback(exception_only=True)
            self._outcome = failure(error)
            self._outcome["execution_count"] = self.shell.execution_count
        except BaseException as error:
            self._outcome = failure(error)
            raise
        finally:
            self._interrupts.ignore()
        if not self._tee.in_kernel:
            self._end_child()
        return self._outcome

    def _leave_values(self) -> None:
        """Writes the values that go back; the cell fails where that can't be done."""
        attempt = self._tee.attempt
        if attempt is None or not attempt.request.outputs or not self._tee.in_kernel:
            return
        if self._outcome is None or self._outcome["status"] != "ok":
            return
        try:
            self._values = self.parent.exchange.leave(attempt.request, self.shell.user_ns)
        except (NameError, TypeError, ValueError, OSError, MemoryError) as error:
            self._outcome = {**self._outcome, **self._shown(error)}

    def _end_child(self) -> None:
        """Ends a forked child that has come to the end of the cell: it shares the kernel's sockets with it."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0 if self._outcome and self._outcome["status"] == "ok" else 1)

    def _reply(self) -> dict[str, Any]:
        outcome = self._outcome or failure(RuntimeError("the kernel ended the cell without an outcome"))
        reply: dict[str, Any] = {"status": outcome["status"], "ename": None, "evalue": None}
        if reply["status"] != "ok":
            reply["ename"] = str(outcome.get("ename"))
            reply["evalue"] = str(outcome.get("evalue"))[:TEXT_CHARS]
        reply["execution_count"] = outcome.get("execution_count")
        reply["peak_rss_bytes"] = self._peak.bytes()
        if self._values is not None and reply["status"] == "ok":
            reply["values"] = self._values
        if self._leaving:
            reply["leaving"] = True
        payload = [part for part in map(shortened, outcome.get("payload") or ()) if part is not None]
        if payload:
            reply["payload"] = payload
        return reply
