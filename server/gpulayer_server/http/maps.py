"""Maps of calls over HTTP: how they are, their results, their end."""

from __future__ import annotations

import msgspec

from gpulayer.protocol.calls import MESSAGE_BYTES, MapView, ResultRun
from gpulayer_server.core.events import MapCancelWanted
from gpulayer_server.http.base import Handler, ProblemError
from gpulayer_server.http.jobs import bad_request, no_such_job
from gpulayer_server.http.mapclient import no_such_map
from gpulayer_server.http.openapi import BYTES
from gpulayer_server.http.rest import ask, committed, whole_number

_LISTED = 1000
_RESULTS = 100_000  # of one answer at most, and not many more bytes than a megabyte
_RESULTS_BYTES = 4 * MESSAGE_BYTES
_pack = msgspec.msgpack.Encoder().encode


class _MapHandler(Handler):
    def view(self, name: str) -> MapView:
        """A map; a problem where it is not there."""
        view = self.shell.map_view(name)
        if view is None:
            raise ProblemError(no_such_map(name))
        return view

    def number(self, name: str, otherwise: int, most: int) -> int:
        """A whole number of the query, from 0 to `most`."""
        value = whole_number(self.get_query_argument(name, str(otherwise)), name)
        if value < 0:
            raise bad_request(f"{name} must be 0 or more, not {value}")
        return min(value, most)


class MapsHandler(_MapHandler):
    """GET /v1/maps?job=ID"""

    async def get(self) -> None:
        """The maps of a job, newest first."""
        job = self.get_query_argument("job", "")
        if not job:
            raise bad_request("name the job whose maps are wanted: job=ID")
        limit, before = max(1, self.number("limit", 50, _LISTED)), self.number("before", 0, 2**53)
        await committed(self.shell)
        views = self.shell.map_views(job, limit, before or None)
        if not views and self.shell.owner_of(job) is None:
            raise no_such_job(job)
        self.answer(views)


class MapHandler(_MapHandler):
    """GET /v1/maps/ID"""

    async def get(self, name: str) -> None:
        """One map."""
        await committed(self.shell)
        self.answer(self.view(name))


class CancelMapHandler(_MapHandler):
    """POST /v1/maps/ID/cancel"""

    async def post(self, name: str) -> None:
        """End it: what waits is dropped, what runs is interrupted."""
        owner = self.shell.owner_of_map(name)
        problem = no_such_map(name) if owner is None else self.not_their_map(name, owner, "cancel")
        if problem is not None:
            raise ProblemError(problem)
        if name in self.shell.plane.calls.maps:
            self.answer(await ask(self.shell, lambda request: MapCancelWanted(request=request, map=name)))
        else:
            self.answer(self.view(name))  # it ended already: nothing is left to cancel


class ResultsHandler(_MapHandler):
    """GET /v1/maps/ID/results"""

    async def get(self, name: str) -> None:
        """Its results from an index on, as far as they are there without a gap."""
        after, limit = self.number("after", 0, 2**53), self.number("limit", _RESULTS, _RESULTS)
        await committed(self.shell)
        self.view(name)
        read = self.shell.reader_of(name, ordered=True)
        runs: list[ResultRun] = []
        for _, run in read(after, _RESULTS_BYTES):
            if limit <= 0:
                break
            runs.append(ResultRun(first=run.first, codes=run.codes[:limit], data=run.data[:limit]))
            limit -= len(run.codes)
        self.set_header("Content-Type", BYTES)
        self.finish(_pack(runs))
