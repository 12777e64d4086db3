"""The client's connection: one thread reads, and comes back by itself from where it was."""

from __future__ import annotations

import itertools
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from gpulayer._version import __version__
from gpulayer.client.errors import ControlPlaneError
from gpulayer.client.maps import MapSubscription
from gpulayer.client.reading import Turn
from gpulayer.client.subscriptions import Subscription
from gpulayer.client.tls import tls_context
from gpulayer.client.wire import Wire, WireClosed
from gpulayer.protocol.calls import EndCalls, MapSpec
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.messages import (
    COMM_BYTES,
    CancelJob,
    ClientHello,
    ClientMessage,
    ClientWelcome,
    CommKind,
    ProtocolError,
    Refused,
    ServerToClient,
    ToKernel,
    Unfollow,
    encode,
    to_client,
)
from gpulayer.protocol.types import PROTOCOL_VERSION, JobSpec

T = TypeVar("T", Subscription, MapSubscription)


def _frames(subscriptions: Sequence[Subscription | MapSubscription]) -> list[list[ClientMessage]]:
    """What asks for everything again: one frame, and one for each message that carries arguments."""
    asked = [subscription.openings() for subscription in subscriptions]
    first = [messages[0] for messages in asked]
    return [[*first], *([message] for messages in asked for message in messages[1:])] if first else []


class Connection:
    """A client's tie to the control plane, over all of its restarts."""

    def __init__(self, find: Callable[[], Endpoint]):
        self._find = find
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()
        self._subscriptions: dict[int, Subscription | MapSubscription] = {}
        self._paused: weakref.WeakSet[MapSubscription] = weakref.WeakSet()  # whose news nobody takes for now
        self._wire: Wire | None = None  # on which the control plane has answered
        self._newest: Wire | None = None
        self._ready = threading.Event()
        self._settled = threading.Event()  # it is ready, or its thread has ended
        self._closed = threading.Event()
        self._turn = Turn()
        self._later: deque[Callable[[], None]] = deque()
        self.epoch = 0
        self._takes_comms = False
        self.endpoint: Endpoint | None = None
        self.away = ""  # why nobody answers, while nobody does
        self._thread: threading.Thread | None = None

    def submit(self, spec: JobSpec, key: str) -> Subscription:
        """Submit a job and follow it."""
        return self._open(Subscription(next(self._numbers), spec, key, source=self))

    def follow(
        self, job: str, *, attempt: str | None = None, offset: int = 0, index: int | None = None
    ) -> Subscription:
        """Follow a job, or its task `index`, from its first byte, or from byte `offset` of `attempt` on."""
        subscription = Subscription(next(self._numbers), job=job, index=index, source=self)
        subscription.attempt, subscription.offset = attempt, offset
        return self._open(subscription)

    def _open(self, subscription: T) -> T:
        with self._lock:  # held over both, or a welcome in between would ask for it too
            self._subscriptions[subscription.n] = subscription
            self._start()
            for message in subscription.openings():
                self._send(message)
        return subscription

    # ---------------------------------------------------------------- maps

    def open_map(
        self,
        job: bytes,
        spec: MapSpec,
        key: str,
        args: Sequence[bytes],
        blobs: Sequence[str] = (),
        *,
        last: bool,
        ordered: bool = True,
        told: Callable[[], None] | None = None,
    ) -> MapSubscription:
        """A new map, with its first calls, and follow it.

        Arguments:
            job: the packed `JobSpec`.
            spec: how its calls are run.
            key: the same gives the same map.
            args: packed, of its first calls; `blobs`: that they name; `last`: there are no others.
            ordered: whether results come in the order of their calls.
            told: is called, by any thread, whenever there is news.
        """
        subscription = MapSubscription(next(self._numbers), self, key=key, job=job, spec=spec, ordered=ordered)
        subscription.told = told
        subscription.add(args, blobs, last=last)
        return self._open(subscription)

    def follow_map(
        self, map_id: str, *, ordered: bool = True, told: Callable[[], None] | None = None
    ) -> MapSubscription:
        """Follow a map from its first result, and its first text, on."""
        subscription = MapSubscription(next(self._numbers), self, map_id=map_id, ordered=ordered)
        subscription.told = told
        return self._open(subscription)

    def pause(self, subscription: MapSubscription) -> None:
        """Take nothing more of a map, until `resume`: it knows itself from where on."""
        with self._lock:
            self._subscriptions.pop(subscription.n, None)
            self._paused.add(subscription)
        if not subscription.over:
            self._send(Unfollow(n=subscription.n))

    def resume(self, subscription: MapSubscription) -> None:
        """Follow a map again from where it was, by another number: what was on its way for the old one is nobody's."""
        subscription.n, subscription.paused = next(self._numbers), False
        with self._lock:
            self._paused.discard(subscription)
        self._open(subscription)

    def close_map(self, subscription: MapSubscription, *, quietly: bool = False) -> None:
        """Take no more of a map, which goes on; `quietly`: all its results came, so it ends by itself there."""
        with self._lock:
            self._subscriptions.pop(subscription.n, None)
        self.leave()
        if not quietly and not subscription.over:
            self._send(Unfollow(n=subscription.n))

    def abandon_map(self, subscription: MapSubscription) -> None:
        """Cancel a map of which nobody takes anything more. The garbage collector may call this."""
        self.later(lambda: self._abandon(subscription))

    def later(self, act: Callable[[], None]) -> None:
        """Have whoever reads do this, soon. The garbage collector may call this, wherever it is."""
        self._later.append(act)
        self._turn.wake()

    def _abandon(self, subscription: MapSubscription) -> None:
        subscription.abandon()
        if subscription.over:
            with self._lock:
                self._subscriptions.pop(subscription.n, None)
        elif subscription.paused:
            self.resume(subscription)

    def end_calls(self, job: str) -> None:
        """Let the runners of a job of calls end once they are done."""
        self._send(EndCalls(n=next(self._numbers), job=job))

    def tell(self, message: ClientMessage) -> None:
        """Send, if there is a connection; with a new one everything that is followed is asked for again."""
        self._send(message)

    def leave(self, *, for_long: bool = False) -> None:
        """The calling thread waits for nothing now; `for_long`: nor will it soon, as far as is known."""
        self._turn.give_back(if_wanted=not for_long)

    # ---------------------------------------------------------------- jobs

    def unfollow(self, subscription: Subscription) -> None:
        """Take no more of a subscription."""
        with self._lock:
            self._subscriptions.pop(subscription.n, None)
        subscription.close()
        self._turn.give_back()
        if not subscription.over:
            self._send(Unfollow(n=subscription.n))

    def cancel(self, subscription: Subscription, *, give_up: bool = False) -> None:
        """A wish to cancel the job of a subscription; the answer comes on it."""
        self._send(CancelJob(n=subscription.n, job=subscription.job, give_up=give_up))

    def tell_widget(self, job: str, session: str | None, kind: CommKind, parts: list[bytes]) -> None:
        """Pass a page's word on to a widget of the job's cell; lost where anybody on the way is away.

        Any thread may call this, also while another one reads. Raises ValueError for what is too large.
        """
        size = sum(map(len, parts))
        if size > COMM_BYTES:
            raise ValueError(
                f"{size / 1e6:.1f} MB for a widget on a worker is too much: {COMM_BYTES / 1e6:.1f} MB at most"
            )
        if self._takes_comms:
            self._send(ToKernel(n=next(self._numbers), job=job, session=session, kind=kind, parts=tuple(parts)))

    def wait_ready(self, timeout_s: float) -> bool:
        """Whether the control plane answers, at the latest after `timeout_s`."""
        self._start()
        self._settled.wait(timeout_s)
        return self._ready.is_set()

    def read_here(self, timeout_s: float, wanted: Callable[[], bool]) -> bool:
        """Read in the calling thread, once or until `timeout_s`; False where another thread reads, or nobody can.

        From here on it has the turn to read, until it takes no more of a subscription. `wanted` is asked once nobody
        else reads: what the caller waits for may just have been read by another thread.
        """
        with self._turn.of_caller() as mine:
            wire, endpoint = self._wire, self.endpoint
            reads = False
            if mine and wire is not None and endpoint is not None:
                try:
                    if wanted():
                        self._receive(wire, endpoint, timeout_s)
                    reads = True
                except (WireClosed, OSError, ProtocolError) as error:
                    self.away = str(error)
                    wire.hang_up()  # the connection's own thread meets the same, and connects anew
        if not reads:
            self._turn.give_back()
        return reads

    def look_up(self) -> None:
        """Make whoever reads look up."""
        self._turn.wake()

    def close(self) -> None:
        """End the thread."""
        self._turn.give_back()
        with self._lock:
            self._closed.set()
            if self._newest is not None:
                self._newest.hang_up()
        if self._thread is not None:
            self._thread.join()
        self._turn.close()

    def _start(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._settled.clear()
            self._thread = threading.Thread(target=self._run, name="gpulayer-client", daemon=True)
            self._thread.start()

    def _send(self, message: ClientMessage) -> None:
        """Send now, if there is a connection: with a new one every subscription is asked for again."""
        with self._lock:
            if self._wire is None or not self._ready.is_set():
                return
            try:
                self._wire.send(encode([message]))
            except OSError:
                self._wire.hang_up()

    def _run(self) -> None:
        backoff_s = 0.05
        while not self._closed.is_set():
            try:
                self._once()
            except (WireClosed, OSError, ProtocolError) as error:
                self.away = str(error)
                if self._ready.is_set():
                    backoff_s = 0.05
            except ControlPlaneError as error:
                self._fail(error)
                self._settled.set()
                return
            finally:
                self._ready.clear()
            self._settled.clear()
            self._closed.wait(backoff_s * random.uniform(0.5, 1.5))
            backoff_s = min(2.0, backoff_s * 2)

    def _once(self) -> None:
        endpoint = self._find()
        wire = Wire(endpoint.url + "/v1/client", endpoint.token, tls=tls_context(endpoint))
        with self._lock:
            self._newest = wire
        try:
            wire.wakes_by(self._turn.wake_end)
            if not self._closed.is_set():
                wire.send(encode([ClientHello(protocol=PROTOCOL_VERSION, version=__version__)]))
            while not self._closed.is_set():
                with self._turn.of_thread():
                    self._receive(wire, endpoint, None)
        finally:
            with self._lock:
                self._wire = self._newest = None
            with self._turn.of_thread():  # nobody reads any more
                wire.close()

    def _receive(self, wire: Wire, endpoint: Endpoint, timeout_s: float | None) -> None:
        for data in wire.receive(timeout_s):
            for message in to_client(data):
                self._take(wire, endpoint, message)
        while self._later:
            self._later.popleft()()

    def _take(self, wire: Wire, endpoint: Endpoint, message: ServerToClient) -> None:
        if isinstance(message, ClientWelcome):
            with self._lock:
                self._wire, self.endpoint, self.epoch, self.away = wire, endpoint, message.epoch, ""
                self._takes_comms = message.comms
                self._ready.set()
                self._settled.set()
                here = [message for each in self._paused for message in each.still_here()]
                for frame in [*_frames(list(self._subscriptions.values())), *([here] if here else [])]:
                    wire.send(encode(frame))
        elif isinstance(message, Refused) and message.n == 0:
            raise ControlPlaneError(message.problem.line())
        else:
            with self._lock:
                subscription = self._subscriptions.get(message.n)
            if subscription is not None:
                subscription.put(message)
                if subscription.over and isinstance(subscription, MapSubscription):
                    with self._lock:
                        self._subscriptions.pop(message.n, None)

    def _fail(self, error: ControlPlaneError) -> None:
        """No control plane can be had: whoever waits is told, and the next request tries again."""
        self.away = str(error)
        with self._lock:
            waiting = list(self._subscriptions.values())
            self._subscriptions.clear()
        for subscription in waiting:
            subscription.put(error)
