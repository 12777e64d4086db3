"""What goes into the worker's link, what comes out of it, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from gpulayer.protocol.calls import CallBatch, CallRange, CallRun
from gpulayer.protocol.messages import Assign, Finished, HeldAttempt, HeldSession, ServerMessage, WorkerMessage
from gpulayer.protocol.types import Inventory, Outcome, Sample
from gpulayer_worker.callslink import HeldCalls

# ---------------------------------------------------------------- events


class Connected(Struct, frozen=True, kw_only=True):
    """The socket is open; nothing was said yet."""


class Disconnected(Struct, frozen=True, kw_only=True):
    """The socket is closed."""


class Received(Struct, frozen=True, kw_only=True):
    """A message of the control plane."""

    message: ServerMessage


class SpoolGrew(Struct, frozen=True, kw_only=True):
    """Whole records of an attempt's spool reach to `end`."""

    attempt: str
    end: int


class Began(Struct, frozen=True, kw_only=True):
    """The program's first record is in the spool."""

    attempt: str


class Ended(Struct, frozen=True, kw_only=True):
    """The program ended; its spool is `end` bytes long and will not grow.

    `began`: it ran, also where no `Began` told so; `gone`: no process of it is left.
    """

    attempt: str
    end: int
    outcome: Outcome
    began: bool = False
    gone: bool = False


class GaveBack(Struct, frozen=True, kw_only=True):
    """The attempt could not be started here, and nothing of it ran."""

    attempt: str
    reason: str


class Gone(Struct, frozen=True, kw_only=True):
    """No process of the attempt is left."""

    attempt: str


class SessionOpened(Struct, frozen=True, kw_only=True):
    """A session's kernel is being started here."""

    session: str


class SessionGone(Struct, frozen=True, kw_only=True):
    """No process of the session is left."""

    session: str
    reason: str


class Doing(Struct, frozen=True, kw_only=True):
    """What an attempt that has not begun is doing."""

    attempt: str
    text: str


class ResultsCame(Struct, frozen=True, kw_only=True):
    """Calls have results; the text that they wrote ends before byte `end` of the spool."""

    attempt: str
    runs: tuple[CallRun, ...]
    end: int


class CallsBack(Struct, frozen=True, kw_only=True):
    """Calls did not come to an end here; `began`: a runner died while it ran them, for that reason."""

    attempt: str
    ranges: tuple[CallRange, ...]
    began: bool = False
    reason: str = ""


class CallsFound(Struct, frozen=True, kw_only=True):
    """A runner that an agent before us started has these calls."""

    attempt: str
    ranges: tuple[CallRange, ...]


class Tick(Struct, frozen=True, kw_only=True):
    """Time passes: once a second. While the link is welcomed, a heartbeat is sent right after each."""


class Full(Struct, frozen=True, kw_only=True):
    """Why no more work is taken; '' where it is."""

    reason: str


class MachineChanged(Struct, frozen=True, kw_only=True):
    """The machine, or what is known of it, is another than the last hello, or the last of these, said."""

    inventory: Inventory


class Measured(Struct, frozen=True, kw_only=True):
    """How the machine fares."""

    sample: Sample


Event: TypeAlias = (
    Connected
    | Disconnected
    | Received
    | SpoolGrew
    | Began
    | Ended
    | GaveBack
    | Gone
    | SessionOpened
    | SessionGone
    | Doing
    | ResultsCame
    | CallsBack
    | CallsFound
    | Tick
    | Full
    | MachineChanged
    | Measured
)

# ---------------------------------------------------------------- effects


class SayHello(Struct, frozen=True, kw_only=True):
    """Send the hello with these declarations."""

    attempts: tuple[HeldAttempt, ...]
    sessions: tuple[HeldSession, ...]


class Send(Struct, frozen=True, kw_only=True):
    """Send a message."""

    message: WorkerMessage


class SendOutput(Struct, frozen=True, kw_only=True):
    """Send `size` bytes of an attempt's spool from `offset` on."""

    attempt: str
    offset: int
    size: int


class Persist(Struct, frozen=True, kw_only=True):
    """Write the record of an attempt: what a new agent will find."""

    attempt: str


class Start(Struct, frozen=True, kw_only=True):
    """Start an attempt."""

    assign: Assign


class Interrupt(Struct, frozen=True, kw_only=True):
    """Ask an attempt to end; by force after `grace_s`."""

    attempt: str
    grace_s: float


class Kill(Struct, frozen=True, kw_only=True):
    """End an attempt's processes at once: its results are not wanted, `why` says why."""

    attempt: str
    why: str


class CloseSession(Struct, frozen=True, kw_only=True):
    """End a session's processes."""

    session: str


class Trim(Struct, frozen=True, kw_only=True):
    """The spool's bytes before `offset` may go."""

    attempt: str
    offset: int


class Drop(Struct, frozen=True, kw_only=True):
    """Everything of the attempt may go from the disk."""

    attempt: str


class RunCalls(Struct, frozen=True, kw_only=True):
    """Run these calls, in order."""

    attempt: str
    batches: tuple[CallBatch, ...]


class LetGo(Struct, frozen=True, kw_only=True):
    """The results of these calls are needed no more."""

    attempt: str
    ranges: tuple[CallRange, ...]


class GiveBackCalls(Struct, frozen=True, kw_only=True):
    """Give back `count` calls that did not begin, the last ones first: `CallsBack` says which."""

    attempt: str
    count: int


class DropMap(Struct, frozen=True, kw_only=True):
    """The calls of a map are not wanted: those that wait go without a word, the one that runs is interrupted."""

    attempt: str
    map: str


class WindDown(Struct, frozen=True, kw_only=True):
    """End the attempt once what its runner runs is done; what waits is given back."""

    attempt: str


class Reconnect(Struct, frozen=True, kw_only=True):
    """Close the socket and come back with a new hello, after a while."""

    reason: str


class Stop(Struct, frozen=True, kw_only=True):
    """The agent is to end for good. `refused`: the control plane will not have it."""

    reason: str
    refused: bool


#: For the run of an attempt of calls.
ForCalls: TypeAlias = RunCalls | LetGo | GiveBackCalls | DropMap | WindDown

Effect: TypeAlias = (
    SayHello
    | Send
    | SendOutput
    | Persist
    | Start
    | Interrupt
    | Kill
    | CloseSession
    | Trim
    | Drop
    | ForCalls
    | Reconnect
    | Stop
)

# ---------------------------------------------------------------- what is held


@dataclass(kw_only=True)
class Held:
    """An attempt that this worker holds. Only `Link` changes it."""

    assign: Assign
    began: bool = False
    outcome: Outcome | None = None
    end: int | None = None  # the spool's final length
    gone: bool = False  # no process of it is left
    recorded: bool = False  # nothing more of its results is wanted: recorded, or given up
    given_back: str = ""  # why it could not be started here
    killed: bool = False
    spool_end: int = 0
    sent: int = 0  # on this connection
    acked: int = 0
    told_began: bool = False  # on this connection
    told_end: bool = False  # on this connection
    told_gone: bool = False  # on this connection
    calls: HeldCalls | None = None  # of a runner's attempt

    def __post_init__(self) -> None:
        if self.calls is None and self.assign.spec.calls is not None:
            self.calls = HeldCalls(self.assign.attempt)

    @property
    def live(self) -> bool:
        """Whether its program runs, or is about to."""
        return self.outcome is None and not self.gone

    @property
    def declared(self) -> HeldAttempt:
        """What a hello says of it."""
        return HeldAttempt(
            attempt=self.assign.attempt,
            started=self.began,
            ended=self.outcome is not None,
            released=self.gone,
            calls=self.calls.declared if self.calls is not None and not self.recorded else (),
        )

    def finished(self, outcome: Outcome, end: int) -> Finished:
        """What tells its end, and all else of it that is so by now."""
        name = self.assign.attempt
        return Finished(attempt=name, end_offset=end, outcome=outcome, began=self.began, released=self.gone)
