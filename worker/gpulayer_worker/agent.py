"""The agent: talks to the control plane, runs attempts, and may die: the next one finds everything again."""

from __future__ import annotations

import asyncio
import logging
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gpulayer._version import __version__
from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Assign, Heartbeat, Hello, Output, ServerMessage, WorkerMessage
from gpulayer.protocol.types import PROTOCOL_VERSION, Device, Outcome, State
from gpulayer.source.blobs import Blobs
from gpulayer_worker import link
from gpulayer_worker.channel import Channel
from gpulayer_worker.comms import pass_on
from gpulayer_worker.inventory import take_inventory
from gpulayer_worker.keeperlink import KeeperLink
from gpulayer_worker.kernels import Kernel, Kernels
from gpulayer_worker.layout import Layout
from gpulayer_worker.run.cell import CellRun
from gpulayer_worker.watch import FolderWatch
from gpulayer_worker.workspace import Workspaces

log = logging.getLogger("gpulayer.worker")

_TICK_S = 1.0
_LEAVE_S = 2.0  # so long a kernel that ends by itself has for it
_ALONE_S = 120.0  # a local worker that holds nothing ends when its control plane was away for so long
REFUSED = 77  # the exit code that tells the keeper not to start another agent


@dataclass(frozen=True, kw_only=True)
class Options:
    """What an agent is started with."""

    data: Path
    name: str
    slots: int
    python: str
    control_plane: Path | None = None  # its data folder, where that is on this machine
    agent_argv: list[str] = field(default_factory=list[str])
    local: bool = False
    portable: bool = False
    warm: int = 1
    reserve_bytes: int = 1 << 30


def boottime() -> float:
    """Seconds on a clock that counts sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Agent:
    """Carries out what the link decides. All of it runs on one loop; what blocks runs in threads."""

    def __init__(self, options: Options, endpoint: Callable[[], Endpoint | None]):
        self.options = options
        self.layout = Layout(options.data)
        self.sessions: dict[str, Kernel] = {}
        self.ended_sessions: dict[str, asyncio.Event] = {}  # set once the control plane was told, or will be by a hello
        self._ending: set[str] = set()
        self.reserve_bytes = options.reserve_bytes
        self._find_endpoint = endpoint
        self._nonce = secrets.token_hex(8)
        self._runs: dict[str, CellRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._outgoing: list[WorkerMessage] = []
        self._unwritten: set[str] = set()  # attempts whose record is to be written
        self._unrecorded: dict[str, OSError] = {}  # those whose first record could not be: they must not start
        self._done: asyncio.Future[int]

    # ---------------------------------------------------------------- life

    async def run(self) -> int:
        """Until told to end; the exit code for the keeper."""
        self._done = asyncio.get_running_loop().create_future()
        self._inventory = await asyncio.to_thread(take_inventory)
        self.devices: tuple[Device, ...] = self._inventory.devices
        self.watch = FolderWatch(portable=self.options.portable)
        self._keeper = KeeperLink(self.options.data, self.options.agent_argv, portable=self.options.portable)
        await self._keeper.start()
        self.kernels = Kernels(self.layout, self._keeper, python=self.options.python, warm=self.options.warm)
        self.workspaces = Workspaces(Blobs(self.layout.blobs), self.endpoint, self._blobs_beside)
        await self._find_what_was()
        await asyncio.to_thread(self.layout.furnish)
        self._channel = Channel(
            self._find_endpoint, opened=self._opened, received=self._received, closed=self._disconnected
        )
        self._spawn(self._channel.run())
        self._spawn(self._tick())
        code = await self._done
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.kernels.close()
        await self._keeper.close(code)  # last: whoever still asked the keeper would start another one
        self.watch.close()
        return code

    def stop(self, code: int = 0) -> None:
        """End the agent."""
        if not self._done.done():
            self._done.set_result(code)

    def _blobs_beside(self) -> Path | None:
        """The control plane's own blobs, where its data folder lies on this machine."""
        folder = self.options.control_plane
        return folder / "blobs" if folder is not None else None

    def endpoint(self) -> Endpoint:
        """Where the control plane is, and the credential for it. Raises OSError where that is not known."""
        endpoint = self._find_endpoint()
        if endpoint is None:
            raise OSError("no endpoint.json or credential.json names a control plane")
        return endpoint

    async def _find_what_was(self) -> None:
        """Take up what an agent before us left: attempts, sessions, kernels."""
        held = self.layout.load()
        folders = sorted(self.options.data.glob("sessions/*"))
        found: dict[str, Kernel] = {}
        for folder in folders:
            note = self.layout.noted(folder, "session")
            kernel = await self.kernels.find(note["kernel"]) if note else None
            if kernel is not None and not kernel.exit.done():
                found[folder.name] = kernel
            elif kernel is not None:
                await self.kernels.end(kernel.name)
        self._link = link.Link(held=held, sessions=found, now=boottime())
        for session, kernel in found.items():
            self.session_ready(session, kernel)
        for folder in [folder for folder in folders if folder.name not in found]:
            shutil.rmtree(folder, ignore_errors=True)
        noted = [
            self.layout.noted(self.layout.attempt(each.assign.attempt), "kernel") for each in held if not each.gone
        ]
        # By the kernels' own names: one that an attempt took, and was not noted with it, would never be asked for.
        await self.kernels.clean(
            {note["kernel"] for note in noted if note} | {kernel.name for kernel in found.values()}
        )
        for each in held:
            if not each.gone:
                self._take_up(each)
        self.kernels.keep_warm()

    def _take_up(self, held: link.Held) -> None:
        assign = held.assign
        if held.outcome is not None:
            self._spawn(self._finish_clean_up(assign))
        elif (
            assign.session is not None
            and assign.session not in self.sessions
            and self.layout.noted(self.layout.attempt(assign.attempt), "kernel") is None
        ):
            self.emit(link.GaveBack(attempt=assign.attempt, reason="its session's kernel is gone"))
        else:
            self._start(assign, resumed=True)

    async def _finish_clean_up(self, assign: Assign) -> None:
        """The cell had ended; its kernel may still be there."""
        noted = self.layout.noted(self.layout.attempt(assign.attempt), "kernel")
        if assign.session is None and noted is not None:
            await self.kernels.end(noted["kernel"])
        self.emit(link.Gone(attempt=assign.attempt))

    # ---------------------------------------------------------------- events of the channel

    def _opened(self) -> None:
        self.emit(link.Connected())

    def _disconnected(self) -> None:
        self.emit(link.Disconnected())

    def _received(self, messages: list[ServerMessage]) -> None:
        others = pass_on(messages, self.sessions, self._runs, self.kernels)
        self.emit(*[link.Received(message=message) for message in others])

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.emit(link.Tick())
            for run in list(self._runs.values()):
                run.tell_blocked()
            if self._link.welcomed:
                self._channel.send([Heartbeat(notes=self._notes())])
            away_since = self._channel.away_since
            alone = away_since is not None and asyncio.get_running_loop().time() - away_since > _ALONE_S
            if alone and self.options.local and not self._link.busy:
                log.warning("the control plane is gone and nothing is held: this local worker ends")
                self.stop(0)

    def _notes(self) -> tuple[str, ...]:
        usage = shutil.disk_usage(self.options.data)
        if usage.free >= self.reserve_bytes:
            return ()
        return (
            f"disk below its reserve: {usage.free / 1e9:.1f} GB free of {self.reserve_bytes / 1e9:.1f} GB wanted "
            f"in {self.options.data}; output waits",
        )

    # ---------------------------------------------------------------- the link's effects

    def emit(self, *events: link.Event) -> None:
        """Let the link handle events; what is to be sent goes in one frame."""
        now = boottime()
        for event in events:
            for effect in self._link.handle(event, now):
                if not isinstance(effect, (link.Persist, link.Send, link.SendOutput)):
                    self._persist()  # before what relies on it
                self._carry_out(effect)
        self._persist()
        if self._outgoing:
            self._channel.send(self._outgoing)
            self._outgoing = []

    def _persist(self) -> None:
        """Write down what changed: once for each attempt, however many events changed it."""
        while self._unwritten:
            held = self._link.held.get(self._unwritten.pop())
            if held is not None:  # else it was let go of, and goes from the disk as a whole
                self._persist_one(held)

    def _persist_one(self, held: link.Held) -> None:
        """Write a record. A later one that fails is as if we had died just before it; without the first none starts."""
        name = held.assign.attempt
        try:
            self.layout.persist(held)
        except OSError as error:
            log.error("the record of attempt %s can't be written: %s", name, error)
            if name not in self._runs:
                self._unrecorded[name] = error

    def _carry_out(self, effect: link.Effect) -> None:
        match effect:
            case link.Send(message=message):
                self._outgoing.append(message)
            case link.SendOutput():
                self._send_output(effect)
            case link.Persist(attempt=name):
                self._unwritten.add(name)
            case link.Trim(attempt=name, offset=offset):
                self._trim(name, offset)
            case link.SayHello():
                self._say_hello(effect)
            case link.Drop(attempt=name):
                run = self._runs.pop(name, None)
                if run is not None:
                    run.close()
                self._spawn(asyncio.to_thread(self.layout.drop, name))
            case _:
                self._act(effect)

    def _act(self, effect: link.Effect) -> None:
        match effect:
            case link.Start(assign=assign):
                self._begin(assign)
            case link.Interrupt(attempt=name, grace_s=grace_s):
                if name in self._runs:
                    self._runs[name].interrupt(grace_s)
            case link.Kill(attempt=name, why=why):
                if name in self._runs:
                    self._runs[name].kill(why)
            case link.CloseSession(session=name):
                self._spawn(self._close_session(name))
            case link.Reconnect(reason=reason):
                self._channel.reconnect(reason)
            case link.Stop(reason=reason, refused=refused):
                log.warning("%s: %s", "refused by the control plane" if refused else "told to end", reason)
                self.stop(REFUSED if refused else 0)
            case _:
                raise TypeError(f"no rule for {effect!r}")

    def _say_hello(self, effect: link.SayHello) -> None:
        self._outgoing.append(
            Hello(
                protocol=PROTOCOL_VERSION,
                worker_id=self.layout.worker_id(),
                nonce=self._nonce,
                name=self.options.name,
                version=__version__,
                slots=self.options.slots,
                inventory=self._inventory,
                local=self.options.local,
                attempts=effect.attempts,
                sessions=effect.sessions,
                comms=True,
            )
        )

    def _send_output(self, effect: link.SendOutput) -> None:
        reach("agent.first-byte" if effect.offset == 0 else "agent.mid-output")
        data = self._run_of(effect.attempt).read(effect.offset, effect.size)
        self._outgoing.append(Output(attempt=effect.attempt, offset=effect.offset, data=data))

    def _trim(self, name: str, offset: int) -> None:
        held = self._link.held[name]
        if held.end is not None and offset >= held.end:
            reach("agent.acked")
        self._run_of(name).trim(offset)

    # ---------------------------------------------------------------- runs

    def _run_of(self, name: str) -> CellRun:
        run = self._runs.get(name)
        if run is None:  # it ended under an agent before us: only its spool is read
            run = self._runs[name] = CellRun(self, self._link.held[name].assign, resumed=True)
        return run

    def _begin(self, assign: Assign) -> None:
        reach("agent.assigned")
        unrecorded = self._unrecorded.pop(assign.attempt, None)
        if unrecorded is not None:
            self._failed(assign.attempt, unrecorded)
            return
        if assign.session is not None and assign.session not in self.ended_sessions:
            self.emit(link.SessionOpened(session=assign.session))
        self._start(assign, resumed=False)

    def _start(self, assign: Assign, *, resumed: bool) -> None:
        run = self._runs[assign.attempt] = CellRun(self, assign, resumed=resumed)
        try:
            run.begin()
        except OSError as error:
            self._failed(assign.attempt, error)
        else:
            self._spawn(self._watched(run, assign.attempt))

    async def _watched(self, run: CellRun, attempt: str) -> None:
        """A fault of ours in a run ends the attempt with a line that says so, and leaves the agent working."""
        try:
            await run.run()
        except Exception as error:  # noqa: BLE001 - told by the attempt's record, and in the log
            self._failed(attempt, error)

    def _failed(self, attempt: str, error: Exception) -> None:
        log.error("attempt %s: the agent failed: %s", attempt, error, exc_info=not isinstance(error, OSError) and error)
        ours = f"the worker's agent failed: {error!r}; see its log"
        problem = self.layout.trouble(error) if isinstance(error, OSError) else ours
        outcome = Outcome(state=State.FAILED, problem=problem)
        end = self._link.held[attempt].spool_end if attempt in self._link.held else 0
        self.emit(link.Ended(attempt=attempt, end=end, outcome=outcome), link.Gone(attempt=attempt))

    # ---------------------------------------------------------------- sessions

    def session_ready(self, session: str, kernel: Kernel) -> None:
        """A session's kernel is up: when it dies, by itself or by us, the session is over."""
        self.sessions[session] = kernel
        kernel.exit.add_done_callback(lambda _: self._spawn(self._session_died(session, kernel)))

    async def _session_died(self, session: str, kernel: Kernel) -> None:
        if self.sessions.get(session) is kernel:
            await self._end_session(session, "its kernel died")

    def leave_session(self, session: str, reason: str) -> None:
        """Its own cell ended it: what is assigned to it from now on is given back."""
        self.ended_sessions.setdefault(session, asyncio.Event())
        self._spawn(self._end_session(session, reason, grace_s=_LEAVE_S))

    async def _close_session(self, session: str) -> None:
        await self._end_session(session, "released")

    async def _end_session(self, session: str, reason: str, *, grace_s: float = 0.0) -> None:
        if session in self._ending:
            return  # whoever is at it tells, once nothing of it is left
        self._ending.add(session)
        told = self.ended_sessions.setdefault(session, asyncio.Event())
        kernel = self.sessions.pop(session, None)
        if kernel is not None:
            if grace_s:
                await asyncio.wait({kernel.exit}, timeout=grace_s)
            await self.kernels.kill(kernel)
            for run in [r for r in self._runs.values() if r.kernel is kernel]:
                await run.ended.wait()  # its record of the end reads how the kernel died
            await self.kernels.end(kernel.name)
        self.workspaces.forget(self.layout.session(session) / "files.json")
        await asyncio.to_thread(shutil.rmtree, self.layout.session(session), True)
        self.emit(link.SessionGone(session=session, reason=reason))
        told.set()

    def _spawn(self, coroutine: object) -> None:
        task = asyncio.ensure_future(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._reaped)

    def _reaped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the agent failed", exc_info=task.exception())
            self.stop(1)  # the keeper starts a fresh agent, which takes up everything
