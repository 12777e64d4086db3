"""One attempt of a job of calls: its files, a runner that has loaded the function, and nothing left after it.

On the hot path, from the control plane's message to the runner's socket, and from its result to the message back,
there is no task and no wait: each is one turn of the loop. What takes longer is a task of its own.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from gpulayer.protocol.calls import NOT_RUN, RUNNER_DIED, CallBatch
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import Outcome, State
from gpulayer.source import SourceError
from gpulayer_worker import link
from gpulayer_worker.keeper.client import ExitRecord
from gpulayer_worker.run.callsfeed import Feed
from gpulayer_worker.run.callsstart import Idle, Spending, calls_of, prepare, start_of
from gpulayer_worker.run.callstelling import Telling
from gpulayer_worker.run.callswords import death, failure, load_failed, outgrown
from gpulayer_worker.run.services import Over, Services
from gpulayer_worker.runner import wire
from gpulayer_worker.runners import Runner

log = logging.getLogger("gpulayer.worker")

_LEAVE_S = 5.0  # so long a runner has to end by itself
_LOADS = 2  # of a runner that dies before it can run a call
_STARTS = 3  # of one that dies between calls


class CallsRun:
    """One attempt that runs calls. `resumed`: an agent before us began it."""

    kernel = None  # as a cell has one
    session = None
    running = False  # nobody waits with a report until it ends

    def __init__(self, services: Services, assign: Assign, *, resumed: bool = False, told: bool = False):
        """`told`: an agent before us told its end: only what is left of it is waited for."""
        self._services = services
        self._assign = assign
        self._name = assign.attempt
        self._calls = calls = calls_of(assign)
        self._resumed = resumed
        self._folder = services.layout.attempt(assign.attempt)
        more = lambda: bool(self._feed.queue)  # noqa: E731
        self._telling = Telling(services, self._name, more=more, settled=self._settle, tell=self._tell)
        self._feed = Feed(
            services,
            self._name,
            calls,
            telling=self._telling,
            settled=self._settle,
            tell=self._tell,
            check_wish=self._check_wish,
        )
        self._spending = Spending(services, assign)
        self._starts = 0  # of runners, since a call had an end
        self._load_failure: dict[str, Any] | None = None  # of the function
        self._answer: tuple[int, bytes] | None = None  # what every call fails with: no runner comes up
        self._answered = Outcome(state=State.FAILED)  # how the attempt ends then
        self._began = False
        self._leaving = False  # the runner was told to end
        self._replacing = False  # so that another one takes its place
        self._ending: Outcome | None = None  # how it ends, once nothing is left to do
        self._over = told  # its end was told
        self._wish = ""  # 'cancel', 'kill'
        self._wish_problem = ""
        self._idle = Idle(calls.idle_timeout_s, self._idled)
        self._force_timer: asyncio.TimerHandle | None = None
        self._blocked = False
        self.found = asyncio.Event()  # what an agent before us left is known
        self.ended = asyncio.Event()

    @property
    def group(self) -> str:
        """The processes of its runner, as the keeper knows them; '' where it has none."""
        return self._feed.runner.id if self._feed.runner is not None else ""

    # ---------------------------------------------------------------- what the control plane wants

    def follow(self, effect: link.ForCalls) -> None:
        """About its calls."""
        match effect:
            case link.RunCalls(batches=batches):
                self._take(batches)
            case link.LetGo(ranges=ranges):
                reach("agent.calls-accepted")
                if self._feed.runner is not None:
                    self._feed.runner.accept(ranges)
                self._telling.let_go(ranges)
            case link.GiveBackCalls(count=count):
                self._feed.recall(count)
            case link.DropMap(map=name):
                self._feed.drop(name)
            case link.WindDown():
                self._wind_down()
        self._settle()

    def _take(self, batches: tuple[CallBatch, ...]) -> None:
        reach("agent.calls-came")
        leaving = self._leaving and not self._replacing
        if self._over or leaving or (self._ending is not None and self._load_failure is None):
            self._feed.refuse(batches)
            return
        self._idle.ends()
        self._feed.take(batches)
        if self._answer is not None:
            self._answer_all()

    def _wind_down(self) -> None:
        """End once what the runner has is done; what waits goes back."""
        if self._ending is None:
            self._ending = Outcome(state=State.SUCCEEDED)
        self._feed.give_back_waiting()

    def interrupt(self, grace_s: float) -> None:
        """Interrupt the call that runs, and end; by force after `grace_s` seconds. Asked again, nothing changes."""
        if self._wish:
            return
        self._wish = "cancel"
        self._ending = Outcome(state=State.CANCELLED)
        self._feed.stopping = True
        self._feed.give_back_waiting()
        if self._feed.ready:
            self._services.go_on(self._name, self._feed.stop())
            self._force_after(grace_s)
        else:
            self._force()  # nobody's call runs

    def kill(self, why: str) -> None:
        """End it at once."""
        self._wish, self._wish_problem = "kill", why
        self._ending = Outcome(state=State.FAILED, problem=why)
        self._feed.stopping = True
        self._telling.give_up()
        self._force()

    def abandon(self) -> None:
        """It failed for a fault of ours: whoever says so ends its processes, and no other is started."""
        self._over = True
        self._feed.stopping = True
        self._quiet()

    def _force(self) -> None:
        if self._feed.runner is not None:
            self._services.go_on(self._name, self._feed.runner.kill())

    def _force_after(self, delay_s: float) -> None:
        if self._force_timer is not None:
            self._force_timer.cancel()
        self._force_timer = asyncio.get_running_loop().call_later(delay_s, self._force)

    def _check_wish(self) -> None:
        if self._wish:
            state = State.CANCELLED if self._wish == "cancel" else State.FAILED
            raise Over(Outcome(state=state, problem=self._wish_problem))

    # ---------------------------------------------------------------- its stream

    def read(self, offset: int, size: int) -> bytes:
        """Bytes of the spool."""
        return self._telling.reader.read(offset, size)

    def trim(self, offset: int) -> None:
        """What the control plane has may go."""
        self._telling.reader.release(offset)

    def close(self) -> None:
        """Nothing of it is wanted any more."""
        self._quiet()
        self._feed.close()
        self._telling.close()

    def tell_blocked(self) -> None:
        """Say so while the runner waits for space on the disk, and when it no longer does."""
        blocked = self._telling.reader.blocked() if self._feed.ready else None
        if blocked is not None or self._blocked:
            self._blocked = blocked is not None
            free = (blocked or {}).get("free_bytes", 0) / 1e6
            self._tell(f"output waits: {free:,.0f} MB free on the worker's disk" if self._blocked else "")

    def _tell(self, text: str) -> None:
        self._services.emit(link.Doing(attempt=self._name, text=text))

    # ---------------------------------------------------------------- the start

    def begin(self) -> bool:
        """All of it takes its time."""
        return False

    async def run(self) -> None:
        """From the assignment until a runner is on its way, or the one of an agent before us is found."""
        noted = self._services.layout.noted(self._folder, "runner") if self._resumed else None
        try:
            if noted is not None:
                await self._take_up(noted)
                return
            self.found.set()
            if self._over:
                self._services.report(link.Gone(attempt=self._name))
                return
            await prepare(self._services, self._calls, self._folder, tell=self._tell, check_wish=self._check_wish)
            self._check_wish()
            if self._ending is None:
                self._start()
            else:
                self._finish(self._ending)
        except Over as over:
            self._cannot(over.outcome)
        except SourceError as error:
            self._cannot(Outcome(state=State.FAILED, problem=str(error)))
        except OSError as error:
            self._cannot(Outcome(state=State.FAILED, problem=self._services.layout.trouble(error)))
        finally:
            self.found.set()

    def _start(self) -> None:
        """A new runner. Raises OSError."""
        reach("agent.before-runner")
        if not self._began:
            self._tell("starting a runner")
        self._starts += 1
        self._leaving = self._replacing = False
        start = start_of(self._services, self._assign, self._folder)
        runner = self._feed.runner = self._services.runners.start(start, self)
        self._services.layout.note(self._folder, "runner", runner.note)  # before the keeper is asked for it
        self._attend(runner)
        self._services.go_on(self._name, runner.connect())

    def _attend(self, runner: Runner) -> None:
        try:
            self._telling.watch()
        except OSError as error:
            log.warning("the spool of %s can't be watched, and is looked at with results only: %s", self._name, error)
        self._spending.begin(runner.id)

    async def _take_up(self, noted: dict[str, Any]) -> None:
        """Find the runner of an agent before us."""
        runner = self._feed.runner = self._services.runners.find(noted, self)
        if self._over:
            await runner.kill()
            return
        self._attend(runner)
        await self._feed.take_up(runner)

    # ---------------------------------------------------------------- what the runner says

    def on_frames(self, frames: list[wire.Frame]) -> None:
        """What it said in one turn of the loop."""
        for frame in frames:
            if isinstance(frame, wire.Done):
                self._feed.done(frame)
                self._starts = 0
                if self._load_failure is not None and self._ending is None:
                    self._ending = load_failed(self._load_failure)  # whoever mends what lacks wants it loaded anew
            else:
                self._said(frame)
        self._feed.fill()
        self._telling.tell()
        self._settle()

    def _said(self, frame: wire.Frame) -> None:
        match frame:
            case wire.Ready():
                self._begin()
            case wire.LoadFailed(failure=found):
                self._load_failure = found
                self._begin()
            case wire.Busy():
                self._feed.busy(frame)
            case wire.Replace(why=why):
                self._feed.replaced()
                self._replacing = True
                if self._calls.stateful and self._ending is None:
                    self._ending = outgrown(why)
                self._leave()
            case _:
                raise wire.WireError(f"a runner says no {type(frame).__name__}")

    def _begin(self) -> None:
        """Calls can be run, or fail for that they can't."""
        self._feed.ready = self._answer is None
        if not self._began:
            self._began = True
            self._services.emit(link.Began(attempt=self._name))

    def on_lost(self) -> None:
        """The connection is gone, and the runner may live."""
        if self._feed.runner is not None:
            self._services.go_on(self._name, self._feed.join_again(self._feed.runner))

    def on_fault(self, error: Exception) -> None:
        """A fault of ours."""
        self._services.failed(self._name, error)

    # ---------------------------------------------------------------- the end

    def _settle(self) -> None:
        """Where nothing is left to do: end, if that is wanted, or note since when that is so."""
        if self._over or self._feed.queue or (self._telling and not self._wish):
            return
        if self._ending is not None:
            self._leave()
        elif self._began:
            self._idle.begins()

    def _idled(self) -> None:
        self._wind_down()
        self._settle()

    def _leave(self) -> None:
        """Let the runner end; the attempt ends with it, unless another one is to follow."""
        runner = self._feed.runner
        if runner is None:
            if self._ending is not None and self._started:
                self._finish(self._ending)
        elif not self._leaving:
            self._leaving = True
            self._force_after(_LEAVE_S if runner.send([wire.End()]) else 0.0)

    @property
    def _started(self) -> bool:
        """Whether nobody is about to start a runner."""
        return self._starts > 0 or self._answer is not None

    def on_dead(self, record: ExitRecord | None, why: str) -> None:
        """Nothing is left of the runner: another one, the end, or, where none comes up, nothing but failures."""
        runner = self._feed.runner
        if runner is None:
            return
        if record is not None:
            self._spending.end(record)
            why = death(record, runner.tail(), self._services.ram_bytes)
        runner.forget()
        loaded, asked_to_leave = self._feed.ready, self._leaving
        self._telling.tell(now=True)
        if self._feed.lost(why):
            self._starts = 0  # a call's fault, not the runner's
        self._quiet()
        if self._over:
            self._services.report(link.Gone(attempt=self._name))
        elif self._ending is not None or self._calls.stateful:
            died = Outcome(state=State.FAILED, problem=f"its runner died: {why}")
            self._feed.give_back_waiting()
            self._finish(self._ending if self._ending is not None and (asked_to_leave or self._wish) else died)
        elif self._starts >= _STARTS or (not loaded and not asked_to_leave and self._starts >= _LOADS):
            words = "its runners die" if loaded else "the runner died while it loaded the function"
            self._cannot(Outcome(state=State.FAILED, problem=f"{words}: {why}"), code=RUNNER_DIED)
        else:
            self._start_again()

    def _start_again(self) -> None:
        try:
            self._start()
        except OSError as error:
            self._cannot(Outcome(state=State.FAILED, problem=self._services.layout.trouble(error)))

    def _cannot(self, outcome: Outcome, *, code: int = NOT_RUN) -> None:
        """No runner comes up here: calls fail with the reason, or they would go round for ever."""
        if self._wish or outcome.state is not State.FAILED:
            self._finish(outcome)
            return
        self._answer, self._answered = (code, failure("load", outcome.problem)), outcome
        self._load_failure = {}
        self._begin()
        self._answer_all()
        self._settle()

    def _answer_all(self) -> None:
        ranges = self._feed.queue.recall(self._feed.queue.waiting)
        if ranges and self._answer is not None:
            self._ending = self._ending or self._answered
            self._telling.fail(ranges, *self._answer)

    def _finish(self, outcome: Outcome) -> None:
        """Its processes are gone: the last of its stream, then the end."""
        if self._over:
            return
        self._over = True
        self._quiet()
        self._telling.tell(now=True)
        self._telling.stop()
        self._telling.look()
        self.ended.set()
        outcome = self._spending.added(outcome)
        end = self._telling.end
        self._services.report(link.Ended(attempt=self._name, end=end, outcome=outcome, began=self._began, gone=True))

    def _quiet(self) -> None:
        """No timer any more."""
        self._idle.stop()
        self._spending.stop()
        if self._force_timer is not None:
            self._force_timer.cancel()
            self._force_timer = None
