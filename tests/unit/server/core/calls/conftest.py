"""Drives a plane with calls by hand: clients that open maps, runners that say what the test wants."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from gpulayer.protocol.calls import (
    OK,
    CallRange,
    CallRun,
    CallsAccepted,
    CallsDone,
    CallsReturned,
    CallsSpec,
    DropCalls,
    EndRunner,
    FunctionSpec,
    MapSpec,
    MapView,
    RecallCalls,
)
from gpulayer.protocol.messages import Assign, HeldAttempt
from gpulayer.protocol.types import JobSpec, Problem, Requirements, State
from gpulayer_server.core.calls.pool import LiveMap, Pool
from gpulayer_server.core.calls.views import map_view
from gpulayer_server.core.events import (
    ArgsCame,
    CallsEndWanted,
    Dispatch,
    Effects,
    MapCancelWanted,
    MapOpened,
    ResultsRow,
    Tick,
)
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import MapState, Snapshot
from tests.unit.server.core.conftest import World


def calls_spec(name: str = "f", *, gpus: int = 0, priority: int = 0, **options: Any) -> JobSpec:
    """A job of calls."""
    return JobSpec(
        calls=CallsSpec(function=FunctionSpec(name=name, qualname=name), **options),
        requirements=Requirements(accelerator="cuda" if gpus else None, devices=gpus),
        priority=priority,
    )


class CallsWorld(World):
    """A world whose clients call functions."""

    def open(
        self,
        count: int = 1,
        *,
        name: str = "f",
        key: str = "",
        owner: str = "ann",
        last: bool = True,
        spec: JobSpec | None = None,
        payload: str = "",
        gone: str = "",
        **options: Any,
    ) -> Any:
        """A new map's view, or the problem."""
        self._requests += 1
        event = MapOpened(
            request=self._requests,
            owner=owner,
            key=key or f"map{self._requests}",
            payload_hash=payload or f"hash of {name}",
            spec=spec or calls_spec(name),
            map=MapSpec(**options),
            args=tuple([b"a"] * count),
            last=last,
            gone=gone,
        )
        self.do(event)
        return self._reply()

    def opened(self, count: int = 1, **options: Any) -> str:
        """The id of a new map."""
        view = self.open(count, **options)
        assert isinstance(view, MapView), view
        return view.id

    def bring(self, name: str, first: int, count: int, *, last: bool = False) -> Any:
        """More calls of a map: its view, or the problem."""
        self._requests += 1
        self.do(
            ArgsCame(request=self._requests, map=name, first=first, args=tuple([b"a"] * count), last=last),
        )
        return self._reply()

    def cancel_map(self, name: str) -> Any:
        """The map's view, or the problem."""
        self._requests += 1
        self.do(MapCancelWanted(request=self._requests, map=name))
        return self._reply()

    def end_calls(self, job: str) -> Any:
        """The job's view, or the problem."""
        self._requests += 1
        self.do(CallsEndWanted(request=self._requests, job=job))
        return self._reply()

    # ---------------------------------------------------------------- runners

    def lease(self, job: str, index: int = 0) -> str:
        """The attempt of a lease task."""
        task = self.plane.jobs[job].task(index)
        assert task is not None
        assert task.attempt is not None
        return task.attempt.id

    def warm(self, count: int = 1, *, slots: int = 1, **options: Any) -> tuple[int, str, str]:
        """A worker with a runner that has calls: connection, attempt, map."""
        conn = self.join(slots=slots)
        name = self.opened(count, **options)
        attempt = self.lease(name.split(".")[0])
        self.start(conn, attempt)
        return conn, attempt, name

    def did(
        self,
        conn: int,
        attempt: str,
        name: str,
        first: int,
        count: int = 1,
        *,
        code: int = OK,
        us: int = 20,
        codes: bytes = b"",
    ) -> Effects:
        """Results of a runner."""
        codes = codes or bytes([code] * count)
        run = CallRun(map=name, first=first, codes=codes, data=tuple([b"r"] * len(codes)), spent_us=us * len(codes))
        return self.say(conn, CallsDone(attempt=attempt, runs=(run,)))

    def gave_back(
        self, conn: int, attempt: str, name: str, first: int, count: int = 1, *, began: bool = False
    ) -> Effects:
        """Calls that a runner does not have any more."""
        ranges = (CallRange(map=name, first=first, count=count),)
        return self.say(conn, CallsReturned(attempt=attempt, ranges=ranges, began=began, reason="signal 9"))

    def back(self, held: Sequence[tuple[str, Sequence[CallRange]]], *, name: str = "box", slots: int = 1) -> int:
        """A worker is back, with these runners that have these calls."""
        attempts = tuple(HeldAttempt(attempt=each, started=True, calls=tuple(calls)) for each, calls in held)
        return self.join(name, slots=slots, attempts=attempts)

    def wait(self, seconds: float) -> None:
        """Time passes, half a second a tick; who is connected is heard. `out` gathers it all."""
        gathered = Effects()
        for _ in range(round(2 * seconds)):
            self.now += 0.5
            for worker in self.plane.workers.values():
                worker.last_seen_at = self.now
            out = self.do(Tick())
            gathered.rows |= out.rows
            gathered.sends += out.sends
            gathered.results += out.results
            gathered.changed |= out.changed
            gathered.maps |= out.maps
        self.out = gathered

    # ---------------------------------------------------------------- what is so

    def given(self) -> dict[str, list[tuple[str, int, int]]]:
        """What the last event gave out: by attempt map, first and count."""
        found: dict[str, list[tuple[str, int, int]]] = {}
        for each in self.sent(Dispatch):
            found.setdefault(each.attempt, []).extend((r.map, r.first, r.count) for r in each.ranges)
        return found

    def accepted(self) -> list[tuple[int, int]]:
        """The results that the last event stored: first and count."""
        return [(row.run.first, len(row.run.codes)) for row in self.out.rows.values() if isinstance(row, ResultsRow)]

    def live(self, name: str) -> LiveMap:
        """A map that lives."""
        return self.plane.maps[name]

    def pool(self, name: str) -> Pool:
        """The pool of a live map, or of a job."""
        return self.plane.calls.by_job[name.split(".")[0]]

    def map(self, name: str) -> MapView:
        """A map as clients see it."""
        view = map_view(self.plane, name)
        assert view is not None
        return view

    def reborn_with_maps(self) -> Plane:
        """A plane of the next epoch, with the maps that its rows hold."""
        before = self.plane
        maps: list[MapState] = []
        for of in before.maps.values():
            row = copy.deepcopy(of.row)
            row.ranges = [(first, end - first) for first, end in of.done]
            maps.append(row)
        pools = {name: job.pool for name, job in before.jobs.items()}
        for job in before.jobs.values():
            job.pool = job.waits_in = None
        snapshot = Snapshot(
            jobs=copy.deepcopy(list(before.jobs.values())),
            attempts=[],
            workers=copy.deepcopy(list(before.workers.values())),
            maps=maps,
            last_map_k={before.jobs[name].n: pool.last_k for name, pool in pools.items() if pool is not None},
            last_job_n=before.last_job_n,
        )
        for worker in snapshot.workers:
            worker.conn, worker.nonce = None, ""
            for holder in list(worker.claims):
                worker.free(holder)
        snapshot.attempts = [
            task.attempt
            for job in snapshot.jobs
            for task in job.tasks
            if task.attempt is not None and not task.attempt.released
        ]
        self.plane = Plane(epoch=before.epoch + 1, now=self.now, snapshot=snapshot)
        return self.plane


__all__ = [
    "Assign",
    "CallRange",
    "CallsAccepted",
    "CallsWorld",
    "Dispatch",
    "DropCalls",
    "EndRunner",
    "Problem",
    "RecallCalls",
    "State",
    "calls_spec",
]


@pytest.fixture
def world() -> CallsWorld:
    """A plane that knows nobody yet."""
    return CallsWorld()
