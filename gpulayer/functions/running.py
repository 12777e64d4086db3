"""One map as this process sees it: arguments out; results, texts and its end in; all of it in the thread that waits."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from gpulayer.client.errors import ControlPlaneError, RequestRefused, interrupted
from gpulayer.functions.failures import CallError, call_error, failure_of, map_error, what_helps
from gpulayer.functions.options import CallRefused
from gpulayer.functions.showing import Show
from gpulayer.functions.stopping import Stop
from gpulayer.protocol.calls import (
    MESSAGE_BYTES,
    MESSAGE_CALLS,
    OK,
    MapRecord,
    MapResults,
    MapSpec,
    MapUpdate,
    MapView,
    ResultRun,
)
from gpulayer.protocol.messages import Refused
from gpulayer.protocol.records import Kind
from gpulayer.protocol.types import TERMINAL, Problem, Requirements, State
from gpulayer.protocol.values import ValueRefused
from gpulayer.protocol.values.calls import pack_call, unpack

if TYPE_CHECKING:
    from gpulayer.client.maps import MapNews, MapSubscription
    from gpulayer.functions.hub import Hub
    from gpulayer.functions.versions import Version

Arguments: TypeAlias = "tuple[tuple[Any, ...], Mapping[str, Any]]"

LOOK_S = 0.2  # how often people see what is new; messages come at once
_FIRST_CALLS = 64  # of the first message: it is soon on its way
_FLUSH_S = 0.005  # so long arguments are gathered for one message
_AHEAD_CALLS = 16_384  # of a generator: so many calls more than results that were taken
_SENT_TIMES = 2  # a bundle, for one map
_BLOBS_LACK = frozenset({"blob_unknown", "blobs_unknown", "inputs_unknown"})
_CONFIRM_S = 3.0  # so long Ctrl-C waits for the word that nothing runs any more


class Run:
    """One map. One thread at a time may use it; it is closed, or left, by whoever made it."""

    def __init__(
        self,
        hub: Hub,
        spec: MapSpec,
        *,
        name: str,
        requirements: Requirements = Requirements(),  # noqa: B008 it is frozen
        version: Version | None = None,
        job: bytes = b"",
        arguments: Iterator[Arguments] | None = None,
        map_id: str = "",
        ordered: bool = True,
        chunk: int | None = None,
        progress: bool | None = None,
        told: Callable[[], None] | None = None,
        keeps: object = None,
    ):
        """A new map of the packed job `job` with these arguments, or the known one `map_id`. `keeps` lives as long.

        Raises `CallRefused` where the first arguments can't travel: nothing was sent then.
        """
        self.hub = hub
        self.spec = spec
        self.show = Show(name, requirements, single=spec.single, progress=progress)
        self.show.total = spec.total
        self.ended = False  # nothing more comes
        self.owned = not map_id  # an interrupt cancels it; one that others made, or that was let go of, is left
        self.view: MapView | None = None
        self.items: dict[int, dict[int, bytes]] = {}  # of generators: by the call's index, by their number
        self._keeps = keeps
        self._name = name
        self._requirements = requirements
        self._version = version
        self._arguments = arguments
        self._ordered = ordered
        self._chunk = min(MESSAGE_CALLS, chunk or MESSAGE_CALLS)
        # Of a generator nobody knows how long the next one takes: what waits for it is never more than was sent.
        self._most = 1 if spec.total is None else _FIRST_CALLS
        self._ready: list[ResultRun] = []
        self._next = 0  # ordered: the index of the next result
        self._added = 0  # calls
        self._returned = 0  # results that came
        self._sent = 0  # bundles
        self._finished = False
        self._cancelled = False  # of a map that had more to come, what came is not all: its end is awaited
        self._end = ""  # 'failed': a call did, and its exception is raised
        self.mends_later = False  # whoever waits calls `mend`, where it may block
        self.unmended: Problem | None = None
        if map_id:
            self.subscription: MapSubscription = hub.connection.follow_map(map_id, ordered=ordered, told=told)
            return
        args, blobs, last = self._gather()
        self.subscription = hub.connection.open_map(
            job, spec, secrets.token_hex(12), args, blobs, last=last, ordered=ordered, told=told
        )

    @property
    def requirements(self) -> Requirements:
        """What its calls need of their machine, as far as it is known here."""
        return self._requirements

    # ---------------------------------------------------------------- arguments

    @property
    def wants_to_send(self) -> bool:
        """Whether `pump` would send something."""
        ahead = self.spec.total is None and self._added - self._returned >= _AHEAD_CALLS
        return self._arguments is not None and not self.ended and self.subscription.room and not ahead

    def pump(self, *, everything: bool = False) -> bool:
        """Send some more arguments, if there are and there is room; whether there were. Raises what these raise.

        Of those without a known number only some more than there are results, unless `everything` is to go.
        """
        subscription = self.subscription
        if self._arguments is None or not subscription.room or self.ended:
            return False
        if not everything and self.spec.total is None and self._added - self._returned >= _AHEAD_CALLS:
            return False
        args, blobs, last = self._gather()
        subscription.add(args, blobs, last=last)
        return True

    def _gather(self) -> tuple[list[bytes], list[str], bool]:
        """The next arguments, packed, the blobs that they name, and whether they are the last."""
        args: list[bytes] = []
        blobs: dict[str, None] = {}
        size = 0
        put, source, total = self.hub.blobs.put, self._arguments, self.spec.total
        until = time.perf_counter() + _FLUSH_S
        most = min(self._most, self._chunk)
        if total is not None:
            self._most = self._chunk
            most = min(most, total - self._added)
        else:
            self._most = min(MESSAGE_CALLS, self._most * 2)
        while source is not None and len(args) < most and size < MESSAGE_BYTES:
            each = next(source, None)
            if each is None:
                break
            try:
                packed, digests = pack_call(each[0], dict(each[1]) if each[1] else {}, blob=put)
            except ValueRefused as refused:
                where = "" if self.spec.single else f" (call {self._added + len(args)})"
                raise CallRefused(f"{self._name}{where}: {refused}") from None
            args.append(packed)
            size += len(packed)
            if digests:
                blobs.update(dict.fromkeys(digests))
            if time.perf_counter() > until:
                self._most = 1 if total is None else self._chunk
                break
        else:
            each = ((), {})
        self._added += len(args)
        last = each is None or self._added == total
        if each is None and total is not None and self._added < total:
            raise CallRefused(
                f"{self._name}: of {total} arguments only {self._added} were there: they changed meanwhile"
            )
        if last:
            self._arguments = None
        return args, list(blobs), last

    # ---------------------------------------------------------------- news

    def next_runs(self) -> list[ResultRun]:
        """Results that came, once there are some; none at the end. Raises why the map ended without its results."""
        __tracebackhide__ = True
        self.wait(lambda: bool(self._ready))
        return self.take_runs()

    def wait(self, enough: Callable[[], bool], timeout_s: float | None = None) -> None:
        """Send arguments and take news until there is enough, it is over, or `timeout_s` passed.

        Raises what comes of the arguments, and KeyboardInterrupt once it is cancelled.
        """
        __tracebackhide__ = True
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        with Stop(self.subscription.wake) as stop:
            while not (enough() or self.ended):
                left_s = LOOK_S if until_s is None else min(LOOK_S, until_s - time.monotonic())
                if left_s <= 0:
                    return
                if self._arguments is not None:
                    stop.disarm()  # an interrupt is for whatever makes arguments
                    more = self.pump()
                    stop.arm()
                    self._step(0.0 if more else left_s, stop)
                else:
                    self._step(left_s, stop)

    def take_runs(self) -> list[ResultRun]:
        """Results that came and were not taken; nothing is waited for."""
        ready, self._ready = self._ready, []
        return ready

    @property
    def has_runs(self) -> bool:
        """Whether results came that were not taken."""
        return bool(self._ready)

    def send_all(self) -> None:
        """Send all arguments, and wait until they are where nothing loses them. Raises as `wait`."""
        while not self.subscription.all_taken and not self.ended:
            if self.pump(everything=True):
                self.subscription.look()
            else:
                with Stop(self.subscription.wake) as stop:
                    self._step(LOOK_S, stop)

    def _step(self, timeout_s: float, stop: Stop) -> None:
        """Take what came, or wait for it."""
        __tracebackhide__ = True
        if timeout_s <= 0:
            self.subscription.look()  # what was given goes once it is known what the map is called
        news = self.subscription.take()
        if news is None and timeout_s > 0:
            self.show.flush()
            news = self.subscription.get(timeout_s)
            if news is None:
                self._quiet()
        if stop.wanted:
            if news is not None:
                self._handle(news)
            if self.owned:
                self._confirm_cancel()
            raise interrupted()
        while news is not None:
            self._handle(news)
            if self.ended:
                return
            news = self.subscription.take()

    def poll(self, *, pumps: bool = True) -> None:
        """The same, without waiting for anything; without `pumps` no arguments are sent."""
        if self._finished:
            return
        if pumps:
            self.pump()
        while not self.ended and (news := self.subscription.take()) is not None:
            self._handle(news)
        self.show.flush()

    def _confirm_cancel(self) -> None:
        """Cancel, and wait a moment for the word that nothing of it runs any more."""
        self.cancel()
        until_s = time.monotonic() + _CONFIRM_S
        while not self.subscription.over and time.monotonic() < until_s:
            try:
                news = self.subscription.get(LOOK_S)
            except ControlPlaneError:
                return  # nobody is there any more
            if isinstance(news, MapRecord):
                self._record(news)
            elif isinstance(news, Refused):
                return
            if not self.hub.connection.wait_ready(0):
                return

    def _quiet(self) -> None:
        connection = self.hub.connection
        if connection.wait_ready(0):
            self.show.tick()
        elif self.subscription.id:
            self.show.note(f"◌ control plane out of reach, it goes on · {self.subscription.id}")
        else:
            self.show.note(f"◐ waiting for the control plane · {connection.away or 'starting it'}")

    def _handle(self, news: MapNews) -> None:
        if isinstance(news, MapResults):
            for run in news.runs:
                self._results(run)
            self.show.done = self._returned
        elif isinstance(news, MapRecord):
            self._record(news)
        elif isinstance(news, MapUpdate):
            self.view = news.map
            self.show.state(news.map)
            if news.map.state in TERMINAL:
                self.ended = True
        else:
            self._refused(news.problem)
        self.show.tick()

    def _results(self, run: ResultRun) -> None:
        if self._ordered:
            over = self._next - run.first
            if over > 0:  # these came before a break
                run = ResultRun(first=self._next, codes=run.codes[over:], data=run.data[over:])
            self._next = max(self._next, run.first + len(run.data))
        if not run.data:
            return
        self._ready.append(run)
        self._returned += len(run.data)
        if not (self.spec.return_exceptions or self._end) and any(run.codes):
            self._end = "failed"
            self.show.failed_index = run.first + next(place for place, code in enumerate(run.codes) if code)
        self.show.ended(run.first, len(run.data))
        all_came = self._arguments is None and self.subscription.complete and self._returned == self._added
        if all_came and not self._cancelled:
            self.ended = True  # its last state is of no further use

    def _record(self, record: MapRecord) -> None:
        if record.kind == Kind.CALL_ITEM:
            self.items.setdefault(record.index, {})[record.seq] = record.data
        else:
            self.show.text(record.index, record.kind, record.data)

    # ---------------------------------------------------------------- what is refused

    def _refused(self, problem: Problem) -> None:
        version = self._version
        if problem.code != "bundle_unknown" or version is None or version.bundle is None or self._sent >= _SENT_TIMES:
            if problem.code in _BLOBS_LACK:
                self.hub.blobs.forget()
            raise RequestRefused(problem)
        self.unmended = problem
        if not self.mends_later:
            self.mend()

    def mend(self) -> None:
        """Send the files that lack, and ask again. Blocks. Raises as `Sender.send`."""
        version, self.unmended = self._version, None
        self._sent += 1
        endpoint = self.hub.connection.endpoint
        if endpoint is None:
            raise ControlPlaneError("the control plane went away while the files were sent; call it again")
        if version is not None and version.folder is not None and version.bundle is not None:
            version.folder.send(version.bundle, endpoint, self.show.note)
        self.subscription.open_again()

    # ---------------------------------------------------------------- results

    def value(self, data: bytes) -> Any:
        """The value of a result."""
        return unpack(data, blob=self.hub.blobs.get)

    def error(self, code: int, data: bytes, index: int) -> CallError:
        """What a failed call is raised as, or returned."""
        failure = failure_of(data, self._version.cells if self._version is not None else {})
        hint = what_helps(failure, self._name, self._version.bundle) if self._version is not None else ""
        return call_error(failure, call=self._call_id(index), index=index, hint=hint)

    def _call_id(self, index: int) -> str:
        return self.subscription.id if self.spec.single else f"{self.subscription.id}[{index}]"

    def check_end(self) -> None:
        """Raises why the map ended without all of its results; nothing where it has them."""
        view = self.view
        if view is None or view.state is State.SUCCEEDED or view.state not in TERMINAL:
            return
        if view.state is State.FAILED and view.failed_index is not None:
            raise self.error(view.failed_code, view.failure, view.failed_index)
        raise map_error(view, self._requirements)

    def only_value(self) -> Any:
        """The result of the only call, which is there; of a generator the list of what was not taken of its items.

        Raises what the call raised, or why there is no result.
        """
        for each in self.take_runs():
            if each.codes[0] != OK:
                raise self.error(each.codes[0], each.data[0], each.first)
            return gathered(self, each.first) if self.spec.stream else self.value(each.data[0])
        self.check_end()
        raise ControlPlaneError(f"call {self.subscription.id} ended without a result")

    # ---------------------------------------------------------------- its end here

    def leave(self) -> None:
        """Take no more of it; what is not over is cancelled."""
        self.finish() if self.ended else self.abandon()

    def cancel(self) -> None:
        """A wish to end it, there and here."""
        self._arguments, self._cancelled = None, True
        self.subscription.cancel()

    def finish(self) -> None:
        """Take no more of it: all came, or it goes on without us."""
        if not self._finished:
            self._finished = True
            self.show.finish(self._end or ("" if self.ended else "goes on"))
            self.hub.connection.close_map(self.subscription, quietly=self.ended)

    def abandon(self) -> None:
        """Nobody wants its results: it is cancelled, and nothing is waited for."""
        if not self._finished:
            self._finished = True
            self._arguments = None
            self.show.finish(self._end or "cancelled")
            self.hub.connection.abandon_map(self.subscription)


def gathered(run: Run, index: int) -> list[Any]:
    """All items of a generator's call: they came before its result."""
    found = run.items.pop(index, {})
    return [run.value(found[number]) for number in sorted(found)]
