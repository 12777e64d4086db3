"""The agent: talks to the control plane, runs attempts, and may die: the next one finds everything again."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from gpulayer.protocol.endpoint import Endpoint
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Assign, Heartbeat, Output, ServerMessage, Welcome
from gpulayer.protocol.types import Device, Outcome, State
from gpulayer.source.blobs import Blobs
from gpulayer_worker import link
from gpulayer_worker.attemptlog import AttemptLog
from gpulayer_worker.channel import Channel
from gpulayer_worker.comms import pass_on
from gpulayer_worker.devicesheld import DevicesHeld
from gpulayer_worker.hello import hello
from gpulayer_worker.keeperlink import KeeperLink
from gpulayer_worker.kernels import Kernel, Kernels
from gpulayer_worker.layout import Layout
from gpulayer_worker.machine import Machine
from gpulayer_worker.opensessions import OpenSessions
from gpulayer_worker.options import Options
from gpulayer_worker.outbox import Outbox
from gpulayer_worker.planewatch import PlaneWatch
from gpulayer_worker.probes import Probes
from gpulayer_worker.reports import Reports
from gpulayer_worker.rooms import Rooms
from gpulayer_worker.run.calls import CallsRun
from gpulayer_worker.run.command import CommandRun
from gpulayer_worker.run.kinds import Run, abandoned, run_of
from gpulayer_worker.runners import Runners
from gpulayer_worker.takeover import end_kernel_of, kernel_of, kernels_of, runners_of, sessions_left
from gpulayer_worker.warming import Warming
from gpulayer_worker.watch import FolderWatch
from gpulayer_worker.workspace import Workspaces

__all__ = ["REFUSED", "Agent", "Options", "boottime"]

log = logging.getLogger("gpulayer.worker")

_TICK_S = 1.0
_ALONE_S = 120.0  # a local worker that holds nothing ends when its control plane was away for so long
REFUSED = 77  # the exit code that tells the keeper not to start another agent


def boottime() -> float:
    """Seconds on a clock that counts sleep."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Agent:
    """Carries out what the link decides. All of it runs on one loop; what blocks runs in threads."""

    def __init__(self, options: Options, endpoint: Callable[[], Endpoint | None]):
        self.options = options
        self.layout = Layout(options.data)
        self.reserve_bytes = options.reserve_bytes
        self._find_endpoint = endpoint
        self._nonce = secrets.token_hex(8)
        self._runs: dict[str, Run] = {}
        self.portable = options.portable
        self.rooms = Rooms(self.layout)
        self._outbox = Outbox(lambda messages: self._channel.send(messages))
        self._reports = Reports(
            self._take_reports,
            self._outbox.send_kept,
            more=lambda: any(run.running for run in self._runs.values()),
            ahead=lambda: self._link.work_waits,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._log = AttemptLog(self.layout, lambda: self._link.held, lambda name: name in self._runs)
        self._open = OpenSessions(self, lambda: list(self._runs.values()), self._spawn)
        self.sessions, self.ended_sessions = self._open.kernels, self._open.ended
        self._devices_held = DevicesHeld(lambda: self._link)
        self.machine = Machine(
            options,
            self.layout,
            os.environ,
            changed=lambda inventory: self.emit(link.MachineChanged(inventory=inventory)),
            measured=lambda sample: self.emit(link.Measured(sample=sample)),
            held=self._devices_held.uuids,
            prober=Probes(options.python, options.data, busy=self._devices_held.uuids, own=True),
        )
        self._warming = Warming(lambda: self._link.busy, lambda: self.kernels.keep_warm())
        self._done: asyncio.Future[int]

    @property
    def devices(self) -> tuple[Device, ...]:
        """What the machine has, as is known now."""
        return self.machine.inventory.devices

    @property
    def ram_bytes(self) -> int:
        """The machine's memory, within its limits."""
        return self.machine.inventory.ram_bytes

    # ---------------------------------------------------------------- life

    async def run(self) -> int:
        """Until told to end; the exit code for the keeper."""
        self._done = asyncio.get_running_loop().create_future()
        looked = asyncio.ensure_future(self.machine.start())
        self.watch = FolderWatch(portable=self.options.portable)
        self.keeper = KeeperLink(self.options.data, self.options.agent_argv, portable=self.options.portable)
        await self.keeper.start()
        self.kernels = Kernels(self.layout, self.keeper, python=self.options.python, warm=self.options.warm)
        self.runners = Runners(self.keeper, self.watch, python=self.options.python, name=self.options.name)
        self.workspaces = Workspaces(
            Blobs(self.layout.blobs), self.endpoint, self.blobs_beside, cache_bytes=self.options.cache_bytes
        )
        await looked
        await self._find_what_was()
        await asyncio.to_thread(self.layout.furnish)
        self._channel = Channel(
            self._find_endpoint,
            opened=self._opened,
            received=self._received,
            closed=self._disconnected,
            tell=self.keeper.say,
        )
        self.machine.open()
        self._plane = PlaneWatch(self.watch, self.options.control_plane, self._channel.look)
        self._plane.away()
        self._spawn(self._channel.run())
        self._spawn(self._tick())
        code = await self._done
        self._warming.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.machine.close()
        await self.kernels.close()
        await self.keeper.close(code)  # last: whoever still asked the keeper would start another one
        self.watch.close()
        await self.rooms.close()
        self._log.close()
        return code

    def stop(self, code: int = 0) -> None:
        """End the agent."""
        if not self._done.done():
            self._done.set_result(code)

    def blobs_beside(self) -> Path | None:
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
        await asyncio.to_thread(self.rooms.prepare)
        held = self._log.load()
        commands = [each.assign.attempt for each in held if each.assign.spec.command and not each.gone]
        self.keeper.keep([*commands, *runners_of(self.layout, held)])
        left = await sessions_left(self.layout, self.kernels)
        self._link = link.Link(held=held, sessions=left, now=boottime(), slots=self.options.slots)
        for name, session in left.items():
            self._devices_held.found(name, session.devices)
            self.session_ready(name, session.kernel)
        here = [each for each in held if not each.gone]
        # By the kernels' own names: one that an attempt took, and was not noted with it, would never be asked for.
        await self.kernels.clean(kernels_of(self.layout, here) | {session.kernel.name for session in left.values()})
        for each in here:
            self._take_up(each)
        await asyncio.gather(*(run.found.wait() for run in self._runs.values() if isinstance(run, CallsRun)))

    def _take_up(self, held: link.Held) -> None:
        assign = held.assign
        if assign.spec.cell is None:
            self._start(assign, resumed=True, ended=held.outcome is not None)
        elif held.outcome is not None:
            self._spawn(self._finish_clean_up(assign))
        elif (
            assign.session is not None
            and assign.session not in self.sessions
            and kernel_of(self.layout, assign) is None
        ):
            self.emit(link.GaveBack(attempt=assign.attempt, reason="its session's kernel is gone"))
        else:
            self._start(assign, resumed=True)

    async def _finish_clean_up(self, assign: Assign) -> None:
        await end_kernel_of(self.layout, self.kernels, assign)
        self.emit(link.Gone(attempt=assign.attempt))

    # ---------------------------------------------------------------- events of the channel

    def _opened(self) -> None:
        self._plane.here()
        self._outbox.forget()  # the hello, and what follows it, says all of that
        self.emit(link.Connected())

    def _disconnected(self) -> None:
        self._plane.away()
        self.emit(link.Disconnected())

    def _received(self, messages: list[ServerMessage]) -> None:
        others = pass_on(messages, self.sessions, self._runs, self.kernels)
        self.emit(*[link.Received(message=message) for message in others])
        if any(isinstance(message, Welcome) for message in others):
            self._beat()  # so that nothing is assigned to a worker that would have to give it back
            self._warming.welcomed()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self._beat()
            self.machine.tick(connected=self._link.welcomed)
            for run in list(self._runs.values()):
                run.tell_blocked()
            away_since = self._channel.away_since
            alone = away_since is not None and asyncio.get_running_loop().time() - away_since > _ALONE_S
            if alone and self.options.local and not self._link.busy:
                log.warning("the control plane is gone and nothing is held: this local worker ends")
                self.stop(0)

    def _beat(self) -> None:
        """Say that the worker is there, and whether it takes work."""
        full = self.layout.disk_low(self.reserve_bytes)
        self.emit(link.Full(reason=full), link.Tick())
        if self._link.welcomed:
            self._channel.send([Heartbeat(notes=(full,) if full else (), full=full)])

    # ---------------------------------------------------------------- the link's effects

    def emit(self, *events: link.Event) -> None:
        """Let the link handle events; what is written down is written once for all, what is sent goes in one frame."""
        self._take(events)
        self._outbox.send()

    def _take(self, events: Sequence[link.Event]) -> None:
        now = boottime()
        effects: list[link.Effect] = []
        for event in events:
            if isinstance(event, link.Ended) and event.attempt in self._link.held:
                self.machine.ended(self._link.held[event.attempt].assign.devices, event.outcome)
            effects += self._link.handle(event, now)
        self._log.changed(effect.attempt for effect in effects if isinstance(effect, link.Persist))
        self._log.write()  # before what relies on it
        for effect in effects:
            self._carry_out(effect)

    def report(self, event: link.Began | link.Ended | link.Gone) -> None:
        """As `emit`, but what is said of it goes together with what other attempts report soon."""
        self._reports.add(event)

    def _take_reports(self, events: list[link.Event]) -> None:
        """What is to be said of these waits for more; what others say meanwhile does not take it along."""
        try:
            self._take(events)
        except Exception:
            log.exception("what %d attempts reported can't be taken up", len(events))
            self.stop(1)  # no task of ours would end of it, and what they reported would be lost
            return
        self._outbox.keep()
        reach("agent.end-told")
        for event in events:
            if isinstance(event, (link.Ended, link.Gone)):
                held = self._link.held.get(event.attempt)
                if held is None or (held.gone and self._log.written(event.attempt)):
                    self.keeper.drop(event.attempt)  # now that its end is written down by us

    def _carry_out(self, effect: link.Effect) -> None:
        match effect:
            case link.Send(message=message):
                self._outbox.put(message)
            case link.SendOutput():
                self._send_output(effect)
            case link.Persist():
                pass  # it is written already
            case link.Trim(attempt=name, offset=offset):
                self._trim(name, offset)
            case link.SayHello():
                self._say_hello(effect)
            case link.Drop(attempt=name):
                self._drop(name)
            case link.RunCalls() | link.LetGo() | link.GiveBackCalls() | link.DropMap() | link.WindDown():
                self._of_calls(effect)
            case _:
                self._act(effect)

    def _of_calls(self, effect: link.ForCalls) -> None:
        run = self._runs.get(effect.attempt)
        if not isinstance(run, CallsRun):  # it could not be started, and its end is told
            return
        try:
            run.follow(effect)
        except Exception as error:  # noqa: BLE001 - it is that attempt's alone
            self.failed(effect.attempt, error)

    def _drop(self, name: str) -> None:
        reach("agent.forgotten")
        run = self._runs.pop(name, None)
        if run is not None:
            run.close()
        self._log.drop(name)  # also where an agent before us ran it
        if isinstance(run, CommandRun):
            self.keeper.let_go(name)
            self.rooms.give_back(name, pristine=run.pristine)
        else:
            self._spawn(asyncio.to_thread(self.layout.drop, name))

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
                self._spawn(self._open.end(name, "released"))
            case link.Reconnect(reason=reason):
                self._channel.reconnect(reason)
            case link.Stop(reason=reason, refused=refused):
                log.warning("%s: %s", "refused by the control plane" if refused else "told to end", reason)
                self.stop(REFUSED if refused else 0)
            case _:
                raise TypeError(f"no rule for {effect!r}")

    def _say_hello(self, effect: link.SayHello) -> None:
        worker_id, inventory = self.layout.worker_id(), self.machine.inventory
        self._outbox.put(hello(self.options, effect, worker_id=worker_id, nonce=self._nonce, inventory=inventory))

    def _send_output(self, effect: link.SendOutput) -> None:
        reach("agent.first-byte" if effect.offset == 0 else "agent.mid-output")
        data = self._run_of(effect.attempt).read(effect.offset, effect.size)
        self._outbox.put(Output(attempt=effect.attempt, offset=effect.offset, data=data))

    def _trim(self, name: str, offset: int) -> None:
        held = self._link.held.get(name)
        if held is None:  # it was let go of in the same moment
            return
        if held.end is not None and offset >= held.end:
            reach("agent.acked")
        self._run_of(name).trim(offset)

    # ---------------------------------------------------------------- runs

    def _run_of(self, name: str) -> Run:
        run = self._runs.get(name)
        if run is None:  # it ended under an agent before us: only its spool is read
            run = self._runs[name] = run_of(self, self._link.held[name].assign, resumed=True, ended=True)
        return run

    def _begin(self, assign: Assign) -> None:
        reach("agent.assigned")
        refusal = self._log.refusal(assign.attempt)
        if refusal is not None:
            self.failed(assign.attempt, refusal)
            return
        self._devices_held.assigned(assign)
        if assign.session is not None and assign.session not in self.ended_sessions:
            self.emit(link.SessionOpened(session=assign.session))
        self._start(assign, resumed=False)

    def _start(self, assign: Assign, *, resumed: bool, ended: bool = False) -> None:
        try:
            run = self._runs[assign.attempt] = run_of(self, assign, resumed=resumed, ended=ended)
            if not run.begin():
                self.go_on(assign.attempt, run.run())
        except OSError as error:
            self.failed(assign.attempt, error)

    def go_on(self, attempt: str, work: Coroutine[Any, Any, object]) -> None:
        """Do something for an attempt that takes its time."""
        self._spawn(self._watched(work, attempt))

    async def _watched(self, work: Coroutine[Any, Any, object], attempt: str) -> None:
        """A fault of ours in a run ends the attempt with a line that says so, and leaves the agent working."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - told by the attempt's record, and in the log
            self.failed(attempt, error)

    def failed(self, attempt: str, error: Exception) -> None:
        """A fault of ours, or of the disk's, ends an attempt."""
        log.error("attempt %s: the agent failed: %s", attempt, error, exc_info=not isinstance(error, OSError) and error)
        ours = f"the worker's agent failed: {error!r}; see its log"
        problem = self.layout.trouble(error) if isinstance(error, OSError) else ours
        outcome = Outcome(state=State.FAILED, problem=problem)
        end = self._link.held[attempt].spool_end if attempt in self._link.held else 0
        ended = link.Ended(attempt=attempt, end=end, outcome=outcome, gone=True)
        group = abandoned(self._runs.get(attempt))
        if group is not None:
            self._spawn(self._end_failed(ended, group))
        else:
            self.emit(ended)

    async def _end_failed(self, ended: link.Ended, group: str) -> None:
        """Nothing of a failed command, or runner, is left when that is told."""
        if group:
            await self.keeper.kill(group)
        self.report(ended)

    # ---------------------------------------------------------------- sessions

    def session_ready(self, session: str, kernel: Kernel) -> None:
        """A session's kernel is up."""
        self._open.ready(session, kernel)

    def leave_session(self, session: str, reason: str) -> None:
        """Its own cell ended it."""
        self._open.leave(session, reason)

    def _spawn(self, coroutine: object) -> None:
        task = asyncio.ensure_future(coroutine)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._reaped)

    def _reaped(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a task of the agent failed", exc_info=task.exception())
            self.stop(1)  # the keeper starts a fresh agent, which takes up everything
