"""The shell around the plane: a clock, the store, connections. It decides nothing.

One event's effects are a unit: its rows commit, then its messages leave; units leave in the order of their events.
A failed commit rebuilds the plane from the store and answers 507.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from gpulayer.protocol.calls import MapView
from gpulayer.protocol.types import JobSpec, JobView, Problem, State
from gpulayer.source.blobs import Blobs
from gpulayer.source.partial import Partials
from gpulayer_server.callsdata import CallsData
from gpulayer_server.clock import Clock
from gpulayer_server.core.calls.views import map_view
from gpulayer_server.core.events import Effects, Event, LimitsSet, Tick, WorkerConnected, WorkerGone
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import JobKey, Limits, Settings
from gpulayer_server.datafolder import DataFolder
from gpulayer_server.garbage import Garbage
from gpulayer_server.history import History
from gpulayer_server.maptelling import MapTelling
from gpulayer_server.reading import Reading
from gpulayer_server.retention import Retention
from gpulayer_server.senders import Senders
from gpulayer_server.sending import Sending, Unit, WorkerLink
from gpulayer_server.settings import read_settings
from gpulayer_server.specs import Specs
from gpulayer_server.store.committer import Committer
from gpulayer_server.store.database import Store, StoreError
from gpulayer_server.store.rows import Op, encoded
from gpulayer_server.store.streams import Streams
from gpulayer_server.submitting import MOST_JOBS, Batch, too_many
from gpulayer_server.telling import Follower, Telling, Watcher

log = logging.getLogger("gpulayer.server")

Reply = Callable[[JobView | Problem | None], None]
BatchReply = Callable[[list[str] | Problem], None]


class Shell(Reading):
    """Carries out what the plane decides. All methods run on the loop's thread."""

    def __init__(self, folder: DataFolder, settings: Settings | None = None):
        self.folder = folder
        self.settings = settings or read_settings(folder.path)
        self.clock = Clock()
        self.store = Store(folder.path / "store.db")
        self.streams = Streams(folder.path / "streams")
        self.blobs = Blobs(folder.path / "blobs")
        self.partials = Partials(self.blobs)
        self.epoch = self.store.raise_epoch()
        self._calls = CallsData(self.args)
        self.specs = Specs()
        self._drop_args: list[Op] = []  # of maps that ended, at the next tick
        self.plane = self._load(names=0)
        self.links: dict[int, WorkerLink] = {}
        self._sending = Sending(self.links, self._calls, self.streams)
        self._telling = Telling(self)
        self.maps = MapTelling(self.waiting_map_views, self.streams)
        self._garbage = Garbage()
        self._history = History(self, self.store, self.streams, self.settings)
        self.senders = Senders()
        self.clients: set[object] = set()  # the clients that are connected: an embedded control plane stays for them
        self.coming: dict[JobKey, list[Callable[[], None]]] = {}  # keys of a batch on its way in, and who waits for it
        self._batches: set[asyncio.Task[None]] = set()
        self._batch_turn = asyncio.Lock()
        self._conns = 0
        self._requests: dict[int, Callable[[Any], None]] = {}
        self._request_n = 0
        self._outbox: deque[Unit] = deque()
        self._decided: list[list[Op]] = []  # units that the committer has not been given yet
        self._committing = 0
        self._failing = False
        self._gathering = False  # a frame is looked at: `frame` commits
        self._unseen: Unit | None = None  # the last one, whose maps can still be looked at as they are
        self._limits: dict[str, Limits] = {}
        self._loop = asyncio.get_running_loop()
        self._committer = Committer(self.store, self._committed_on_thread)
        self._ticker = self._loop.create_task(self._tick())
        self._retention = Retention(folder.path, self.blobs, self.partials, self.settings.keep_blobs_bytes)

    # ---------------------------------------------------------------- events in

    def handle(self, event: Event) -> None:
        """Let the plane handle an event, and carry out what follows in its turn."""
        if self._failing:  # the plane is being rebuilt: workers declare everything again, clients were told
            if isinstance(event, WorkerConnected) and event.conn in self.links:
                self.links[event.conn].drop("the control plane is recovering from a failed write")
            return
        if self._unseen is not None:
            self._see(self._unseen)
        effects = self.plane.handle(event, self.clock.now())
        ops = encoded(effects.rows.values())
        unit = Unit(effects, bool(ops))
        if self.followers:
            unit.views = self._telling.views(effects.jobs)
        if effects.maps:
            unit.ended = self._calls.take(effects.rows.values())
            self._unseen = unit
        if not ops and not self._outbox:
            self._release(unit)
            self._flush()
            return
        self._outbox.append(unit)
        if ops:
            self._decide(ops)

    def limit(self, limits: dict[str, Limits]) -> None:
        """From now on owners may hold so much of the fleet at once; who has no limit is not there."""
        self._limits = limits
        self.handle(LimitsSet(limits=limits))

    def frame(self, take: Callable[[], None]) -> None:
        """Let what `take` brings, such as all messages of a frame, be one transaction, which begins at once."""
        self._gathering = True
        try:
            take()
        finally:
            self._gathering = False
            self.commit()

    def _decide(self, ops: list[Op]) -> None:
        self._committing += 1
        if not self._decided and not self._gathering:
            self._loop.call_soon(self.commit)
        self._decided.append(ops)

    def came(self) -> None:
        """Many jobs came in: their rows may be written, and nobody needs to look whether they are garbage."""
        self.commit()
        self._garbage.look(len(self.plane.tasks))

    def commit(self) -> None:
        """Let what was decided until now, such as by all of one frame, be one transaction; else the next turn does."""
        decided, self._decided = self._decided, []
        if not decided:
            return
        if self._committing > len(decided) or self._failing:
            self._committer.put(decided)
            return
        try:
            if not self._committer.at_once(decided):
                self._committer.put(decided)
                return
        except StoreError as error:
            self._committed(len(decided), error)
        else:
            self._committed(len(decided), None)

    def request(self, make: Callable[[int], Event], reply: Callable[[Any], None]) -> None:
        """Handle an event that is answered: `reply` is called once, when what it says is committed."""
        if self._failing:
            reply(_full("the control plane is recovering from a failed write"))
            return
        self._request_n += 1
        self._requests[self._request_n] = reply
        self.handle(make(self._request_n))

    def write(self, ops: list[Op], reply: Reply) -> None:
        """Commit rows that are not the plane's, as a unit; `reply` is called once: None, or why nothing was written."""
        if self._failing:
            reply(_full("the control plane is recovering from a failed write"))
            return
        self._request_n += 1
        self._requests[self._request_n] = reply
        self._outbox.append(Unit(Effects(replies=[(self._request_n, None)]), True))
        self._decide(ops)

    def after_commits(self, read: Callable[[], None]) -> None:
        """Call `read` when everything decided so far is committed: what it sees can't be taken back."""
        if not self._outbox:
            read()
            return
        self._request_n += 1
        self._requests[self._request_n] = lambda _: read()
        unit = Unit(Effects(replies=[(self._request_n, None)]), False)
        self._outbox.append(unit)

    def connect(self, link: WorkerLink) -> int:
        """A number for a new worker's connection."""
        self._conns += 1
        self.links[self._conns] = link
        return self._conns

    def disconnect(self, conn: int) -> None:
        """A worker's connection is closed."""
        if self.links.pop(conn, None) is not None:
            self.handle(WorkerGone(conn=conn))

    def output(self, conn: int, attempt: str, offset: int, data: bytes) -> int | None:
        """Bytes of a stream; the length that is here now, or None for one that this worker may not write."""
        if self._failing or not self.plane.accepts_output(conn, attempt):
            return None
        job = self.plane.attempts[attempt].task.rpartition("/")[0]
        before = self.streams.visible(attempt) if self.maps.follows(job) else 0
        length = self.streams.append(attempt, offset, data)
        held = self.plane.attempts[attempt]
        task = self.plane.tasks.get(held.task)
        if task is not None:
            self._telling.grew(task.job, task.index)
        self.maps.grew(job, attempt, before)
        return length

    def submit_batch(self, owner: str, jobs: Sequence[tuple[str, JobSpec]], reply: BatchReply) -> None:
        """Take many jobs, given with their keys, all or none: `reply` is called once, with their ids in order.

        A key that made a job before gives that one's id. Nothing is decided for longer than some milliseconds at once.
        """
        if len(jobs) > MOST_JOBS:
            reply(too_many(len(jobs)))
            return
        task = asyncio.ensure_future(self._one_batch(Batch(self, owner, jobs, reply)))
        self._batches.add(task)
        task.add_done_callback(self._batches.discard)

    async def _one_batch(self, batch: Batch) -> None:
        async with self._batch_turn:
            await batch.run()

    # ---------------------------------------------------------------- looking

    def follow(self, job: str, follower: Follower, index: int | None = None) -> None:
        """Tell a follower of each change of a job, or of one task of it, and of each growth of its stream."""
        self._telling.follow(job, follower, index)

    def unfollow(self, job: str, follower: Follower) -> None:
        """No more of that."""
        self._telling.unfollow(job, follower)

    def told_map_view(self, name: str) -> MapView | None:
        """A map as those know it who follow it: without what is decided and not told yet."""
        pending = [unit.effects for unit in self._outbox if name in unit.effects.maps]
        view = self.map_view(name)
        if not pending or view is None:
            return view
        stored = self.stored_map_view(name)
        untold = sum([len(run.codes) for each in pending for of, run in each.results if of == name])
        return stored if stored is None or stored.ended_at is not None else replace(stored, done=view.done - untold)

    @property
    def followers(self) -> dict[str, dict[int | None, set[Follower]]]:
        """Who follows which job, by the index of the task."""
        return self._telling.followers

    @property
    def watchers(self) -> set[Watcher]:
        """Who watches the whole fleet."""
        return self._telling.watchers

    def ends_of(self, names: Iterable[str]) -> dict[str, State]:
        """How those of these jobs ended that do not live any more; one whose rows are about to go is not there."""
        return {name: state for name, state in super().ends_of(names).items() if name not in self._history.going}

    # ---------------------------------------------------------------- effects out

    def _committed_on_thread(self, count: int, error: StoreError | None) -> None:
        self._loop.call_soon_threadsafe(self._committed, count, error)

    def _committed(self, count: int, error: StoreError | None) -> None:
        self._committing -= count
        if error is not None:
            self._fail(error)
            return
        self._sending.leave(self._outbox, count)  # while workers begin, clients are told
        while self._outbox and (count > 0 or not self._outbox[0].commits):
            unit = self._outbox.popleft()
            count -= unit.commits
            self._release(unit)
        self._flush()

    def _see(self, unit: Unit) -> None:
        """Look at its maps: after the next event they would be others."""
        self._unseen = None
        views = {name: map_view(self.plane, name) for name in unit.effects.maps}
        unit.maps = {name: view for name, view in views.items() if view is not None}

    def _release(self, unit: Unit) -> None:
        self._sending.send(unit)
        effects = unit.effects
        if unit.commits and self.followers:
            self._telling.tell_late(effects, unit.views)
        for request, answer in effects.replies:
            self._requests.pop(request)(answer)
        for conn, reason in effects.closes:
            link = self.links.get(conn)
            if link is not None:
                link.drop(reason)
        self._telling.tell(effects, unit.views)
        if unit is self._unseen:
            self._see(unit)
        if unit.maps or effects.results or effects.fleet_changed:
            self._tell_of_maps(unit)

    def _tell_of_maps(self, unit: Unit) -> None:
        self.maps.tell(unit.effects, unit.maps)
        for state in unit.ended:  # all that was to be sent of it was
            self._calls.forget(state.id)
            self._drop_args.append(("drop_args", (state.n, state.k)))

    def _flush(self) -> None:
        """What was said to clients and runners leaves, in few frames."""
        self._sending.flush()
        self.maps.flush()

    def _fail(self, error: StoreError) -> None:
        """Nothing of what waits happened. Once the committer has given all of it back, begin again from the store."""
        if not self._failing:
            log.error("a commit failed, the plane is rebuilt from the store: %s", error)
            self._failing = True
            self.commit()
            problem = _full(str(error))
            while self._outbox:
                for request, _ in self._outbox.popleft().effects.replies:
                    self._requests.pop(request)(problem)
            for link in list(self.links.values()):
                link.drop("the control plane is recovering from a failed write")
        if self._committing == 0:
            expected_until = self.plane.local_expected_until  # a local worker may still be on its way
            self._unseen = None
            self.plane = self._load(names=self.plane.names)
            self.plane.local_expected_until = expected_until
            self._committer.reset()
            self._failing = False
            self.handle(LimitsSet(limits=self._limits))

    def _load(self, *, names: int) -> Plane:
        snapshot = self.store.load()
        self._calls.load(snapshot.maps)
        self._drop_args = [("drop_args", key) for key in self.store.maps.left_over()]
        plane = Plane(epoch=self.epoch, now=self.clock.now(), snapshot=snapshot, settings=self.settings)
        plane.names = names
        return plane

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.handle(Tick(attended=self.senders.attended(self.plane.calls.incomplete)))
            if self._drop_args:
                ops, self._drop_args = self._drop_args, []
                self.write(ops, lambda _: None)
            self._history.look(self.clock.now())
            self._garbage.look(len(self.plane.tasks))

    async def close(self) -> None:
        """Commit what waits and close everything."""
        self._ticker.cancel()
        for batch in self._batches:
            batch.cancel()
        self._telling.close()
        self.maps.close()
        for link in list(self.links.values()):
            link.drop("the control plane ends")
        self.commit()
        await asyncio.to_thread(self._committer.close)
        await asyncio.to_thread(self._retention.close)
        self.streams.close()
        self.store.close()
        self.folder.close()


def _full(detail: str) -> Problem:
    return Problem(
        status=507, code="store_failed", title="the control plane could not write; nothing was done", detail=detail
    )
