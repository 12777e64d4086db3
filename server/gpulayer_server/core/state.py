"""What the plane knows. Only the plane changes it; everything here can be rebuilt from the store's rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpulayer.protocol.types import TERMINAL, Device, Inventory, JobSpec, Outcome, Reason, State
from gpulayer_server.core.lifecycle import check_move

SessionKey = tuple[str, str]  # owner, name
#: Of so many sessions that ended by themselves it is kept why, for the next cell that names one.
ENDED_SESSIONS = 1000
JobKey = tuple[str, str]  # owner, idempotency key


@dataclass(kw_only=True)
class Attempt:
    """One try of a task on a worker: the fence. It holds its slot and devices until `released`."""

    id: str
    task: str
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
    progress: str = ""

    @property
    def in_session(self) -> bool:
        """Whether it keeps its session from running another cell: a lost one until its processes are gone."""
        return self.session is not None and not self.released and (not self.over or self.end_offset is None)

    @property
    def holds_slot(self) -> bool:
        """An attempt in a session uses the session's slot."""
        return self.session is None and not self.released


@dataclass(kw_only=True)
class Task:
    """What is placed. `attempt` is the current or last one."""

    id: str
    job: str
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

    def move(self, new: State) -> None:
        """Change the state; raises `IllegalMove` for one that the table does not hold."""
        check_move(self.id, self.state, new)
        self.state = new

    @property
    def terminal(self) -> bool:
        """Whether the task will not change any more."""
        return self.state in TERMINAL

    @property
    def done(self) -> bool:
        """Whether it is terminal and no process of it is left."""
        return self.terminal and (self.attempt is None or self.attempt.released)

    @property
    def live(self) -> bool:
        """Whether a worker has it, or may have it."""
        return self.state in (State.ASSIGNED, State.RUNNING, State.UNREACHABLE)


@dataclass(kw_only=True)
class Job:
    """What a person submitted. `n` gives the order of the queue."""

    id: str
    n: int
    owner: str
    key: str
    payload_hash: str
    spec: JobSpec
    submitted_at: float
    tasks: list[Task] = field(default_factory=list[Task])

    @property
    def session_key(self) -> SessionKey | None:
        """The session that its cell asks for."""
        return (self.owner, self.spec.session) if self.spec.session else None


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


@dataclass(kw_only=True)
class Worker:
    """An agent on a machine, connected or not."""

    id: str
    name: str
    slots: int
    local: bool
    inventory: Inventory
    last_seen_at: float
    nonce: str = ""
    conn: int | None = None
    gone_since: float | None = None  # set while not connected
    notes: tuple[str, ...] = ()
    holders: dict[str, tuple[Device, ...]] = field(default_factory=dict[str, tuple[Device, ...]])

    @property
    def slots_free(self) -> int:
        """Slots that no attempt and no session holds."""
        return self.slots - len(self.holders)

    def free_devices(self) -> list[Device]:
        """Devices that no attempt and no session holds, in the inventory's order."""
        taken = {device.uuid for held in self.holders.values() for device in held}
        return [device for device in self.inventory.devices if device.uuid not in taken]


@dataclass(kw_only=True)
class Snapshot:
    """What a plane is rebuilt from: everything live, as the store's rows have it."""

    jobs: list[Job] = field(default_factory=list[Job])  # with their tasks and current attempts
    attempts: list[Attempt] = field(default_factory=list[Attempt])  # not released
    sessions: list[Session] = field(default_factory=list[Session])  # not closed
    ended_sessions: dict[SessionKey, str] = field(default_factory=dict[SessionKey, str])  # why each last one ended
    lost: list[str] = field(default_factory=list[str])  # attempts whose streams end with a mark, of any age
    workers: list[Worker] = field(default_factory=list[Worker])
    last_job_n: int = 0


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The plane's times, seconds."""

    heartbeat_s: float = 2.0
    silent_after_s: float = 12.0  # a connection without a word for so long is closed
    unreachable_after_s: float = 5.0  # a connection may be gone so long before anybody is told
    lost_after_s: float = 60.0
    gap_s: float = 10.0  # ticks further apart than this: the machine slept
    cancel_grace_s: float = 5.0
    keep_keys_ticks: int = 10  # a commit takes far less: after so many the store finds a job by its key
