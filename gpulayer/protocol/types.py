"""The vocabulary of the wire: what a person asks for, what a machine has, how a try ended.

All structs are frozen and keyword-only. On the wire they are msgpack maps, in the HTTP API JSON objects; unknown
fields are ignored, so that an older side reads a newer one's message.
"""

from __future__ import annotations

from enum import Enum

import msgspec

#: Raised when a message changes so that the other side can no longer read it; compared in the first message.
PROTOCOL_VERSION = 1

#: The bound on the bytes of stream data that one frame carries; larger events travel in parts.
FRAME_DATA_BYTES = 256 * 1024


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The base of every type that travels."""


class State(str, Enum):
    """The states of a task; their legal moves stand in `gpulayer_server.core.lifecycle`."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    UNREACHABLE = "unreachable"
    LOST = "lost"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


#: States that no task leaves.
TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED, State.REJECTED})


class Device(Struct, frozen=True, kw_only=True):
    """One accelerator, keyed by its UUID."""

    uuid: str
    kind: str  # cuda, mps
    index: int
    name: str = ""
    vram_bytes: int | None = None  # None: unknown or unified


class Inventory(Struct, frozen=True, kw_only=True):
    """What a machine is and has, as its agent sees it."""

    host: str
    os: str  # linux, darwin
    arch: str
    cpu_cores: int
    ram_bytes: int
    python: str
    devices: tuple[Device, ...] = ()
    problems: tuple[str, ...] = ()  # such as 'NVIDIA devices present, NVML failed: ...'


class Requirements(Struct, frozen=True, kw_only=True):
    """What a job needs of a machine.

    `accelerator` None or 'cpu' means that any worker fits; `devices` counts accelerators.
    """

    accelerator: str | None = None
    devices: int = 0
    worker: str | None = None  # a worker's name

    @property
    def device_kind(self) -> str | None:
        """The kind of device that must be there, or None where none is needed."""
        return None if self.accelerator in (None, "cpu") else self.accelerator

    @property
    def device_count(self) -> int:
        """How many devices of that kind: at least one where a kind is named."""
        return max(1, self.devices) if self.device_kind else 0


class CellSpec(Struct, frozen=True, kw_only=True):
    """A notebook's cell."""

    code: str
    bundle: str = ""  # digest of the manifest; '' for no files
    session: str | None = None  # the name of a session; None for fresh state
    execution_count: int = 1  # the notebook's own, so that tracebacks carry it
    idle_timeout_s: float = 1800.0  # of the session that this cell opens
    inputs: str = ""  # digest of the blob of values that are there before the cell; '' for none
    outputs: tuple[str, ...] = ()  # names of the variables whose values come back after it
    output_globs: tuple[str, ...] = ()  # files that come back if the cell made or changed them, in gitignore's syntax


class JobSpec(Struct, frozen=True, kw_only=True):
    """What a person submits."""

    cell: CellSpec
    requirements: Requirements = Requirements()
    name: str = ""
    timeout_s: float | None = None  # of running time; None for no limit
    retries: int = 0  # further attempts after a lost worker
    notebook: str = ""  # path of the notebook, for finding its jobs again
    cell_id: str = ""


class Outcome(Struct, frozen=True, kw_only=True):
    """How an attempt ended.

    `exit_code` and `signal` are the program's and never overwritten; what went wrong around it is `problem`.
    """

    state: State  # succeeded, failed or cancelled
    exit_code: int | None = None
    signal: int | None = None
    problem: str = ""  # such as 'timed out after 10 s', 'out of memory: ...', 'exit unknown: ...'
    error: str = ""  # 'ValueError: ...' of the program itself
    peak_rss_bytes: int | None = None
    cpu_s: float | None = None
    tail: str = ""  # the last lines of a process that died
    values: str = ""  # digest of the blob with the values of `CellSpec.outputs`; '' where none came back
    values_bytes: int = 0
    files: str = ""  # digest of the manifest of the files of `CellSpec.output_globs`; '' where none were asked for


class Reason(Struct, frozen=True, kw_only=True):
    """One unmet constraint of one worker: a code for programs, words with numbers for people."""

    worker: str
    code: str  # device_kind, device_count, worker_name, slots, devices_busy, out_of_reach
    text: str
    temporary: bool = False  # it may go away by itself: the job waits for it


class JobView(Struct, frozen=True, kw_only=True):
    """A job as clients see it."""

    id: str
    state: State
    name: str = ""
    cancelling: bool = False
    owner: str = ""
    session: str | None = None
    requirements: Requirements = Requirements()
    notebook: str = ""
    cell_id: str = ""
    attempt: str | None = None  # the current or last attempt
    attempts: int = 0
    worker: str | None = None  # its name
    devices: tuple[Device, ...] = ()
    reasons: tuple[Reason, ...] = ()
    ahead: int = 0  # jobs before it in the queue
    progress: str = ""  # while starting: 'sending 3 of 214 files'
    notes: tuple[str, ...] = ()  # such as 'the session had ended: state is fresh'
    submitted_at: float = 0.0  # Unix time, seconds
    started_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    end_offset: int | None = None  # the stream's length, bytes; known once the attempt is over

    @property
    def terminal(self) -> bool:
        """Whether the job will not change any more."""
        return self.state in TERMINAL


class WorkerView(Struct, frozen=True, kw_only=True):
    """A worker as clients see it."""

    id: str
    name: str
    connected: bool
    slots: int
    slots_free: int
    inventory: Inventory
    devices_free: tuple[str, ...] = ()
    sessions: int = 0
    local: bool = False
    last_seen_at: float = 0.0
    notes: tuple[str, ...] = ()


class SessionView(Struct, frozen=True, kw_only=True):
    """A session as clients see it."""

    id: str
    name: str
    worker: str
    connected: bool
    devices: tuple[Device, ...] = ()
    running: str | None = None  # the job in it
    opened_at: float = 0.0
    idle_since: float | None = None
    idle_timeout_s: float = 1800.0


class Problem(Struct, frozen=True, kw_only=True):
    """An error for a client, after RFC 9457: `title` says what, `detail` where and what to do."""

    status: int
    code: str
    title: str
    detail: str = ""
    reasons: tuple[Reason, ...] = ()

    def line(self) -> str:
        """The problem in one line."""
        return f"{self.title}: {self.detail}" if self.detail else self.title
