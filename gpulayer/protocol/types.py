"""The vocabulary of the wire: what a person asks for, what a machine has, how a try ended.

All structs are frozen and keyword-only. On the wire they are msgpack maps, in the HTTP API JSON objects; unknown
fields are ignored, so that an older side reads a newer one's message.
"""

from __future__ import annotations

from enum import Enum

from gpulayer.protocol.base import Struct as Struct
from gpulayer.protocol.calls import CallsCount as CallsCount
from gpulayer.protocol.calls import CallsSpec as CallsSpec
from gpulayer.protocol.machines import Device as Device
from gpulayer.protocol.machines import DeviceSample as DeviceSample
from gpulayer.protocol.machines import Framework as Framework
from gpulayer.protocol.machines import Inventory as Inventory
from gpulayer.protocol.machines import Link as Link
from gpulayer.protocol.machines import Process as Process
from gpulayer.protocol.machines import Sample as Sample
from gpulayer.protocol.outcomes import TERMINAL as TERMINAL
from gpulayer.protocol.outcomes import Reason as Reason
from gpulayer.protocol.outcomes import State as State
from gpulayer.protocol.requirements import LOCALITIES as LOCALITIES
from gpulayer.protocol.requirements import Requirements as Requirements

#: Raised when a message changes so that the other side can no longer read it; compared in the first message.
PROTOCOL_VERSION = 1

#: The bound on the bytes of stream data that one frame carries; larger events travel in parts.
FRAME_DATA_BYTES = 256 * 1024


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


class CommandSpec(Struct, frozen=True, kw_only=True):
    """A program with its arguments, in a folder of its own."""

    argv: tuple[str, ...]  # as it is executed: a shell's line is ('/bin/sh', '-c', LINE)
    bundle: str = ""  # digest of the manifest of source and inputs; '' for an empty folder
    env: dict[str, str] = {}
    cwd: str = ""  # below the working folder, with '/'; '' for that folder itself
    output_globs: tuple[str, ...] = ()  # files that come back, whatever the end, in gitignore's syntax


class JobSpec(Struct, frozen=True, kw_only=True):
    """What a person submits: a cell, a command, or calls of a function."""

    cell: CellSpec | None = None
    command: CommandSpec | None = None
    calls: CallsSpec | None = None
    requirements: Requirements = Requirements()
    name: str = ""
    timeout_s: float | None = None  # of running time; None for no limit
    grace_s: float = 5.0  # between the wish to end it (SIGTERM, an interrupt) and the end by force
    retries: int = 0  # further attempts after a lost worker
    priority: int = 0  # higher ones are placed first
    labels: dict[str, str] = {}
    after: tuple[str, ...] = ()  # ids of jobs: it waits until all of them succeeded, and fails when one did not
    array: tuple[tuple[int, int], ...] = ()  # first and last index of ranges, ascending: a task for each index
    notebook: str = ""  # path of the notebook, for finding its jobs again
    cell_id: str = ""
    wait_for_worker: bool = False  # where no worker could take it, it waits for one instead of being rejected

    @property
    def session(self) -> str | None:
        """The name of the session that it runs in."""
        return self.cell.session if self.cell is not None else None

    @property
    def bundle(self) -> str:
        """Digest of the manifest of its files; '' for none."""
        if self.calls is not None:
            return self.calls.function.bundle
        work = self.command or self.cell
        return work.bundle if work is not None else ""

    @property
    def leased(self) -> bool:
        """Whether its attempts end by themselves where their worker is out of reach: they may run elsewhere then."""
        return self.retries > 0 or (self.calls is not None and not self.calls.stateful)

    @property
    def output_globs(self) -> tuple[str, ...]:
        """Which files come back."""
        work = self.command or self.cell
        return work.output_globs if work is not None else ()

    @property
    def indices(self) -> tuple[int, ...]:
        """The indices of its tasks, ascending: of an array's, or of the machines that it takes at once."""
        if not self.array:
            return tuple(range(self.requirements.nodes))
        return tuple(n for first, last in self.array for n in range(first, last + 1))

    @property
    def gang(self) -> bool:
        """Whether its tasks are placed all at once, or none."""
        return self.requirements.nodes > 1


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
    peak_device_bytes: int | None = None  # of device memory; None without a device, or where it can't be measured
    cpu_s: float | None = None
    wall_s: float | None = None  # from the start of its program to its end, on the worker's clock
    tail: str = ""  # the last lines of a process that died
    values: str = ""  # digest of the blob with the values of `CellSpec.outputs`; '' where none came back
    values_bytes: int = 0
    files: str = ""  # digest of the manifest of the files of `output_globs`; '' where none were asked for
    unmatched: tuple[str, ...] = ()  # of these globs: those that name no file which the program made or changed


class Placement(str, Enum):
    """What becomes of requirements on the fleet as it is."""

    PLACED = "placed"  # could be placed now
    WAITING = "waiting"  # some worker could take it, none is free
    REJECTED = "rejected"  # no worker could


class Explanation(Struct, frozen=True, kw_only=True):
    """Why requirements fit, or don't, machine by machine: the answer to `gpulayer explain`."""

    placement: Placement
    eligible: tuple[str, ...] = ()  # names of the workers that could take it, those that could now first
    reasons: tuple[Reason, ...] = ()  # of all others, and of those that are busy; in the workers' order
    nearest: str = ""  # the step that would make it fit, such as 'install jax[cuda13] on gpu-box-2'
    chosen: tuple[str, ...] = ()  # workers that it would go to now, one for each node
    devices: tuple[Device, ...] = ()  # that it would get on the first of them


class TaskView(Struct, frozen=True, kw_only=True):
    """One task of a job, as clients see it."""

    index: int
    state: State
    cancelling: bool = False
    attempt: str | None = None  # the current or last attempt
    attempts: int = 0
    worker: str | None = None  # its name
    devices: tuple[Device, ...] = ()
    started_at: float | None = None  # Unix time, seconds
    ended_at: float | None = None
    outcome: Outcome | None = None
    end_offset: int | None = None  # the stream's length, bytes; known once the attempt is over


class AttemptView(Struct, frozen=True, kw_only=True):
    """One try of a task on a worker: its record."""

    id: str
    index: int  # of its task
    number: int  # 1 for the task's first
    worker: str  # its name
    devices: tuple[Device, ...] = ()
    assigned_at: float = 0.0  # Unix time, seconds
    started_at: float | None = None
    ended_at: float | None = None
    over: bool = False
    outcome: Outcome | None = None  # None while it goes on, and for one that was lost
    problem: str = ""  # why it was lost
    end_offset: int | None = None


class JobView(Struct, frozen=True, kw_only=True):
    """A job as clients see it. Of one with many tasks the fields of a task are those of its first one that goes on,
    or that failed, or else its first: `state` is the whole job's.
    """

    id: str
    state: State
    kind: str = "cell"  # or 'command', 'calls'
    calls: CallsCount | None = None  # of a job of calls
    command: str = ""  # of a command: its argv as a shell would take it
    labels: dict[str, str] = {}
    priority: int = 0
    after: tuple[str, ...] = ()
    tasks: dict[str, int] = {}  # of a job with many tasks: how many there are in each state
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
    nearest: str = ""  # the step that would make it fit
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


class Holder(Struct, frozen=True, kw_only=True):
    """Who holds a slot, and devices, of a worker."""

    job: str = ""  # its id; '' for a session in which nothing runs
    session: str = ""  # its name
    owner: str = ""
    name: str = ""  # of the job, as lists show it
    devices: tuple[str, ...] = ()  # UUIDs
    vram_bytes: int | None = None  # its declared share of one device
    since: float = 0.0  # Unix time, seconds


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
    full: str = ""  # why it takes no more work
    sample: Sample | None = None  # how it fares now; None where that is not known
    sampled_at: float | None = None
    ram_declared_bytes: int = 0  # by the jobs on it
    cpu_declared: float = 0.0
    holders: tuple[Holder, ...] = ()  # who holds what of it


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
