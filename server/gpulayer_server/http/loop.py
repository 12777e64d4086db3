"""How late the control plane's loop is: measured only while somebody asks for it."""

from __future__ import annotations

import asyncio

from gpulayer.protocol.types import Problem, Struct
from gpulayer_server.http.base import Handler, ProblemError

EVERY_S = 0.01
LIMIT_S = 900.0  # a probe that nobody ends, ends itself


class LoopLag(Struct, frozen=True, kw_only=True):
    """How much later than asked for the loop called back, over `seconds`."""

    seconds: float
    samples: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Probe:
    """Asks the loop to be called back, again and again, and notes how late each call is. Owned by the loop's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._late_s: list[float] = []
        self._next()

    def _next(self) -> None:
        self._due = self._loop.time() + EVERY_S
        self._timer = self._loop.call_at(self._due, self._called)

    def _called(self) -> None:
        now = self._loop.time()
        self._late_s.append(now - self._due)
        if now - self._began < LIMIT_S:
            self._next()

    def end(self) -> LoopLag:
        """Stop, and say what was seen. A delay that goes on now counts as well."""
        self._timer.cancel()
        now = self._loop.time()
        late = sorted([*self._late_s, max(0.0, now - self._due)])

        def at(part: float) -> float:
            return round(1000 * late[min(len(late) - 1, int(part * len(late)))], 3)

        return LoopLag(
            seconds=round(now - self._began, 3), samples=len(late), p50_ms=at(0.5), p99_ms=at(0.99), max_ms=at(1.0)
        )


class LoopHandler(Handler):
    """POST and DELETE /v1/loop"""

    def post(self) -> None:
        """Begin to measure, anew where that goes on."""
        self._stop()
        self.settings["loop_probe"] = Probe()
        self.set_status(204)
        self.finish()

    def delete(self) -> None:
        """Stop; the answer says how late the loop was."""
        lag = self._stop()
        if lag is None:
            detail = "POST to the same address begins one"
            raise ProblemError(Problem(status=404, code="no_probe", title="nothing is being measured", detail=detail))
        self.answer(lag)

    def _stop(self) -> LoopLag | None:
        probe: Probe | None = self.settings.pop("loop_probe", None)
        return probe.end() if probe is not None else None
