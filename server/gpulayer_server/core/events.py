"""Events go into the plane, effects come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from gpulayer.protocol.messages import Hello, ServerMessage, WorkerMessage
from gpulayer.protocol.types import JobSpec, JobView, Problem
from gpulayer_server.core.state import Attempt, Job, Session, Task, Worker


@dataclass(frozen=True, kw_only=True)
class WorkerConnected:
    """A worker's first message. `acked`: the lengths of the streams of the attempts that it declares."""

    conn: int
    hello: Hello
    acked: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class WorkerGone:
    """A worker's connection is closed."""

    conn: int


@dataclass(frozen=True, kw_only=True)
class WorkerSaid:
    """Any later message but `Output`. `acked`: the length of the named attempt's stream."""

    conn: int
    message: WorkerMessage
    acked: int = 0


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A client's new job. `request` names where the reply goes."""

    request: int
    owner: str
    key: str
    payload_hash: str
    spec: JobSpec


@dataclass(frozen=True, kw_only=True)
class CancelWanted:
    """A client's wish to cancel."""

    request: int
    job: str
    give_up: bool = False


@dataclass(frozen=True, kw_only=True)
class ReleaseWanted:
    """A client's wish to end a session."""

    request: int
    owner: str
    name: str


@dataclass(frozen=True, kw_only=True)
class LocalWorkerExpected:
    """A local worker is being started: it counts as known until `until`."""

    until: float


@dataclass(frozen=True, kw_only=True)
class ShutdownWanted:
    """The control plane is about to end: its local workers end with it."""

    reason: str


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time passes."""


Event: TypeAlias = (
    WorkerConnected
    | WorkerGone
    | WorkerSaid
    | Submitted
    | CancelWanted
    | ReleaseWanted
    | LocalWorkerExpected
    | ShutdownWanted
    | Tick
)

Row: TypeAlias = Job | Task | Attempt | Session | Worker


@dataclass(kw_only=True)
class Effects:
    """What one event asks of the shell: commit the rows, then everything else, in order."""

    rows: dict[tuple[str, str], Row] = field(default_factory=dict[tuple[str, str], Row])
    sends: list[tuple[int, ServerMessage]] = field(default_factory=list[tuple[int, ServerMessage]])
    replies: list[tuple[int, JobView | Problem | None]] = field(
        default_factory=list[tuple[int, JobView | Problem | None]]
    )
    closes: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    marks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # attempt, why it is truncated
    changed: set[str] = field(default_factory=set[str])  # jobs whose view is another now
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])  # the same, as records: one may be history by now
    fleet_changed: bool = False  # reasons of waiting jobs may be others now

    def put(self, *rows: Row) -> None:
        """Commit these rows, once each however often they are put."""
        for row in rows:
            self.rows[(type(row).__name__, row.id)] = row

    def send(self, conn: int | None, message: ServerMessage) -> None:
        """Send to a worker; to one that is not connected, nothing: its next hello tells."""
        if conn is not None:
            self.sends.append((conn, message))
