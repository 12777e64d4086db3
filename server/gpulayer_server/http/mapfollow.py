"""Sends maps to a client: what their calls write, their results, and how they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from tornado import websocket

from gpulayer.protocol.calls import CallRun, MapRecord, MapResults, MapUpdate, MapView, ResultRun
from gpulayer.protocol.messages import ServerToClient, encode
from gpulayer.protocol.types import FRAME_DATA_BYTES, TERMINAL
from gpulayer_server.http.mapresults import Results
from gpulayer_server.maptexts import MapTexts, Text
from gpulayer_server.store.maps import size_of

_MOMENT_S = 0.003  # a warm call takes less


class FrameWriter(Protocol):
    """A client's socket, as it is needed here."""

    def write_frame(self, frame: bytes) -> asyncio.Future[None] | None: ...


class MapPump:
    """Sends what the followers of one client have, one frame at a time, as fast as the client reads and no faster."""

    def __init__(self, socket: FrameWriter):
        self._socket = socket
        self._loop = asyncio.get_running_loop()
        self._ready: dict[MapFollower, None] = {}  # those that may have something
        self._scheduled = False
        self._sending = False  # a frame that the client has not taken yet
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, follower: MapFollower) -> None:
        """It may have something to send: with the next `flush`."""
        self._ready[follower] = None

    def drop(self, follower: MapFollower) -> None:
        """It sends nothing any more."""
        self._ready.pop(follower, None)

    def close(self) -> None:
        """Nobody is there any more."""
        self._closed = True
        self._ready.clear()
        if self._timer is not None:
            self._timer.cancel()

    def soon(self) -> None:
        """Send in the next turn of the loop: what comes in this one goes along."""
        if not self._scheduled and not self._sending:
            self._scheduled = True
            self._loop.call_soon(self._scheduled_flush)

    def later(self) -> None:
        """Send in a moment what nobody waits for: that a call was taken goes along with a quick result."""
        if self._timer is None:
            self._timer = self._loop.call_later(_MOMENT_S, self._timer_flush)

    def _timer_flush(self) -> None:
        self._timer = None
        self.flush()

    def _scheduled_flush(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        """Send one frame, if there is something and the client has taken the last one."""
        if self._sending or not self._ready or self._closed:
            return
        messages = self._gather()
        if not messages:
            if self._ready:  # what was looked at was others'
                self.soon()
            return
        try:
            sent = self._socket.write_frame(encode(messages))
        except websocket.WebSocketClosedError:
            self.close()
            return
        if sent is not None:
            self._sending = True
            sent.add_done_callback(self._taken)
        elif self._ready:
            self.soon()

    def _gather(self) -> list[ServerToClient]:
        messages: list[ServerToClient] = []
        limit_bytes = FRAME_DATA_BYTES
        for follower in list(self._ready):
            if limit_bytes <= 0:
                break
            del self._ready[follower]
            limit_bytes -= follower.give(messages, limit_bytes)
            if follower.more:
                self._ready[follower] = None  # after the others
        return messages

    def _taken(self, sent: asyncio.Future[None]) -> None:
        """A slow client was waited for: nothing piles up for it."""
        self._sending = False
        if sent.cancelled() or sent.exception() is not None:
            self.close()
        elif self._ready:
            self.soon()


class MapFollower:
    """One map for one client: first the text, then the results, then the state, so that nothing is behind its end."""

    def __init__(
        self,
        pump: MapPump,
        n: int,
        view: MapView,
        results: Results,
        texts: MapTexts,
        over: Callable[[MapFollower], None],
    ):
        """`over` is called once when all there will ever be was given."""
        self.n = n
        self.map = view.id
        self._pump = pump
        self._view: MapView | None = view  # the newest, not yet told
        self._told: MapView | None = None
        self._results = results
        self._texts = texts
        self._over = over
        self._held: list[ResultRun] = []  # results that go once the texts before them went
        self._settled = False  # the map ended, and the store was looked at once more
        pump.ready(self)

    @property
    def more(self) -> bool:
        """Whether it may have something to send now."""
        return self._view is not None or self._texts.unread or bool(self._held) or self._results.waiting

    def changed(self, view: MapView) -> bool:
        """The map is another now. Whether it is one that is not known here."""
        if view == (self._told if self._view is None else self._view):
            return False
        self._view = view
        self._pump.ready(self)
        return True

    def accepted(self, run: CallRun) -> None:
        """These results were committed."""
        self._results.accepted(run)
        self._pump.ready(self)

    def wrote(self, texts: list[Text]) -> None:
        """Its calls wrote something."""
        self._texts.wrote(texts)
        self._pump.ready(self)
        self._pump.soon()

    def flush(self) -> None:
        """Send what there is."""
        self._pump.flush()

    def give(self, messages: list[ServerToClient], limit_bytes: int) -> int:
        """Add what comes next; about how many bytes that are, or were looked at."""
        used = 0
        if self._texts.unread:
            for text in self._texts.take(limit_bytes):
                used += len(text.data)
                messages.append(_record(self.n, text))
        if not self._held and self._results.waiting:
            self._held = self._results.take(limit_bytes)
            self._texts.set_goal()
        if self._held and self._texts.reached:
            size_bytes = sum([size_of(run.data) for run in self._held])
            if used == 0 or used + size_bytes <= limit_bytes:
                used += size_bytes
                messages.append(MapResults(n=self.n, cursor=self._results.cursor, runs=tuple(self._held)))
                self._held = []
        self._give_view(messages)
        return max(used, limit_bytes) if self._texts.unread else used

    def _give_view(self, messages: list[ServerToClient]) -> None:
        view = self._view
        if view is None:
            return
        if view.state in TERMINAL:
            if self._texts.unread or self._held or self._results.waiting:
                return
            if not self._settled and self._results.cursor != view.total:
                self._settled = True  # of a map that failed some have no result: the store knows which
                self._results.look_again()
                return
            self._over(self)
        messages.append(MapUpdate(n=self.n, map=view))
        self._view, self._told = None, view


def _record(n: int, text: Text) -> MapRecord:
    return MapRecord(
        n=n, index=text.index, kind=text.kind, seq=text.seq, data=text.data, attempt=text.attempt, at=text.at
    )
