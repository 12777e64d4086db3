"""What the plane knows. Only the plane changes it; everything here can be rebuilt from the store's rows."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gpulayer.protocol.types import TERMINAL, Device, JobSpec, Outcome, Reason, Requirements, State
from gpulayer_server.core.calls.state import MapState as MapState
from gpulayer_server.core.lifecycle import check_move
from gpulayer_server.core.machine import Claim as Claim
from gpulayer_server.core.machine import Worker as Worker
from gpulayer_server.core.machine import claim
from gpulayer_server.scheduling.wants import Line

if TYPE_CHECKING:
    from gpulayer_server.core.calls.pool import Pool

SessionKey = tuple[str, str]  # owner, name
#: Of so many sessions that ended by themselves it is kept why, for the next cell that names one.
ENDED_SESSIONS = 1000
JobKey = tuple[str, str]  # owner, idempotency key
_NOTHING = Requirements()


@dataclass(kw_only=True, slots=True)
class Attempt:
    """One try of a task on a worker: the fence. It holds its slot and devices until `released`."""

    id: str
    task: str
    n: int  # of its job
    index: int  # of its task
    number: int
    worker: str
    session: str | None
    devices: tuple[Device, ...]
    assigned_at: float
    started_at: float | None = None
    ended_at: float | None = None
    end_offset: int | None = None  # None also when it is over: it was lost, its stream ends with a mark
    over: bool = False  # its end is recorded; later words about it change nothing
    released: bool = False  # no process of it is left
    problem: str = ""  # why it was lost, or given back
    progress: str = ""

    @property
    def in_session(self) -> bool:
        """Whether it keeps its session from running another cell: a lost one until its processes are gone."""
        return self.session is not None and not self.released and (not self.over or self.end_offset is None)

    @property
    def holds_slot(self) -> bool:
        """An attempt in a session uses the session's slot."""
        return self.session is None and not self.released

    def claim(self, job: Job | None) -> Claim:
        """What it holds of its worker; without its job, only what its record tells."""
        if job is None:
            return Claim(devices=self.devices, job=self.task.rpartition("/")[0], since=self.assigned_at)
        spec = job.spec
        return claim(
            spec.requirements, self.devices, owner=job.owner, job=job.id, name=spec.name, since=self.assigned_at
        )


@dataclass(kw_only=True, slots=True)
class Task:
    """What is placed. `attempt` is the current or last one."""

    id: str
    job: str
    n: int  # of its job
    index: int
    state: State = State.QUEUED
    cancel_wanted: bool = False
    attempt: Attempt | None = None
    attempts: int = 0
    lost: int = 0  # attempts that were lost: what retries are counted against
    reasons: tuple[Reason, ...] = ()  # why it was rejected
    outcome: Outcome | None = None
    ended_at: float | None = None
    notes: tuple[str, ...] = ()
    tally: dict[State, int] | None = field(default=None, compare=False, repr=False)  # its job's, of one with many

    def move(self, new: State) -> None:
        """Change the state; raises `IllegalMove` for one that the table does not hold."""
        old = self.state
        check_move(self.id, old, new)
        self.state = new
        if self.tally is not None:
            self.tally[old] -= 1
            self.tally[new] = self.tally.get(new, 0) + 1

    @property
    def terminal(self) -> bool:
        """Whether the task will not change any more."""
        return self.state in TERMINAL

    @property
    def done(self) -> bool:
        """Whether it is terminal and no process of it is left."""
        return self.state in TERMINAL and (self.attempt is None or self.attempt.released)

    @property
    def live(self) -> bool:
        """Whether a worker has it, or may have it."""
        return self.state in (State.ASSIGNED, State.RUNNING, State.UNREACHABLE)


@dataclass(kw_only=True, slots=True)
class Job:
    """What a person submitted. `n` gives the order of the queue. Only the plane changes it."""

    id: str
    n: int
    owner: str
    key: str
    payload_hash: str
    spec: JobSpec
    submitted_at: float
    state: State | None = None  # how it ended, once all of its tasks have
    ended_at: float | None = None
    tasks: list[Task] = field(default_factory=list[Task])  # by index, ascending
    waits_for: set[str] = field(default_factory=set[str], compare=False)  # of `spec.after`: those yet to succeed
    waits_in: Line | None = field(default=None, compare=False, repr=False)  # the class of the queue
    tally: dict[State, int] = field(default_factory=dict[State, int], compare=False, repr=False)  # tasks by state
    undone: int = field(default=0, compare=False, repr=False)  # tasks of which something is left
    travels: JobSpec | None = field(default=None, compare=False, repr=False)  # the spec, as workers get it
    pool: Pool | None = field(default=None, compare=False, repr=False)  # of a job of calls that lives

    @property
    def session_key(self) -> SessionKey | None:
        """The session that its cell asks for."""
        return (self.owner, self.spec.session) if self.spec.session else None

    @property
    def many(self) -> bool:
        """Whether it has more than one task, or could have had."""
        return bool(self.spec.array) or self.spec.gang or self.spec.calls is not None

    def add_task(self) -> Task:
        """One more task, of a job that lives and gets them one by one."""
        index = self.tasks[-1].index + 1 if self.tasks else 0
        task = Task(id=f"{self.id}/{index}", job=self.id, n=self.n, index=index, tally=self.tally)
        self.tasks.append(task)
        self.tally[task.state] = self.tally.get(task.state, 0) + 1
        self.undone += 1
        return task

    def count(self) -> None:
        """Count its tasks, all of which must be there: from here on they keep the count themselves."""
        self.undone = sum([not task.done for task in self.tasks])
        if self.many:
            self.tally = _tally(self.tasks)
            for task in self.tasks:
                task.tally = self.tally

    @property
    def whole(self) -> State:
        """The state of the job as a whole: where some go on, what the furthest of them does; else how all ended."""
        if not self.many:
            return self.tasks[0].state
        tally = self.tally or _tally(self.tasks)
        whole = whole_of(tally)
        return _whole_of_leases(self.tasks, tally) if self.spec.calls is not None and whole in TERMINAL else whole

    @property
    def over(self) -> bool:
        """Whether all of its tasks have ended."""
        return self.whole in TERMINAL

    @property
    def shown(self) -> Task:
        """The task that stands for the job: the first that goes on, or that failed, or else the first."""
        if not self.many:
            return self.tasks[0]
        whole = self.whole
        return next((task for task in self.tasks if task.state is whole), self.tasks[0])

    def travelling(self) -> JobSpec:
        """The spec as a worker gets it, for one task."""
        spec = self.spec
        self.travels = self.travels or (replace(spec, array=(), after=()) if spec.array or spec.after else spec)
        return self.travels

    def task(self, index: int | None) -> Task | None:
        """The task of an index; None gives the first."""
        if index is None:
            return self.tasks[0]
        at = bisect_left(self.tasks, index, key=_index)
        return self.tasks[at] if at < len(self.tasks) and self.tasks[at].index == index else None


@dataclass(kw_only=True, slots=True)
class JobEnd:
    """That a job ended, as its row has it."""

    id: str
    n: int
    state: State
    ended_at: float


#: The state of a job with many tasks is the first of these in which any of them is.
_FURTHEST = (
    *(State.RUNNING, State.UNREACHABLE, State.ASSIGNED, State.LOST, State.QUEUED),
    *(State.FAILED, State.REJECTED, State.CANCELLED, State.SUCCEEDED),
)


def whole_of(tally: Mapping[State, int]) -> State:
    """The state of a job of which so many tasks are in each state."""
    return next(state for state in _FURTHEST if tally.get(state))


def _whole_of_leases(tasks: list[Task], tally: Mapping[State, int]) -> State:
    """How a job of calls ended: as its runners did, of which some were not needed any more, and some were lost."""
    if any(task.cancel_wanted for task in tasks):
        return State.CANCELLED
    return next(state for state in (State.SUCCEEDED, *_FURTHEST) if tally.get(state))


def _tally(tasks: list[Task]) -> dict[State, int]:
    return Counter(task.state for task in tasks)


def _index(task: Task) -> int:
    return task.index


@dataclass(kw_only=True)
class Session:
    """A kernel kept between cells. It holds a slot and its devices until its processes are gone."""

    id: str
    name: str
    owner: str
    worker: str
    devices: tuple[Device, ...]
    opened_at: float
    idle_timeout_s: float
    requirements: Requirements = _NOTHING  # of the cell that opened it: what it declared is held with it
    running: str | None = None  # the attempt in it
    idle_since: float | None = None
    used: bool = False  # a cell started in it: its kernel was there
    closing: bool = False
    closed: bool = False
    reason: str = ""

    @property
    def key(self) -> SessionKey:
        """Owner and name: unique among those not closed."""
        return (self.owner, self.name)

    def claim(self) -> Claim:
        """What it holds of its worker."""
        return claim(self.requirements, self.devices, owner=self.owner, session=self.name, since=self.opened_at)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What an owner's jobs and sessions may hold at once; None: as much as there is."""

    max_running: int | None = None  # slots
    max_devices: int | None = None  # devices, also such as are shared


@dataclass(kw_only=True)
class Snapshot:
    """What a plane is rebuilt from: everything live, as the store's rows have it."""

    jobs: list[Job] = field(default_factory=list[Job])  # with their tasks and current attempts
    attempts: list[Attempt] = field(default_factory=list[Attempt])  # not released
    sessions: list[Session] = field(default_factory=list[Session])  # not closed
    ended_sessions: dict[SessionKey, str] = field(default_factory=dict[SessionKey, str])  # why each last one ended
    succeeded: set[str] = field(default_factory=set[str])  # those that live jobs are to run after, and that did
    lost: list[str] = field(default_factory=list[str])  # attempts whose streams end with a mark, of any age
    workers: list[Worker] = field(default_factory=list[Worker])
    maps: list[MapState] = field(default_factory=list[MapState])  # that have not ended
    last_map_k: dict[int, int] = field(default_factory=dict[int, int])  # by number of a live job: of its maps, the last
    last_job_n: int = 0
    ended: int = 0  # jobs that have ended


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The plane's times, seconds, and what is kept of the past."""

    heartbeat_s: float = 2.0
    silent_after_s: float = 12.0  # a connection without a word for so long is closed
    unreachable_after_s: float = 5.0  # a connection may be gone so long before anybody is told
    lost_after_s: float = 60.0
    client_away_s: float = 600.0  # a map waits so long for a client that went away before its last arguments
    reserve_after_s: float = 30.0  # one who waits so long for much gets the next workers that come free
    gap_s: float = 10.0  # ticks further apart than this: the machine slept
    keep_keys_ticks: int = 10  # a commit takes far less: after so many the store finds a job by its key
    keep_jobs: int = 100_000  # of those that ended: older ones are dropped
    keep_days: float = 90.0  # since the end; after that they are dropped
    keep_results_days: float | None = None  # of maps, with their results, since their end; None: as jobs are
    keep_blobs_bytes: int | None = None  # of files; None: 20 GB, or a tenth of the disk if that is less
