"""Events go into the plane, effects come out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from msgspec import Struct

from gpulayer.protocol.calls import CallRange, CallRun, MapSpec, MapView
from gpulayer.protocol.messages import Hello, ServerMessage, WorkerMessage
from gpulayer.protocol.types import JobSpec, JobView, Problem, State
from gpulayer_server.core.state import Attempt, Job, JobEnd, Limits, MapState, Session, Task, Worker


class WorkerConnected(Struct, frozen=True, kw_only=True):
    """A worker's first message. `acked`: the lengths of the streams of the attempts that it declares."""

    conn: int
    hello: Hello
    acked: dict[str, int]


class WorkerGone(Struct, frozen=True, kw_only=True):
    """A worker's connection is closed."""

    conn: int


class WorkerSaid(Struct, frozen=True, kw_only=True):
    """The later messages of one frame, in order, but `Output`. `acked`: the lengths of the streams that it says end."""

    conn: int
    messages: tuple[WorkerMessage, ...]
    acked: dict[str, int] = {}


class Submission(Struct, frozen=True, kw_only=True):
    """A new job, under its owner's key."""

    key: str
    payload_hash: str
    spec: JobSpec


class Submitted(Struct, frozen=True, kw_only=True):
    """A client's new job. `request` names where the reply goes.

    `ended`: how the jobs ended that it is to run after; those that live are not among them.
    """

    request: int
    owner: str
    submission: Submission
    ended: dict[str, State] = {}


class SubmittedBatch(Struct, frozen=True, kw_only=True):
    """Many of a client's new jobs: all are taken, or none. `more` of them follow: they are placed with those."""

    request: int
    owner: str
    submissions: tuple[Submission, ...]
    more: bool = False
    ended: dict[str, State] = {}


class CancelWanted(Struct, frozen=True, kw_only=True):
    """A client's wish to cancel."""

    request: int
    job: str
    give_up: bool = False


class ReleaseWanted(Struct, frozen=True, kw_only=True):
    """A client's wish to end a session."""

    request: int
    owner: str
    name: str


class MapOpened(Struct, frozen=True, kw_only=True):
    """A client's new map, with its first calls. `payload_hash`, of the packed spec, tells whose runners it may use."""

    request: int
    owner: str
    key: str
    payload_hash: str
    spec: JobSpec
    map: MapSpec
    args: tuple[bytes, ...] = ()
    blobs: tuple[str, ...] = ()
    last: bool = False
    gone: str = ""  # of an object whose job ended, as the store has it: why it is there no more


class ArgsCame(Struct, frozen=True, kw_only=True):
    """More calls of a map. The reply is its view once they are durable."""

    request: int
    map: str
    first: int
    args: tuple[bytes, ...] = ()
    blobs: tuple[str, ...] = ()
    last: bool = False


class MapCancelWanted(Struct, frozen=True, kw_only=True):
    """A client's wish to end a map."""

    request: int
    map: str


class CallsEndWanted(Struct, frozen=True, kw_only=True):
    """A client's wish to end the runners of a job of calls, once their calls are done."""

    request: int
    job: str


class LocalWorkerExpected(Struct, frozen=True, kw_only=True):
    """A local worker is being started: it counts as known until `until`."""

    until: float


class ShutdownWanted(Struct, frozen=True, kw_only=True):
    """The control plane is about to end: its local workers end with it."""

    reason: str


class LimitsSet(Struct, frozen=True, kw_only=True):
    """How much of the fleet each owner's jobs may hold at once, from now on; who has no limit is not there."""

    limits: dict[str, Limits]


class Tick(Struct, frozen=True, kw_only=True):
    """Time passes. `attended`: maps of which calls are yet to come, and whose clients are connected."""

    attended: frozenset[str] = frozenset()


Event: TypeAlias = (
    WorkerConnected
    | WorkerGone
    | WorkerSaid
    | Submitted
    | SubmittedBatch
    | CancelWanted
    | ReleaseWanted
    | MapOpened
    | ArgsCame
    | MapCancelWanted
    | CallsEndWanted
    | LocalWorkerExpected
    | ShutdownWanted
    | LimitsSet
    | Tick
)

#: A job, the names of many, a map, nothing to be said, or why it can't be.
Answer: TypeAlias = JobView | MapView | tuple[str, ...] | Problem | None


class ArgsRow(Struct, frozen=True, kw_only=True):
    """Arguments of calls that stand one behind the other, as they are stored. The plane keeps none of their bytes."""

    n: int  # of the job
    k: int  # of the map in it
    first: int
    args: tuple[bytes, ...]
    blobs: tuple[str, ...] = ()


class ResultsRow(Struct, frozen=True, kw_only=True):
    """Results as they are stored."""

    n: int
    k: int
    run: CallRun


class Dispatch(Struct, frozen=True, kw_only=True):
    """Send these calls to the runner of an attempt: the shell adds their arguments, which are committed by then."""

    attempt: str
    ranges: tuple[CallRange, ...]


Row: TypeAlias = Job | JobEnd | Task | Attempt | Session | Worker | MapState | ArgsRow | ResultsRow


@dataclass(kw_only=True)
class Effects:
    """What one event asks of the shell: commit the rows, then everything else, in order."""

    rows: dict[int, Row] = field(default_factory=dict[int, Row])  # by identity: of each record there is one
    sends: list[tuple[int, ServerMessage | Dispatch]] = field(
        default_factory=list[tuple[int, "ServerMessage | Dispatch"]]
    )
    replies: list[tuple[int, Answer]] = field(default_factory=list[tuple[int, Answer]])
    closes: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    marks: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])  # attempt, why it is truncated
    changed: set[str] = field(default_factory=set[str])  # jobs whose view is another now
    jobs: dict[str, Job] = field(default_factory=dict[str, Job])  # the same, as records: one may be history by now
    maps: set[str] = field(default_factory=set[str])  # maps whose view is another now
    results: list[tuple[str, CallRun]] = field(default_factory=list[tuple[str, CallRun]])  # accepted, by map
    sampled: set[str] = field(default_factory=set[str])  # workers of which it is known anew how they fare
    fleet_changed: bool = False  # reasons of waiting jobs may be others now

    def put(self, *rows: Row) -> None:
        """Commit these rows, once each however often they are put."""
        for row in rows:
            self.rows[id(row)] = row

    def send(self, conn: int | None, message: ServerMessage | Dispatch) -> None:
        """Send to a worker; to one that is not connected, nothing: its next hello tells."""
        if conn is not None:
            self.sends.append((conn, message))
