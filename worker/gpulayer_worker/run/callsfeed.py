"""A runner and the calls that it is given: what it gets when, and what it says of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

from msgspec.structs import replace

from gpulayer.protocol.calls import NOT_RUN, RAISED, TIMED_OUT, CallBatch, CallRange, CallRun, CallsSpec
from gpulayer_worker import link
from gpulayer_worker.callranges import CallRanges
from gpulayer_worker.run.callsblobs import ArgumentBlobs
from gpulayer_worker.run.callsqueue import CallQueue, Pace, Piece
from gpulayer_worker.run.callstelling import Telling
from gpulayer_worker.run.callswords import failure, overdue
from gpulayer_worker.run.services import Services
from gpulayer_worker.runner import wire
from gpulayer_worker.runners import Runner, RunnerError

log = logging.getLogger("gpulayer.worker")

_STOP_S = 2.0  # so long a call has to follow an interrupt


class Feed:
    """The calls of one attempt, and the runner that runs them, if there is one.

    Arguments:
        services: the agent.
        attempt: its name.
        calls: what the attempt is for.
        telling: takes results.
        settled: called when there may be nothing left to do.
        tell: takes lines about how far large arguments are.
        check_wish: raises `Over` where nobody wants them any more.
    """

    def __init__(
        self,
        services: Services,
        attempt: str,
        calls: CallsSpec,
        *,
        telling: Telling,
        settled: Callable[[], None],
        tell: Callable[[str], None],
        check_wish: Callable[[], None],
    ):
        self._services = services
        self._attempt = attempt
        self._calls = calls
        self._telling = telling
        self._settled = settled
        self.queue = CallQueue(in_order=calls.stateful)
        self._pace = Pace()
        self._arguments = ArgumentBlobs(
            services, here=self.fill, failed=self._not_here, tell=tell, check_wish=check_wish
        )
        self.runner: Runner | None = None
        self.ready = False  # the runner takes calls
        self.stopping = False  # nothing more is given to it
        self._busy: tuple[str, int] | None = None  # the call that has been running for a while
        self._late: tuple[str, int, float] | None = None  # the one that was interrupted for its timeout, seconds
        self._timers: list[asyncio.TimerHandle] = []

    # ---------------------------------------------------------------- calls that come

    def take(self, batches: Iterable[CallBatch]) -> None:
        """Run these, in order."""
        batches = tuple(batches)
        self.queue.put(batches)
        for batch in batches:
            if batch.blobs:
                self._arguments.want(batch)
        self.fill()

    def fill(self) -> None:
        """Give the runner what is its turn."""
        runner = self.runner
        if not self.ready or runner is None or self.stopping or self._busy is not None:
            return  # behind a call that takes long nothing waits in the runner
        arguments = self._arguments
        pieces = self.queue.hand(1 if self._calls.isolate else self._pace.window, arguments.ready, arguments.lacking)
        if pieces:
            runner.send([_frame(piece) for piece in pieces])

    def refuse(self, batches: Iterable[CallBatch]) -> None:
        """Give back calls that came too late."""
        self.give_back([CallRange(map=each.map, first=each.first, count=len(each.args)) for each in batches])

    # ---------------------------------------------------------------- calls that go

    def give_back(self, ranges: Iterable[CallRange], *, began: bool = False, reason: str = "") -> None:
        """Tell that these did not come to an end here."""
        ranges = tuple(ranges)
        if ranges:
            self._services.emit(link.CallsBack(attempt=self._attempt, ranges=ranges, began=began, reason=reason))

    def give_back_waiting(self) -> None:
        """Give back all that waits."""
        self.give_back(self.queue.recall(self.queue.waiting))

    def recall(self, count: int) -> None:
        """Give back so many calls that did not begin, the last ones first."""
        ranges = self.queue.recall(count)
        self.give_back(ranges)
        left = count - sum(each.count for each in ranges)
        if left > 0 and self.queue.handed > 1 and self.runner is not None:
            self._go_on(self._recall(self.runner, left))

    async def _recall(self, runner: Runner, count: int) -> None:
        await self._take_back(runner, count, then=lambda: self.give_back(self.queue.recall(count)))

    async def _take_back(
        self, runner: Runner, count: int = 1 << 30, *, then: Callable[[], None] = lambda: None
    ) -> None:
        """Let calls that the runner has not begun wait here again, and `then` go on: it may be idle by now."""
        answer = await self._ask(runner, {"op": "recall", "count": count})
        if answer is None or self.runner is not runner:
            return  # what it had is told by its end
        self.give_back(self.queue.taken_back(ranges_of(answer["recalled"])))
        then()
        self.fill()
        self._settled()

    def drop(self, name: str) -> None:
        """The calls of a map are not wanted: the one that runs is interrupted."""
        self.queue.drop(name)
        if self.runner is not None and any(piece.map == name for piece in self.queue.given):
            self._go_on(self._drop(self.runner, name))

    async def _drop(self, runner: Runner, name: str) -> None:
        answer = await self._ask(runner, {"op": "drop", "map": name})
        if answer is None or self.runner is not runner:
            return
        self.queue.lose(ranges_of(answer["dropped"]))
        index = answer["interrupting"]
        if index is not None:
            self._later(_STOP_S, lambda: self._end_if_it_holds(runner, name, index))
        self.fill()
        self._settled()

    async def stop(self) -> None:
        """What has not begun goes back, the call that runs is interrupted."""
        runner, self.stopping = self.runner, True
        if runner is not None and self.queue.handed:
            await self._take_back(runner)
        self.give_back_waiting()
        head = self.queue.head
        if runner is not None and head is not None:
            await self._ask(runner, {"op": "interrupt", "map": head[0], "index": head[1]})
        self._settled()

    async def _ask(self, runner: Runner, request: dict[str, Any]) -> dict[str, Any] | None:
        """A runner's answer; one that gives none, though it lives, is ended."""
        try:
            return await runner.ask(request)
        except RunnerError as error:
            log.warning("runner %s of attempt %s: %s: it is ended", runner.id, self._attempt, error)
            await runner.kill()
            return None

    def _end_if_it_holds(self, runner: Runner, name: str, index: int) -> None:
        """End a runner that still runs a call."""
        if self.runner is runner and self.queue.holds(name, index):
            self._go_on(runner.kill())

    def _not_here(self, digest: str, why: str) -> None:
        """What calls need can't be had."""
        text = failure("value", f"its arguments could not be fetched: {why}")
        self._telling.fail(self.queue.fail(digest), NOT_RUN, text)
        self._settled()

    # ---------------------------------------------------------------- what the runner says

    def done(self, done: wire.Done) -> None:
        """Calls came to an end."""
        first, stop = done.first, done.first + len(done.codes)
        if self._telling.known(done.map, first, stop):
            return  # it says again, on a new connection, what we know
        self.queue.done(done.map, first, stop)
        self._pace.ran(stop - first, done.spent_us)
        if self._busy is not None and self._busy[0] == done.map and first <= self._busy[1] < stop:
            self._busy = None
        run = CallRun(map=done.map, first=first, codes=done.codes, data=tuple(done.data), spent_us=done.spent_us)
        if self._late is not None and self._late[0] == done.map and first <= self._late[1] < stop:
            run, self._late = _called_late(run, self._late), None
        self._telling.add(run, done.blobs)

    def busy(self, busy: wire.Busy) -> None:
        """A call takes long: what was given with it waits here again, for nobody knows how long."""
        if not self.queue.holds(busy.map, busy.index):
            return  # it ended while this was said
        name, index = self._busy = busy.map, busy.index
        batch = self.queue.batch_of(name, index)
        timeout_s = batch.timeout_s if batch is not None else None
        if timeout_s is not None:
            left_s = max(0.0, timeout_s - busy.elapsed_us / 1e6)
            self._later(left_s, lambda: self._overdue(name, index, timeout_s))
        if self.queue.handed > 1 and self.runner is not None:
            self._go_on(self._put_back(self.runner))

    async def _put_back(self, runner: Runner) -> None:
        await self._take_back(runner)
        self.fill()  # the call that took long may have ended meanwhile

    def _overdue(self, name: str, index: int, timeout_s: float) -> None:
        runner = self.runner
        if self._busy == (name, index) and runner is not None:
            self._late = name, index, timeout_s
            self._go_on(self._ask(runner, {"op": "interrupt", "map": name, "index": index}))
            self._later(_STOP_S, lambda: self._end_if_it_holds(runner, name, index))

    # ---------------------------------------------------------------- runners that come and go

    async def take_up(self, runner: Runner) -> None:
        """Use a runner that an agent before us started, with all that it holds."""
        held = await self._joined(runner)
        if held is None:
            return
        ranges = _held(held)
        self.queue.found(ranges)
        if ranges:
            self._services.emit(link.CallsFound(attempt=self._attempt, ranges=tuple(ranges)))
        runner.heard()

    async def join_again(self, runner: Runner) -> None:
        """The connection broke: what the runner never read of what it was given waits again."""
        if self.runner is not runner:
            return  # it had ended
        self.ready = False
        held = await self._joined(runner)
        if held is None:
            return
        has = CallRanges(_held(held))
        lost = [
            CallRange(map=piece.map, first=first, count=stop - first)
            for piece in self.queue.given
            for first, stop in has.lacking(piece.map, piece.first, piece.stop)
        ]
        self.give_back(self.queue.taken_back(lost))
        runner.heard()

    async def _joined(self, runner: Runner) -> dict[str, Any] | None:
        try:
            return await runner.join()
        except RunnerError as error:
            log.warning("runner %s of attempt %s: %s: it is ended", runner.id, self._attempt, error)
            await runner.kill()
            return None

    def replaced(self) -> None:
        """The runner runs nothing any more: what it has not run waits for the next one."""
        self.ready = False
        self.give_back(self.queue.again(self.queue.handed_over()))

    def lost(self, why: str) -> bool:
        """The runner died. The call that it ran is told, the others run elsewhere; whether it is known which it was."""
        pieces = self.queue.handed_over()
        ran, late = self._busy or _only(pieces), self._late
        self.runner, self.ready, self._busy, self._late = None, False, None, None
        self._quiet()
        if not pieces or self.stopping:
            self.give_back([piece.range for piece in pieces])
            return False
        if ran is None and not self._calls.stateful:
            # A few short calls, of which one ended it, and others were done but not told: one by one it shows which.
            self.queue.careful = sum(piece.stop - piece.first for piece in pieces)
            self.give_back(self.queue.again(pieces))
            return False
        name, index = ran or (pieces[0].map, pieces[0].first)
        one = CallRange(map=name, first=index)
        if late is not None and late[:2] == (name, index):
            self._telling.fail([one], TIMED_OUT, overdue(late[2]))
        else:
            self.give_back([one], began=True, reason=why)
        self.give_back([piece.range for piece in pieces])  # but that one, of which more was told
        self.give_back_waiting()
        return True

    def close(self) -> None:
        """Nothing of it is wanted any more."""
        self._quiet()
        self._arguments.close()
        if self.runner is not None:
            self.runner.close()

    def _quiet(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _go_on(self, work: Coroutine[Any, Any, object]) -> None:
        self._services.go_on(self._attempt, work)

    def _later(self, delay_s: float, call: Callable[[], object]) -> None:
        loop = asyncio.get_running_loop()
        self._timers = [timer for timer in self._timers if timer.when() > loop.time()]
        self._timers.append(loop.call_later(delay_s, call))


def _frame(piece: Piece) -> wire.Calls:
    batch = piece.batch
    if batch is None:
        raise ValueError(f"nobody knows the arguments of {piece.map}:{piece.first}")
    return wire.Calls(piece.map, piece.first, piece.args, batch.method, batch.stream, piece.places)


def _only(pieces: list[Piece]) -> tuple[str, int] | None:
    """The call in these, if it is one."""
    if len(pieces) == 1 and pieces[0].stop - pieces[0].first == 1:
        return pieces[0].map, pieces[0].first
    return None


def ranges_of(rows: Iterable[Iterable[Any]]) -> list[CallRange]:
    """Ranges as a runner names them."""
    return [CallRange(map=name, first=first, count=count) for name, first, count in rows]


def _held(answer: dict[str, Any]) -> list[CallRange]:
    """Everything that a runner has, the call that runs first."""
    running = [(*answer["running"][:2], 1)] if answer["running"] else []
    return ranges_of([*running, *answer["waiting"], *answer["unaccepted"]])


def _called_late(run: CallRun, late: tuple[str, int, float]) -> CallRun:
    """A call that followed the interrupt for its timeout has timed out; one that made it all the same has a result."""
    place = late[1] - run.first
    if run.codes[place] != RAISED:
        return run
    codes = run.codes[:place] + bytes((TIMED_OUT,)) + run.codes[place + 1 :]
    return replace(run, codes=codes, data=(*run.data[:place], overdue(late[2]), *run.data[place + 1 :]))
