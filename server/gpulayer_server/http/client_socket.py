"""The clients' websocket: submit, follow, cancel, in one connection."""

from __future__ import annotations

import asyncio
from functools import partial

from tornado import websocket

from gpulayer._version import __version__
from gpulayer.protocol.calls import CancelMap, EndCalls, FollowMap, MapArgs, OpenMap
from gpulayer.protocol.messages import (
    CancelJob,
    Chunk,
    ClientHello,
    ClientMessage,
    ClientWelcome,
    Follow,
    ProtocolError,
    Refused,
    ServerToClient,
    Submit,
    ToKernel,
    Unfollow,
    Update,
    encode,
    from_client,
)
from gpulayer.protocol.types import FRAME_DATA_BYTES, PROTOCOL_VERSION, JobView, Problem
from gpulayer_server.core.events import CancelWanted
from gpulayer_server.http.base import ignored
from gpulayer_server.http.comms import pass_on
from gpulayer_server.http.frames import FrameSocket
from gpulayer_server.http.mapclient import MapClient
from gpulayer_server.shell import Reply, log
from gpulayer_server.submitting import submit

__all__ = ["ClientSocket", "JobFollower", "submit"]


class ClientSocket(FrameSocket):
    """One client's connection."""

    def open(self, *args: str, **kwargs: str) -> None:
        """A client is there: an embedded control plane stays."""
        super().open(*args, **kwargs)
        self.following: dict[int, JobFollower] = {}
        self.maps = MapClient(self)
        self.shell.clients.add(self)

    def on_message(self, message: str | bytes) -> None:
        """A frame of requests. All of them, and what follows of them, happens before the next one is looked at."""
        try:
            messages = from_client(message if isinstance(message, bytes) else message.encode())
        except ProtocolError as error:
            log.warning("a client sent a bad frame: %s", error)
            self.close(1002, "bad frame")
            return
        self.shell.frame(partial(self._take_all, messages))

    def _take_all(self, messages: list[ClientMessage]) -> None:
        for each in messages:
            self._take(each)

    def _take(self, message: ClientMessage) -> None:
        match message:
            case ClientHello():
                self._hello(message)
            case Submit():
                submit(self.shell, self.owner, message.key, message.spec, self._submitted(message))
            case Follow():
                self._follow(message.n, message.job, message.attempt, message.offset, message.index)
            case Unfollow():
                self._unfollow(message.n)
            case CancelJob():
                self._cancel(message)
            case ToKernel():
                self._answer(message.n)(pass_on(self.shell, self.owner, message))
            case OpenMap() | MapArgs() | FollowMap() | CancelMap() | EndCalls():
                self.maps.take(message)

    def _cancel(self, message: CancelJob) -> None:
        problem = self.not_theirs(message.job, self.shell.owner_of(message.job))
        if problem is not None:
            self._answer(message.n)(problem)
            return
        self.shell.request(
            lambda request: CancelWanted(request=request, job=message.job, give_up=message.give_up),
            self._answer(message.n),
        )

    def _hello(self, message: ClientHello) -> None:
        if message.protocol != PROTOCOL_VERSION:
            older = "the client" if message.protocol < PROTOCOL_VERSION else "the control plane"
            detail = f"protocol {message.protocol} of the client, {PROTOCOL_VERSION} here: upgrade {older}"
            problem = Problem(status=426, code="protocol", title="client and control plane differ", detail=detail)
            self.send([Refused(n=0, problem=problem)])
            self.close(1000, "protocol")
            return
        self.send([ClientWelcome(version=__version__, epoch=self.shell.epoch, comms=True)])

    def _answer(self, n: int) -> Reply:
        def reply(result: JobView | Problem | None) -> None:
            if isinstance(result, Problem):
                self.send([Refused(n=n, problem=result)])
            elif result is not None:
                self.send([Update(n=n, job=result)])

        return reply

    def _submitted(self, message: Submit) -> Reply:
        def reply(result: JobView | Problem | None) -> None:
            if isinstance(result, JobView) and message.follow:
                self._follow(message.n, result.id, None, 0)  # what it sends first is the answer
            else:
                self._answer(message.n)(result)

        return reply

    def _follow(self, n: int, job: str, attempt: str | None, offset: int, index: int | None = None) -> None:
        def start() -> None:
            view = self.shell.view(job, index)
            if view is None:
                title = f"no job {job}" if index is None else f"job {job} has no task {index}"
                self.send([Refused(n=n, problem=Problem(status=404, code="no_such_job", title=title))])
                return
            self._unfollow(n)
            self.following[n] = JobFollower(self, n, view, attempt, offset, index)

        self.shell.after_commits(start)

    def _unfollow(self, n: int) -> None:
        follower = self.following.pop(n, None)
        if follower is not None:
            follower.stop()
        self.maps.unfollow(n)

    def send(self, messages: list[ServerToClient]) -> None:
        """One frame; a client that is gone asks again from where it was when it is back."""
        try:
            sent = self.write_frame(encode(messages))
        except websocket.WebSocketClosedError:
            return
        if sent is not None:
            sent.add_done_callback(ignored)

    def over(self, n: int, follower: JobFollower) -> None:
        """A follower has sent all there will ever be."""
        if self.following.get(n) is follower:
            del self.following[n]

    def on_close(self) -> None:
        """Nobody follows any more; the jobs go on."""
        self.shell.clients.discard(self)
        self.maps.close()
        for n in list(self.following):
            self._unfollow(n)


class JobFollower:
    """Sends one job's stream and states to one client, as fast as the client reads and no faster.

    A state goes out after the bytes that were there before it, so that 'done' is never ahead of the output. With
    `index` both are those of one task; without it the stream is that of the job's only task, or else its first.
    """

    def __init__(
        self,
        socket: ClientSocket,
        n: int,
        view: JobView,
        attempt: str | None,
        offset: int,
        index: int | None = None,
    ):
        self._socket = socket
        self._shell = socket.shell
        self._n = n
        self._view: JobView | None = view
        self._job = view.id
        self._told: JobView | None = None
        self._attempt = self._attempt_of(view)
        self._offset = offset if attempt == self._attempt else 0
        self._loop = asyncio.get_running_loop()
        self._pumping = False
        self._stopped = False
        self._shell.follow(self._job, self, index)
        self._soon()

    def _attempt_of(self, view: JobView) -> str | None:
        """Whose stream it is. A job with many tasks shows one of them, and that is another one after a while."""
        return self._shell.first_attempt(self._job) if view.tasks else view.attempt

    def update(self, view: JobView) -> None:
        """The job is another now."""
        if view != self._told:
            self._view = view
            self._soon()

    def wake(self) -> None:
        """The stream grew: its bytes go at once, before the rest of the frame that brought them is looked at."""
        if not self._pumping and not self._stopped:
            self._pump()

    def _soon(self) -> None:
        """There may be something to send: what comes in one turn of the loop goes out in one frame."""
        if not self._pumping and not self._stopped:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def stop(self) -> None:
        """Send no more."""
        self._stopped = True
        self._shell.unfollow(self._job, self)

    def _pump(self) -> None:
        """Send one frame; then the next, when the client has taken this one."""
        self._pumping = False
        batch = [] if self._stopped else self._next()
        if not batch:
            return
        try:
            sent = self._socket.write_frame(encode(batch))
        except websocket.WebSocketClosedError:
            self.stop()
            return
        if sent is None:
            self._soon()
        else:
            self._pumping = True
            sent.add_done_callback(self._taken)

    def _taken(self, sent: asyncio.Future[None]) -> None:
        """A slow client was waited for: nothing piles up for it."""
        self._pumping = False
        if sent.cancelled() or sent.exception() is not None:
            self.stop()
        else:
            self._soon()

    def _next(self) -> list[ServerToClient]:
        view = self._view
        if view is not None:
            attempt = self._attempt_of(view)
            if attempt != self._attempt:
                self._attempt, self._offset = attempt, 0
        batch: list[ServerToClient] = []
        attempt = self._attempt
        if attempt is not None:
            data = self._read(attempt)
            if data:
                batch.append(Chunk(n=self._n, attempt=attempt, offset=self._offset, data=data))
                self._offset += len(data)
        whole = attempt is None or self._offset >= self._shell.streams.visible(attempt)
        if view is not None and (whole or not view.terminal):
            batch.append(Update(n=self._n, job=view))
            self._view, self._told = None, view
            if view.terminal:
                self.stop()
                self._socket.over(self._n, self)
        return batch

    def _read(self, attempt: str) -> bytes:
        if self._shell.streams.visible(attempt) <= self._offset:
            return b""
        return self._shell.streams.read(attempt, self._offset, FRAME_DATA_BYTES)
