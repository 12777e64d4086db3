"""The messages between worker and control plane, and between client and control plane.

A frame is a msgpack array of tagged messages (`encode`, the decoders below). Types that a side does not know are
refused with `ProtocolError`; fields that it does not know are ignored. Frames between worker and control plane are
numbered (`Order`): whatever is lost or changes places on the way breaks the connection, and a connection's
begin makes everything whole again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from gpulayer.protocol.calls import (
    CallRange,
    Calls,
    CallsAccepted,
    CallsDone,
    CallsReturned,
    CancelMap,
    DropCalls,
    EndCalls,
    EndRunner,
    FollowMap,
    MapArgs,
    MapRecord,
    MapResults,
    MapTaken,
    MapUpdate,
    OpenMap,
    RecallCalls,
)
from gpulayer.protocol.types import Device, Inventory, JobSpec, JobView, Outcome, Problem, Sample, Struct


class ProtocolError(ValueError):
    """A frame that is not of this protocol."""


CommKind: TypeAlias = Literal["comm_msg", "comm_close"]

#: All parts of a comm's message together: a bundle or `--in` carries what is larger.
COMM_BYTES = 1024 * 1024


# ---------------------------------------------------------------- worker to control plane


class HeldAttempt(Struct, frozen=True, kw_only=True):
    """An attempt that the worker still holds, as declared at every connect."""

    attempt: str
    started: bool = False
    ended: bool = False
    released: bool = False  # no process of it is left
    calls: tuple[CallRange, ...] = ()  # of a runner: those that it has, and those whose results were not accepted


class HeldSession(Struct, frozen=True, kw_only=True):
    """A session whose kernel lives on the worker."""

    session: str


class Hello(Struct, frozen=True, kw_only=True, tag="hello"):
    """The first message: who connects, and everything that it still holds."""

    protocol: int
    worker_id: str
    nonce: str  # of the agent's process: the same one replaces its own half-open socket
    name: str
    version: str
    slots: int
    inventory: Inventory
    local: bool = False
    attempts: tuple[HeldAttempt, ...] = ()
    sessions: tuple[HeldSession, ...] = ()
    comms: bool = False  # it knows `CommMessage`


class Output(Struct, frozen=True, kw_only=True, tag="output"):
    """Bytes of an attempt's stream, from `offset` on."""

    attempt: str
    offset: int
    data: bytes


class Started(Struct, frozen=True, kw_only=True, tag="started"):
    """The program runs: its first record is in the spool."""

    attempt: str


class Finished(Struct, frozen=True, kw_only=True, tag="finished"):
    """The attempt ended; its stream is `end_offset` bytes long."""

    attempt: str
    end_offset: int
    outcome: Outcome
    began: bool = False  # its program ran, also where no `Started` told so
    released: bool = False  # no process of it is left: the answer is `Forget` instead of `Recorded`


class NotStarted(Struct, frozen=True, kw_only=True, tag="not_started"):
    """The worker gives an assignment back: nothing of it ever ran."""

    attempt: str
    reason: str


class Released(Struct, frozen=True, kw_only=True, tag="released"):
    """No process of the attempt is left: its slot and devices are free."""

    attempt: str


class SessionEnded(Struct, frozen=True, kw_only=True, tag="session_ended"):
    """The session's kernel is gone, with every process of it."""

    session: str
    reason: str


class Progress(Struct, frozen=True, kw_only=True, tag="progress"):
    """What an attempt that has not started yet is doing; kept in memory only."""

    attempt: str
    text: str


class Heartbeat(Struct, frozen=True, kw_only=True, tag="heartbeat"):
    """The worker is there. `notes` are standing conditions, such as a disk below its reserve."""

    notes: tuple[str, ...] = ()
    full: str = ""  # why it takes no more work, such as a disk below its reserve; '' where it does


class Ahead(Struct, frozen=True, kw_only=True, tag="ahead"):
    """So many commands that ask for no devices may be assigned beyond the worker's slots: they end that soon.

    None is the word of each new connection. Those that wait are not declared in a hello: they are placed anew then.
    """

    count: int


class InventoryChanged(Struct, frozen=True, kw_only=True, tag="inventory"):
    """The machine, or what is known of it, is another now: a probe came through, a device fell sick, was mended."""

    inventory: Inventory


class Sampled(Struct, frozen=True, kw_only=True, tag="sampled"):
    """How the machine fares, once a second; kept in memory only, the newest one counts."""

    sample: Sample


WorkerMessage: TypeAlias = (
    Hello
    | Output
    | Started
    | Finished
    | NotStarted
    | Released
    | SessionEnded
    | Progress
    | Heartbeat
    | Ahead
    | InventoryChanged
    | Sampled
    | CallsDone
    | CallsReturned
)

# ---------------------------------------------------------------- control plane to worker


class Verdict(Struct, frozen=True, kw_only=True):
    """What becomes of an attempt that a worker declared: go on from `acked`, or end."""

    attempt: str
    go_on: bool
    acked: int = 0
    recorded: bool = False  # its end is recorded: only the release is still to be told


class Welcome(Struct, frozen=True, kw_only=True, tag="welcome"):
    """The answer to `Hello`."""

    epoch: int
    heartbeat_s: float
    lost_after_s: float
    verdicts: tuple[Verdict, ...] = ()
    end_sessions: tuple[str, ...] = ()


class Refuse(Struct, frozen=True, kw_only=True, tag="refuse"):
    """The worker can't come in; `retry` says whether it may later."""

    code: str
    text: str
    retry: bool = False


class Assign(Struct, frozen=True, kw_only=True, tag="assign"):
    """Start this attempt."""

    attempt: str
    job: str
    spec: JobSpec
    devices: tuple[Device, ...] = ()
    session: str | None = None  # id of the session that it runs in
    index: int = 0  # of the task in its job
    in_array: bool = False  # the job has a task for each of its indices
    leased: bool = False  # to be ended by the worker itself when the control plane is out of reach
    nodes: tuple[str, ...] = ()  # of a job that takes many machines: the workers' names, by index


class Ack(Struct, frozen=True, kw_only=True, tag="ack"):
    """The control plane holds the stream's first `offset` bytes."""

    attempt: str
    offset: int


class Recorded(Struct, frozen=True, kw_only=True, tag="recorded"):
    """The attempt's end is committed: its record and spool may go."""

    attempt: str


class Forget(Struct, frozen=True, kw_only=True, tag="forget"):
    """The release is committed: nothing of the attempt is wanted any more."""

    attempt: str


class CancelAttempt(Struct, frozen=True, kw_only=True, tag="cancel"):
    """End the attempt: an interrupt first, then after `grace_s` by force. `fence`: its results are refused."""

    attempt: str
    grace_s: float = 5.0
    fence: bool = False


class EndSession(Struct, frozen=True, kw_only=True, tag="end_session"):
    """End the session's kernel and everything that it started."""

    session: str


class CommMessage(Struct, frozen=True, kw_only=True, tag="comm_message"):
    """What a page says to a widget: for the kernel of the session if there is one, else for that of the attempt.

    Nothing is promised: where that kernel is not there any more, it is lost.
    """

    kind: CommKind
    parts: tuple[bytes, ...]  # metadata and content, as JSON, then the buffers
    attempt: str | None = None
    session: str | None = None  # its id


class HeartbeatAck(Struct, frozen=True, kw_only=True, tag="heartbeat_ack"):
    """The control plane is there: leases go on."""


class Shutdown(Struct, frozen=True, kw_only=True, tag="shutdown"):
    """A local worker ends with its control plane: nobody needs it any more."""

    reason: str


ServerMessage: TypeAlias = (
    Welcome
    | Refuse
    | Assign
    | Ack
    | Recorded
    | Forget
    | CancelAttempt
    | EndSession
    | CommMessage
    | HeartbeatAck
    | Shutdown
    | Calls
    | CallsAccepted
    | RecallCalls
    | DropCalls
    | EndRunner
)

# ---------------------------------------------------------------- client to control plane


class ClientHello(Struct, frozen=True, kw_only=True, tag="client_hello"):
    """The client's first message."""

    protocol: int
    version: str


class Submit(Struct, frozen=True, kw_only=True, tag="submit"):
    """A new job; the same `key` with the same payload gives the same job."""

    n: int
    key: str
    spec: JobSpec
    follow: bool = True  # subscribe to it in the same step


class Follow(Struct, frozen=True, kw_only=True, tag="follow"):
    """Send the job's states, and its stream from byte `offset` of attempt `attempt` on."""

    n: int
    job: str
    attempt: str | None = None
    offset: int = 0
    index: int | None = None  # of the task whose stream it is; None: the job's only one, else its first


class Unfollow(Struct, frozen=True, kw_only=True, tag="unfollow"):
    """No more of subscription `n`."""

    n: int


class CancelJob(Struct, frozen=True, kw_only=True, tag="cancel_job"):
    """A wish to cancel, kept until the worker confirms. `give_up`: do not wait for a worker out of reach."""

    n: int
    job: str
    give_up: bool = False


class ToKernel(Struct, frozen=True, kw_only=True, tag="to_kernel"):
    """What a page says to a widget of a job's cell; at most `COMM_BYTES` in all.

    It goes to the kernel of the job's session where that is open, also after the job, else to that of the job's
    attempt while that runs. `Refused` says that it goes nowhere; nothing says that it arrived.
    """

    n: int  # of no subscription
    job: str
    kind: CommKind
    parts: tuple[bytes, ...]  # metadata and content, as JSON, then the buffers
    session: str | None = None  # its name


ClientMessage: TypeAlias = (
    ClientHello
    | Submit
    | Follow
    | Unfollow
    | CancelJob
    | ToKernel
    | OpenMap
    | MapArgs
    | FollowMap
    | CancelMap
    | EndCalls
)

# ---------------------------------------------------------------- control plane to client


class ClientWelcome(Struct, frozen=True, kw_only=True, tag="client_welcome"):
    """The control plane is ready for this client."""

    version: str
    epoch: int
    comms: bool = False  # it knows `ToKernel`


class Update(Struct, frozen=True, kw_only=True, tag="update"):
    """The job as it is now; also the answer to `Submit`, `Follow` and `CancelJob`."""

    n: int
    job: JobView


class Chunk(Struct, frozen=True, kw_only=True, tag="chunk"):
    """Bytes of the stream of `attempt`, from `offset` on."""

    n: int
    attempt: str
    offset: int
    data: bytes


class Refused(Struct, frozen=True, kw_only=True, tag="refused"):
    """Request `n` was not carried out."""

    n: int
    problem: Problem


ServerToClient: TypeAlias = ClientWelcome | Update | Chunk | Refused | MapTaken | MapUpdate | MapResults | MapRecord

# ---------------------------------------------------------------- frames

_encoder = msgspec.msgpack.Encoder()
_from_worker = msgspec.msgpack.Decoder(list[WorkerMessage])
_to_worker = msgspec.msgpack.Decoder(list[ServerMessage])
_from_client = msgspec.msgpack.Decoder(list[ClientMessage])
_to_client = msgspec.msgpack.Decoder(list[ServerToClient])


def encode(messages: Sequence[msgspec.Struct]) -> bytes:
    """One frame of messages, in order."""
    return _encoder.encode(messages)


def from_worker(frame: bytes) -> list[WorkerMessage]:
    """Messages of a worker's frame. Raises `ProtocolError`."""
    try:
        return _from_worker.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a worker's frame: {error}") from error


def to_worker(frame: bytes) -> list[ServerMessage]:
    """Messages of a control plane's frame to a worker. Raises `ProtocolError`."""
    try:
        return _to_worker.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a control plane's frame: {error}") from error


def from_client(frame: bytes) -> list[ClientMessage]:
    """Messages of a client's frame. Raises `ProtocolError`."""
    try:
        return _from_client.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a client's frame: {error}") from error


class Order:
    """The numbers of a connection's frames, for one side: its own, and those that come."""

    def __init__(self) -> None:
        self._sent = 0
        self._received = 0

    def number(self, messages: Sequence[msgspec.Struct]) -> bytes:
        """One frame of messages with the next number."""
        self._sent += 1
        return self._sent.to_bytes(4, "little") + encode(messages)

    def accept(self, frame: bytes) -> bytes | None:
        """The messages' bytes; None for a frame that came before. Raises `ProtocolError` where one is missing."""
        if len(frame) < 4:
            raise ProtocolError(f"a frame of {len(frame)} bytes has no number")
        number = int.from_bytes(frame[:4], "little")
        if number <= self._received:
            return None
        if number != self._received + 1:
            raise ProtocolError(f"frame {number} came after frame {self._received}")
        self._received = number
        return frame[4:]


def to_client(frame: bytes) -> list[ServerToClient]:
    """Messages of a control plane's frame to a client. Raises `ProtocolError`."""
    try:
        return _to_client.decode(frame)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a control plane's frame: {error}") from error
