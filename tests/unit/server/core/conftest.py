"""Drives a plane by hand: workers that say what the test wants, clients, and time."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import pytest

from gpulayer.protocol.messages import (
    Assign,
    Finished,
    Heartbeat,
    HeldAttempt,
    HeldSession,
    Hello,
    NotStarted,
    Released,
    SessionEnded,
    Started,
    Welcome,
    WorkerMessage,
)
from gpulayer.protocol.types import (
    PROTOCOL_VERSION,
    CellSpec,
    Device,
    Inventory,
    JobSpec,
    JobView,
    Outcome,
    Requirements,
    State,
)
from gpulayer_server.core.events import (
    CancelWanted,
    Effects,
    Event,
    ReleaseWanted,
    Submission,
    Submitted,
    Tick,
    WorkerConnected,
    WorkerGone,
    WorkerSaid,
)
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Attempt, Snapshot
from gpulayer_server.core.views import waiting_view


class World:
    """A plane, its clock, and everything that its effects asked for."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.plane = Plane(epoch=1, now=self.now)
        self.out = Effects()  # of the last event
        self._requests = 0
        self._conns = 0

    def do(self, event: Event) -> Effects:
        """One event, now."""
        self.out = self.plane.handle(event, self.now)
        return self.out

    # ---------------------------------------------------------------- workers

    def join(
        self,
        name: str = "box",
        *,
        slots: int = 2,
        gpus: int = 0,
        vram_bytes: int | None = None,
        ram_bytes: int = 1,
        attempts: tuple[HeldAttempt, ...] = (),
        sessions: tuple[str, ...] = (),
        acked: dict[str, int] | None = None,
        nonce: str = "n1",
        protocol: int = PROTOCOL_VERSION,
        worker_id: str = "",
        local: bool = False,
    ) -> int:
        """A hello on a new connection; gives the connection."""
        self._conns += 1
        devices = tuple(Device(uuid=f"{name}-gpu{i}", kind="cuda", index=i, vram_bytes=vram_bytes) for i in range(gpus))
        inventory = Inventory(
            host=name, os="linux", arch="x", cpu_cores=1, ram_bytes=ram_bytes, python="3", devices=devices
        )
        hello = Hello(
            protocol=protocol,
            worker_id=worker_id or f"id-{name}",
            nonce=nonce,
            name=name,
            version="0",
            slots=slots,
            inventory=inventory,
            local=local,
            attempts=attempts,
            sessions=tuple(HeldSession(session=session) for session in sessions),
        )
        self.do(WorkerConnected(conn=self._conns, hello=hello, acked=acked or {}))
        return self._conns

    def leave(self, conn: int) -> Effects:
        """A connection closes."""
        return self.do(WorkerGone(conn=conn))

    def say(self, conn: int, *messages: WorkerMessage, acked: int = 0) -> Effects:
        """A worker's frame; of each attempt whose end it tells so many bytes are here."""
        ended = {message.attempt: acked for message in messages if isinstance(message, Finished)}
        return self.do(WorkerSaid(conn=conn, messages=messages, acked=ended))

    def start(self, conn: int, attempt: str) -> Effects:
        """The program runs."""
        return self.say(conn, Started(attempt=attempt))

    def finish(self, conn: int, attempt: str, state: State = State.SUCCEEDED, *, end: int = 10) -> Effects:
        """The program ended, and all of its bytes are here."""
        return self.say(conn, Finished(attempt=attempt, end_offset=end, outcome=Outcome(state=state)), acked=end)

    def release(self, conn: int, attempt: str) -> Effects:
        """No process is left."""
        return self.say(conn, Released(attempt=attempt))

    def give_back(self, conn: int, attempt: str) -> Effects:
        """It never started."""
        return self.say(conn, NotStarted(attempt=attempt, reason="no room"))

    def session_ended(self, conn: int, session: str, reason: str = "its kernel died") -> Effects:
        """No process of the session is left."""
        return self.say(conn, SessionEnded(session=session, reason=reason))

    # ---------------------------------------------------------------- clients

    def submit(
        self,
        key: str = "",
        *,
        owner: str = "ann",
        payload: str = "p",
        session: str | None = None,
        retries: int = 0,
        gpus: int = 0,
        worker: str | None = None,
        idle_timeout_s: float = 1800.0,
    ) -> Any:
        """A new job's view, or the problem."""
        spec = JobSpec(
            cell=CellSpec(code="1", session=session, idle_timeout_s=idle_timeout_s),
            requirements=Requirements(accelerator="cuda" if gpus else None, devices=gpus, worker=worker),
            retries=retries,
        )
        return self.ask(spec, key, owner=owner, payload=payload)

    def ask(
        self,
        spec: JobSpec,
        key: str = "",
        *,
        owner: str = "ann",
        payload: str = "p",
        ended: dict[str, State] | None = None,
    ) -> Any:
        """A new job's view, or the problem."""
        self._requests += 1
        submission = Submission(key=key or f"key{self._requests}", payload_hash=payload, spec=spec)
        self.do(Submitted(request=self._requests, owner=owner, submission=submission, ended=ended or {}))
        return self._reply()

    def cancel(self, job: str, *, give_up: bool = False) -> Any:
        """The job's view, or the problem."""
        self._requests += 1
        self.do(CancelWanted(request=self._requests, job=job, give_up=give_up))
        return self._reply()

    def let_go(self, session: str, owner: str = "ann") -> Any:
        """Release a session: None, or the problem."""
        self._requests += 1
        self.do(ReleaseWanted(request=self._requests, owner=owner, name=session))
        return self._reply()

    def _reply(self) -> Any:
        [(request, reply)] = self.out.replies
        assert request == self._requests
        return reply

    # ---------------------------------------------------------------- time

    def wait(self, seconds: int) -> None:
        """Time passes, a tick a second; who is connected is heard. `out` gathers it all."""
        gathered = Effects()
        for _ in range(seconds):
            self.now += 1
            for conn in list(self.plane.by_conn):
                self.say(conn, Heartbeat())
            out = self.do(Tick())
            gathered.rows |= out.rows
            gathered.sends += out.sends
            gathered.closes += out.closes
            gathered.marks += out.marks
            gathered.changed |= out.changed
        self.out = gathered

    # ---------------------------------------------------------------- what is so

    def state(self, job: str) -> State:
        """The state of a live job."""
        return self.plane.jobs[job].tasks[0].state

    def attempt(self, job: str) -> Attempt:
        """The current attempt of a live job."""
        attempt = self.plane.jobs[job].tasks[0].attempt
        assert attempt is not None
        return attempt

    def view(self, job: str) -> JobView:
        """A live job as clients see it."""
        return waiting_view(self.plane, self.plane.jobs[job], self.now)

    def sent(self, kind: type[Any]) -> list[Any]:
        """The messages of a kind that the last event sent."""
        return [message for _, message in self.out.sends if isinstance(message, kind)]

    def assigned(self) -> list[str]:
        """The jobs that the last event assigned."""
        return [message.job for message in self.sent(Assign)]

    def verdict(self) -> Any:
        """The only verdict of the last welcome."""
        [welcome] = self.sent(Welcome)
        [verdict] = welcome.verdicts
        return verdict

    def running(self, **options: Any) -> tuple[int, str, str]:
        """A worker with one job that runs: connection, job, attempt."""
        conn = self.join()
        job = self.submit(**options).id
        attempt = self.attempt(job).id
        self.start(conn, attempt)
        return conn, job, attempt

    def reborn(self, *, succeeded: Iterable[str] = ()) -> Plane:
        """A plane of the next epoch, from what the rows hold of this one. `succeeded`: jobs of the past that did."""
        plane = self.plane
        workers = copy.deepcopy(list(plane.workers.values()))
        for worker in workers:
            worker.conn, worker.nonce = None, ""
            for holder in list(worker.claims):
                worker.free(holder)
        self.plane = Plane(
            epoch=plane.epoch + 1,
            now=self.now,
            snapshot=Snapshot(
                jobs=copy.deepcopy(list(plane.jobs.values())),
                attempts=copy.deepcopy(list(plane.attempts.values())),
                sessions=copy.deepcopy(list(plane.sessions.values())),
                ended_sessions=dict(plane.ended_sessions),
                workers=workers,
                succeeded=set(succeeded),
                last_job_n=plane.last_job_n,
            ),
        )
        return self.plane


@pytest.fixture
def world() -> World:
    """A plane that knows nobody yet."""
    return World()
