"""A map's way over the client's connection: arguments out, results and texts back, from where both were."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from gpulayer.protocol.calls import (
    CancelMap,
    FollowMap,
    MapArgs,
    MapRecord,
    MapResults,
    MapSpec,
    MapTaken,
    MapUpdate,
    MapView,
    OpenMap,
)
from gpulayer.protocol.messages import ClientMessage, Refused, ServerToClient
from gpulayer.protocol.types import TERMINAL

HELD_CALLS = 4096
"""Calls whose arguments are sent and not yet durable: no more are made of a map's arguments before."""

HELD_BYTES = 4 * 1024 * 1024
_QUEUED_BYTES = 4 * 1024 * 1024  # of news that nobody takes: the rest is asked for later
_MESSAGE_BYTES = 200  # what a piece of news takes besides its data, roughly

MapNews: TypeAlias = "MapUpdate | MapResults | MapRecord | Refused"


class Tie(Protocol):
    """What a map needs of the connection."""

    def read_here(self, timeout_s: float, wanted: Callable[[], bool]) -> bool: ...

    def look_up(self) -> None: ...

    def leave(self) -> None: ...

    def tell(self, message: ClientMessage) -> None: ...

    def pause(self, subscription: MapSubscription) -> None: ...

    def resume(self, subscription: MapSubscription) -> None: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Arguments on their way, kept until the control plane has them for good."""

    first: int
    args: tuple[bytes, ...]
    blobs: tuple[str, ...]
    last: bool
    size_bytes: int


class MapSubscription:
    """One map, over all of its connections. One thread at a time takes its news, or adds arguments.

    News that nobody takes are held up to some size; then the map is followed no more until they were taken: a map that
    nobody looks at holds up no other one of the same connection.
    """

    def __init__(
        self,
        n: int,
        tie: Tie,
        *,
        key: str = "",
        job: bytes = b"",
        spec: MapSpec | None = None,
        map_id: str = "",
        ordered: bool = True,
    ):
        """A new map of the packed `JobSpec` `job`, or the known one `map_id`."""
        self.n = n
        self.id = map_id
        self.ordered = ordered
        self.view: MapView | None = None
        self.over = False  # its last state came: nothing follows
        self.told: Callable[[], None] | None = None  # called, by any thread, when there is news
        self._tie = tie
        self._key = key
        self._job = job
        self._spec = spec or MapSpec()
        self._next = 0  # the index of the next call
        self._held: deque[_Batch] = deque()
        self._added = [0, 0]  # calls and their bytes, of all batches; only `add` changes it
        self._dropped = [0, 0]  # of those that are held no more; only whoever reads changes it
        self._when_named: list[Callable[[MapView], None]] = []
        self._order = threading.Lock()  # batches leave in the order of their calls
        self._last_given = not key
        self._cancelled = False
        self._cursor = 0
        self._texts: dict[str, int] = {}
        self._news: queue.SimpleQueue[MapNews | Exception | None] = queue.SimpleQueue()
        self._came_bytes = 0  # only `put` changes it, `_taken_bytes` only who takes
        self._taken_bytes = 0
        self._waiting = False
        self.paused = False
        self._abandoned = False

    # ---------------------------------------------------------------- arguments

    @property
    def room(self) -> bool:
        """Whether more arguments may be added now."""
        calls, size_bytes = (added - dropped for added, dropped in zip(self._added, self._dropped, strict=True))
        return calls < HELD_CALLS and size_bytes < HELD_BYTES

    @property
    def complete(self) -> bool:
        """Whether all of its arguments were added, by this process at least."""
        return self._last_given

    @property
    def all_taken(self) -> bool:
        """Whether all of its arguments are where no process' end can lose them."""
        return self._last_given and not self._held

    def add(self, args: Sequence[bytes], blobs: Sequence[str], *, last: bool) -> None:
        """The arguments of the next calls, and the blobs that these name; `last`: there are no others."""
        batch = _Batch(
            first=self._next, args=tuple(args), blobs=tuple(blobs), last=last, size_bytes=sum(map(len, args))
        )
        self._next += len(batch.args)
        self._last_given = last
        with self._order:
            self._held.append(batch)
            self._added = [self._added[0] + len(batch.args), self._added[1] + batch.size_bytes]
            if self.id:
                self._tie.tell(self._args(batch))

    def _args(self, batch: _Batch) -> MapArgs:
        return MapArgs(n=self.n, map=self.id, first=batch.first, args=batch.args, blobs=batch.blobs, last=batch.last)

    def _taken(self, upto: int) -> None:
        """The arguments below `upto` are durable."""
        while self._held and self._held[0].first + len(self._held[0].args) <= upto:
            batch = self._held[0]
            if batch.last and not batch.args and self.view is not None and self.view.total is None:
                return  # only that there are no others is still to be heard of
            self._drop()

    def _drop(self) -> None:
        batch = self._held.popleft()
        self._dropped = [self._dropped[0] + len(batch.args), self._dropped[1] + batch.size_bytes]

    # ---------------------------------------------------------------- news

    def get(self, timeout_s: float) -> MapNews | None:
        """The next news; None after `timeout_s` or a `wake`. Raises what ended the connection for good."""
        if self.paused and self._news.empty():
            self._tie.resume(self)
        deadline = time.monotonic() + timeout_s
        left_s = timeout_s
        self._waiting = True
        try:
            while left_s > 0 and self._news.empty():
                if not self._tie.read_here(left_s, self._news.empty):
                    break
                left_s = deadline - time.monotonic()
            news = self._news.get(timeout=left_s) if left_s > 0 else self._news.get_nowait()
        except queue.Empty:
            return None
        finally:
            self._waiting = False
        return self._took(news)

    def look(self) -> None:
        """Read what has come, and wait for nothing: between arguments that take long to make or to send."""
        if self._news.empty():
            self._tie.read_here(0.0, self._news.empty)

    def take(self) -> MapNews | None:
        """What has come, None where nothing did: nothing is waited for. Raises as `get`."""
        while not self._news.empty():
            news = self._took(self._news.get())
            if news is not None:  # else somebody was woken
                return news
        if self.paused:
            self._tie.resume(self)
        return None

    def _took(self, news: MapNews | Exception | None) -> MapNews | None:
        if isinstance(news, Exception):
            raise news
        if news is not None:
            self._taken_bytes += _size(news)
        return news

    def leave(self) -> None:
        """Nobody waits here for now."""
        self._tie.leave()

    def wake(self) -> bool:
        """Let `get` return; whether somebody waits in it. A signal handler may call this."""
        self._news.put(None)
        self._tie.look_up()
        return self._waiting

    def put(self, message: ServerToClient | Exception) -> None:
        """From whoever reads: it is kept, and never waited for."""
        if isinstance(message, MapTaken):
            self._taken(message.upto)
            self._news.put(None)  # whoever waits may have more arguments
        elif isinstance(message, (MapUpdate, MapResults, MapRecord, Refused)):
            self._note(message)
            if self._abandoned:
                return
            self._came_bytes += _size(message)
            self._news.put(message)
            if self._came_bytes - self._taken_bytes > _QUEUED_BYTES and not self._waiting and self.id:
                self.paused = True
                self._tie.pause(self)
        elif isinstance(message, Exception):
            self._news.put(message)
        if self.told is not None:
            self.told()

    def _note(self, message: MapNews) -> None:
        """From where to go on after a break."""
        if isinstance(message, MapResults):
            self._cursor = message.cursor
        elif isinstance(message, MapRecord):
            self._texts[message.attempt] = message.at
        elif isinstance(message, MapUpdate):
            self.view, self.over = message.map, message.map.state in TERMINAL
            self._taken(message.map.taken)
            while self.over and self._held:
                self._drop()
            if not self.id:
                self._get_name(message.map.id)
            while self._when_named:
                self._when_named.pop()(message.map)

    def named(self, act: Callable[[MapView], None]) -> None:
        """Do this once the control plane has said what the map is called; for whoever reads."""
        act(self.view) if self.view is not None else self._when_named.append(act)

    def _get_name(self, map_id: str) -> None:
        """The control plane has it: what waited for its name goes."""
        with self._order:
            self.id = map_id
            if self.over:
                return
            for batch in self._held:
                self._tie.tell(self._args(batch))
            if self._cancelled:
                self._tie.tell(CancelMap(n=self.n, map=map_id))

    # ---------------------------------------------------------------- its connection

    def openings(self) -> list[ClientMessage]:
        """What asks for this again on a new connection: from where it was. Arguments go in messages of their own."""
        if not self.id:
            first = self._held[0] if self._held else _Batch(first=0, args=(), blobs=(), last=True, size_bytes=0)
            return [
                OpenMap(
                    n=self.n,
                    key=self._key,
                    job=self._job,
                    map=self._spec,
                    args=first.args,
                    blobs=first.blobs,
                    last=first.last,
                    ordered=self.ordered,
                )
            ]
        messages: list[ClientMessage] = [
            FollowMap(n=self.n, map=self.id, ordered=self.ordered, after=self._cursor, texts=dict(self._texts)),
            *map(self._args, tuple(self._held)),
        ]
        if self._cancelled:
            messages.append(CancelMap(n=self.n, map=self.id))
        elif not self._held:
            messages += self.still_here()
        return messages

    def still_here(self) -> list[MapArgs]:
        """On a new connection: this process has more calls to send, be it in an hour. Its map waits as long as it is
        connected.
        """
        return [] if self._last_given or self.over else [MapArgs(n=self.n, map=self.id, first=0)]

    def open_again(self) -> None:
        """Ask for it once more, after a refusal whose cause is gone."""
        for message in self.openings():
            self._tie.tell(message)

    def cancel(self) -> None:
        """A wish to end the map: what waits is dropped, what runs is interrupted. Its last state says that it is."""
        if not self.over and not self._cancelled:
            self._cancelled = self._last_given = True
            if self.id:
                self._tie.tell(CancelMap(n=self.n, map=self.id))

    def abandon(self) -> None:
        """Cancel it; nobody takes anything more."""
        self._abandoned = True
        self.told = None
        self.cancel()


def _size(message: MapNews) -> int:
    if isinstance(message, MapResults):
        return _MESSAGE_BYTES + sum(sum(map(len, run.data)) + 20 * len(run.data) for run in message.runs)
    return _MESSAGE_BYTES + (len(message.data) if isinstance(message, MapRecord) else 0)
