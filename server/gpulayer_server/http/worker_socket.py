"""The workers' websocket."""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
from tornado import websocket

from gpulayer.protocol.calls import CallsAccepted, CallsDone
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import (
    Ack,
    CommMessage,
    Finished,
    Hello,
    Order,
    Output,
    ProtocolError,
    Refuse,
    ServerMessage,
    Started,
    WorkerMessage,
    from_worker,
)
from gpulayer.protocol.types import Problem
from gpulayer_server.core.events import WorkerConnected, WorkerSaid
from gpulayer_server.http.base import ignored
from gpulayer_server.http.frames import FrameSocket
from gpulayer_server.shell import log
from gpulayer_server.store.streams import StreamGap

_NUMBER_BYTES = 4  # every frame begins with its number
_COMMS_BYTES = 4 * 1024 * 1024  # messages to widgets that wait for a slow connection: more are lost
_ACCEPTED_S = 0.004  # so long a runner may wait to let go of results
_FULL_PAUSE_S = 5.0  # how long after its disk was full the control plane asks for the output again


class WorkerSocket(FrameSocket):
    """One worker's connection: frames in, events to the plane; what the plane sends, out."""

    conn: int = 0

    def open(self, *args: str, **kwargs: str) -> None:
        """Frames are numbered from here."""
        super().open(*args, **kwargs)
        self._order = Order()
        self._dropped = False
        self._full: set[str] = set()  # attempts whose bytes found no room: what follows them is not looked at
        self._said: list[WorkerMessage] = []  # of the frame that is looked at: what the plane is yet to handle
        self._outgoing: list[ServerMessage] = []
        self._soon = False  # they are sent in the next turn of the loop
        self._later: asyncio.TimerHandle | None = None  # or then
        self._takes_comms = False
        self._comms_bytes = 0  # with the socket, and not yet with the operating system
        if self.token is not None:
            tokens = self.access.tokens
            tokens.opened(self.token, self)
            problem = tokens.problem(self.token)  # it may have been revoked since it was looked at
            if problem is not None:
                self.cut_off(problem)

    def on_message(self, message: str | bytes) -> None:
        """A frame. All of it, with what follows of it, happens before the next one is looked at."""
        if self._dropped:
            return
        try:
            data = message if isinstance(message, bytes) else message.encode()
            if len(data) <= _NUMBER_BYTES:
                raise ProtocolError("a frame without a number or without messages")
            frame = self._order.accept(data)
            if frame is None:
                return
            messages = from_worker(frame)
        except ProtocolError as error:
            log.warning("a worker at %s sent a bad frame: %s", self.request.remote_ip, error)
            self.send([Refuse(code="bad_frame", text=str(error), retry=True)])  # a new connection makes it whole
            self.send_now()
            self._dropped = True
            self.close(1002, "bad frame")
            return
        acks: dict[str, int] = {}
        self.shell.frame(partial(self._take_all, messages, acks))
        if acks:
            self.send([Ack(attempt=attempt, offset=offset) for attempt, offset in acks.items()])
            reach("server.acked")

    def _take_all(self, messages: list[WorkerMessage], acks: dict[str, int]) -> None:
        for each in messages:
            if not self._dropped:
                self._take(each, acks)
        self._hand_over()

    def _take(self, message: WorkerMessage, acks: dict[str, int]) -> None:
        """Bytes and a hello at once; the rest of a frame is one event."""
        if isinstance(message, (Finished, Output)) and message.attempt in self._full:
            return  # it comes again, on the next connection
        if isinstance(message, Output):
            self._output(message, acks)
        elif isinstance(message, Hello):
            self._hand_over()
            self._hello(message)
        else:
            self._said.append(message)

    def _hand_over(self) -> None:
        """Let the plane handle what was said until now."""
        said, self._said = self._said, []
        if not said:
            return
        acked: dict[str, int] = {}
        for message in said:
            if isinstance(message, Finished):
                reach("server.idle-written")
                if message.end_offset:
                    acked[message.attempt] = self.shell.streams.length(message.attempt)
            elif isinstance(message, Started):
                reach("server.started")
            elif isinstance(message, CallsDone):
                reach("server.calls-done")
        self.shell.handle(WorkerSaid(conn=self.conn, messages=tuple(said), acked=acked))

    def _hello(self, hello: Hello) -> None:
        """Who connects; the token of `endpoint.json` is good for any worker, a credential for its own."""
        shell, token = self.shell, self.token
        if token is not None and hello.worker_id != token.worker_id:
            title = f"the credential of worker {token.name} is not that of {hello.name}, whose id is another one"
            detail = "ask whoever runs the control plane for a join line of its own"
            self.cut_off(Problem(status=403, code="another_worker", title=title, detail=detail))
            return
        if token is not None:
            hello = msgspec.structs.replace(hello, local=False)  # those that we start read endpoint.json
            self.access.tokens.greeted(token, lambda problem: log.warning("%s not noted: %s", token.id, problem.line()))
        self._takes_comms = hello.comms
        if self.conn == 0:
            self.conn = shell.connect(self)
        acked = {held.attempt: shell.streams.length(held.attempt) for held in hello.attempts}
        shell.handle(WorkerConnected(conn=self.conn, hello=hello, acked=acked))

    def cut_off(self, problem: Problem) -> None:
        """Close the connection for good, and say why."""
        self.send([Refuse(code=problem.code, text=problem.line())])
        self.drop(problem.title)

    def _output(self, message: Output, acks: dict[str, int]) -> None:
        reach("server.first-byte" if message.offset == 0 else "server.mid-output")
        try:
            length = self.shell.output(self.conn, message.attempt, message.offset, message.data)
        except StreamGap as error:
            log.warning("%s", error)
            self._hand_over()
            self.drop("bytes are missing")
            return
        except OSError as error:
            self._no_room(message.attempt, error)
            return
        if length is not None:
            acks[message.attempt] = length

    def _no_room(self, attempt: str, error: OSError) -> None:
        """Not acknowledged: the worker keeps it in its spool, and sends all of it again when it is back.

        The connection stays for a while: to break it at once would only bring it back at once.
        """
        if not self._full:
            log.error("stream %s can't grow, it is asked for again in %g s: %s", attempt, _FULL_PAUSE_S, error)
            asyncio.get_running_loop().call_later(_FULL_PAUSE_S, self.drop, "the control plane's disk is full")
        self._full.add(attempt)

    def send(self, messages: list[ServerMessage]) -> None:
        """Send in order; what is said in one turn of the loop goes out in one frame.

        To a closed socket nothing goes: the worker's next hello tells what it missed.
        """
        self._outgoing += messages
        loop = asyncio.get_running_loop()
        if any(not isinstance(message, CallsAccepted) for message in messages):
            if not self._soon:
                self._soon = True
                loop.call_soon(self._send_soon)
        elif self._later is None:  # nobody waits for that: it goes with the next calls, if there are any
            self._later = loop.call_later(_ACCEPTED_S, self.send_now)

    def _send_soon(self) -> None:
        self._soon = False
        self.send_now()

    def offer(self, message: CommMessage) -> bool:
        """Send what may be lost; False where the worker would not know it, is away, or is behind with such messages."""
        size = sum(map(len, message.parts))
        if not self._takes_comms or self._dropped or self._comms_bytes + size > _COMMS_BYTES:
            return False
        self.send_now()
        try:
            sent = self.write_frame(self._order.number([message]))
        except websocket.WebSocketClosedError:
            return False
        if sent is not None:
            self._comms_bytes += size
            sent.add_done_callback(lambda done: self._offered(done, size))
        return True

    def _offered(self, sent: asyncio.Future[None], size: int) -> None:
        self._comms_bytes -= size
        ignored(sent)

    def send_now(self) -> None:
        """Send now what was said."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        messages, self._outgoing = self._outgoing, []
        if not messages:
            return
        try:
            sent = self.write_frame(self._order.number(messages))
        except websocket.WebSocketClosedError:
            log.info("worker connection %d closed before it was sent %d messages", self.conn, len(messages))
        else:
            if sent is not None:
                sent.add_done_callback(ignored)

    def drop(self, reason: str) -> None:
        """Close the connection from this side."""
        if not self._dropped:
            self._dropped = True  # what still comes on it is not looked at
            self.send_now()
            self.close(1000, reason[:120])
            self.shell.disconnect(self.conn)

    def on_close(self) -> None:
        """Tell the plane."""
        if self.token is not None:
            self.access.tokens.closed(self.token, self)
        if self.conn:
            self.shell.disconnect(self.conn)
