"""What calls wrote and what came of them, on its way to the link: first the text, then the result."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from gpulayer.protocol.calls import VALUE_REFUSED, CallRange, CallRun
from gpulayer.protocol.failpoints import reach
from gpulayer.protocol.spool import SpoolReader
from gpulayer_worker import link
from gpulayer_worker.callranges import CallRanges
from gpulayer_worker.run.callsblobs import ResultBlobs
from gpulayer_worker.run.callswords import failure
from gpulayer_worker.run.services import Services
from gpulayer_worker.runner.wire import BlobPlace

_TELL_S = 0.001  # results of a runner that has more to do wait so long for others
_TELL_CALLS = 128  # or for so many
_LOOK_S = 0.01  # so often what a call writes is told while it runs


class Telling:
    """The stream and the results of one attempt. Owns the reader of its spool.

    Arguments:
        services: the agent.
        attempt: its name.
        more: whether more results are to come soon.
        settled: called when there may be nothing left to tell, or to wait for.
        tell: takes lines about how far large results are.
    """

    def __init__(
        self,
        services: Services,
        attempt: str,
        *,
        more: Callable[[], bool],
        settled: Callable[[], None],
        tell: Callable[[str], None],
    ):
        self._services = services
        self._attempt = attempt
        self._more = more
        self._settled = settled
        self._folder = services.layout.spool(attempt)
        self.reader = SpoolReader(self._folder)
        self.end = self.reader.start()  # of the stream, as far as it was looked at
        self._blobs = ResultBlobs(services, there=self._there, failed=self._not_sent, tell=tell)
        self._untold: list[CallRun] = []
        self._untold_calls = 0
        self._wanted = CallRanges()  # results that are not accepted
        self._told_at = 0.0  # of the loop's time, seconds
        self._tell_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        """Whether there are results that are not accepted."""
        return bool(self._wanted)

    # ---------------------------------------------------------------- the stream

    def watch(self) -> None:
        """Tell what calls write while they run. Raises OSError."""
        self._services.watch.add(self._folder, self._look_soon)

    def stop(self) -> None:
        """No watch and no timer any more."""
        for timer in (self._tell_timer, self._look_timer):
            if timer is not None:
                timer.cancel()
        self._tell_timer = self._look_timer = None
        self._services.watch.remove(self._folder)

    def close(self) -> None:
        """Nothing of it is wanted any more."""
        self.stop()
        self._blobs.close()
        self.reader.close()

    def look(self) -> bool:
        """Look at the spool now; whether there is more than before."""
        before, self.end = self.end, max(self.end, self.reader.end())
        return self.end > before

    def _look_soon(self) -> None:
        """The spool may have grown. Before a result it is looked at anyway."""
        if self._look_timer is None:
            self._look_timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look_late)

    def _look_late(self) -> None:
        self._look_timer = None
        if self.look():
            self._services.emit(link.SpoolGrew(attempt=self._attempt, end=self.end))

    # ---------------------------------------------------------------- results

    def known(self, name: str, first: int, stop: int) -> bool:
        """Whether all of these have results here already."""
        return self._wanted.within(name, first, stop) == [(first, stop)]

    def add(self, run: CallRun, places: Sequence[BlobPlace] = ()) -> None:
        """Results; `tell` tells them, those with blobs once the control plane has these."""
        self._wanted.add(run.map, run.first, run.first + len(run.codes))
        ready = self._blobs.add(run, places) if places else run
        if ready is not None:
            self._add(ready)

    def fail(self, ranges: Iterable[CallRange], code: int, data: bytes) -> None:
        """These calls have failed, without a runner's word."""
        for each in ranges:
            run = CallRun(map=each.map, first=each.first, codes=bytes((code,)) * each.count, data=(data,) * each.count)
            self.add(run)
        self.tell(now=True)

    def tell(self, *, now: bool = False) -> None:
        """Tell of results, and first of what their calls wrote. While more come, they wait a moment for others."""
        if not self._untold:
            return
        loop = asyncio.get_running_loop()
        wait_s = self._told_at + _TELL_S - loop.time()
        if not now and wait_s > 0 and self._untold_calls < _TELL_CALLS and self._more():
            if self._tell_timer is None:
                self._tell_timer = loop.call_later(wait_s, self._tell_late)
            return
        if self._tell_timer is not None:
            self._tell_timer.cancel()
            self._tell_timer = None
        self._told_at = loop.time()
        self.look()
        runs, self._untold, self._untold_calls = tuple(self._untold), [], 0
        reach("agent.calls-done")
        self._services.emit(link.ResultsCame(attempt=self._attempt, runs=runs, end=self.end))

    def let_go(self, ranges: Iterable[CallRange]) -> None:
        """These results are accepted, or nobody wants them."""
        for each in ranges:
            self._wanted.cut(each.map, each.first, each.first + each.count)

    def give_up(self) -> None:
        """Nobody wants the large ones that are on their way."""
        self._blobs.close()

    def _tell_late(self) -> None:
        self._tell_timer = None
        self.tell(now=True)

    def _add(self, run: CallRun) -> None:
        self._untold.append(run)
        self._untold_calls += len(run.codes)

    def _there(self, runs: list[CallRun]) -> None:
        for run in runs:
            self._add(run)
        self.tell()
        self._settled()

    def _not_sent(self, run: CallRun, why: str) -> None:
        """Results whose blobs can't be had by anybody else are none."""
        text = failure("value", f"its result could not be sent: {why}")
        count = len(run.codes)
        self._there([replace(run, codes=bytes((VALUE_REFUSED,)) * count, data=(text,) * count)])
