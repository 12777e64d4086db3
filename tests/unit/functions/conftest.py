"""Functions against a control plane that the tests play: it runs the calls itself, where they stand."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed

from gpulayer.client.client import Client
from gpulayer.functions import hub as hubs
from gpulayer.protocol.calls import (
    OK,
    RAISED,
    CallFailure,
    CancelMap,
    EndCalls,
    FollowMap,
    MapArgs,
    MapRecord,
    MapResults,
    MapTaken,
    MapUpdate,
    MapView,
    OpenMap,
    ResultRun,
)
from gpulayer.protocol.messages import Refused, Unfollow
from gpulayer.protocol.records import Kind
from gpulayer.protocol.types import JobSpec, Problem, State
from gpulayer.protocol.values.calls import pack, unpack_call
from tests.support.clientplane import Plane, Visit

Work = Callable[..., Any]


class Prints(Exception):
    """A call that writes something to a stream, then returns a value."""

    def __init__(self, value: Any, *texts: tuple[Kind, bytes]):
        super().__init__()
        self.value = value
        self.texts = texts


class Runs:
    """Plays a control plane with runners: one connection, each call as soon as its arguments are there."""

    def __init__(self, plane: Plane):
        self.plane = plane
        self.work: Work = lambda *args, **kwargs: args[0]
        self.opened: list[OpenMap] = []
        self.specs: list[JobSpec] = []
        self.cancelled: list[str] = []
        self.ended: list[str] = []
        self.unfollowed: list[int] = []
        self.holds = threading.Event()  # nothing is run until it is set
        self.holds.set()
        self.refusals: list[Problem] = []
        self.views: list[dict[str, Any]] = []  # fields of the first updates
        self._maps: dict[str, OpenMap] = {}
        self._done: dict[str, int] = {}
        self._results: dict[str, ResultRun] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        try:
            visit = self.plane.visit(0.1, self._over.is_set)
        except queue.Empty:
            return  # nobody called anything
        while not (visit.gone.is_set() and visit.messages.empty()):
            try:
                self._take(visit, visit.messages.get(timeout=0.05))
            except (queue.Empty, ConnectionClosed):
                continue

    def close(self) -> None:
        """The client is gone."""
        self.holds.set()
        self._over.set()
        self._thread.join()

    def _take(self, visit: Visit, message: Any) -> None:
        match message:
            case OpenMap():
                self._open(visit, message)
            case MapArgs():
                self._run(visit, message.n, message.map, message.args, message.first, message.last)
            case CancelMap():
                self.cancelled.append(message.map)
                visit.say(self._view(message.n, message.map, State.CANCELLED))
            case FollowMap():
                result = self._results[message.map]
                visit.say(MapResults(n=message.n, cursor=len(result.data), runs=(result,)))
                visit.say(self._view(message.n, message.map, State.SUCCEEDED))
            case EndCalls():
                self.ended.append(message.job)
            case Unfollow():
                self.unfollowed.append(message.n)

    def _open(self, visit: Visit, message: OpenMap) -> None:
        self.opened.append(message)
        if self.refusals:
            visit.say(Refused(n=message.n, problem=self.refusals.pop(0)))
            return
        self.specs.append(msgspec.msgpack.decode(message.job, type=JobSpec))
        name = f"job{len(self.specs)}.1"
        self._maps[name], self._done[name] = message, 0
        visit.say(self._view(message.n, name, State.RUNNING))
        for fields in self.views:
            update = self._view(message.n, name, State.QUEUED)
            visit.say(MapUpdate(n=message.n, map=msgspec.structs.replace(update.map, **fields)))
        if self.views and State(self.views[-1].get("state", State.QUEUED)) is State.REJECTED:
            return
        self._run(visit, message.n, name, message.args, 0, message.last)

    def _run(self, visit: Visit, n: int, name: str, args: tuple[bytes, ...], first: int, last: bool) -> None:
        visit.say(MapTaken(n=n, upto=first + len(args)))
        self.holds.wait()
        codes, data = bytearray(), []
        for place, packed in enumerate(args):
            index = first + place
            values, named = unpack_call(packed)
            try:
                value = self.work(*values, **named)
                if self._maps[name].map.stream:
                    for seq, item in enumerate(value):
                        body = pack(item)
                        record = MapRecord(
                            n=n, index=index, kind=Kind.CALL_ITEM, seq=seq, data=body, attempt="a", at=seq
                        )
                        visit.say(record)
                    value = None
            except Prints as prints:
                for kind, text in prints.texts:
                    visit.say(MapRecord(n=n, index=index, kind=kind, seq=0, data=text, attempt="a", at=1))
                value = prints.value
            except Exception as error:  # noqa: BLE001 whatever a test has its function raise
                codes.append(RAISED)
                shown = f"Traceback (most recent call last):\n  there\n{type(error).__name__}: {error}"
                failure = CallFailure(
                    kind="raised", type=type(error).__name__, text=str(error), traceback=shown, worker="box"
                )
                data.append(msgspec.json.encode(failure))
                continue
            codes.append(OK)
            data.append(pack(value))
        if data:
            run = ResultRun(first=first, codes=bytes(codes), data=tuple(data))
            self._results.setdefault(name, run)
            visit.say(MapResults(n=n, cursor=first + len(data), runs=(run,)))
        self._done[name] = first + len(args)
        if last:
            visit.say(self._view(n, name, State.SUCCEEDED))

    def _view(self, n: int, name: str, state: State) -> MapUpdate:
        opened, done = self._maps[name], self._done[name]
        total = opened.map.total
        view = MapView(
            id=name,
            job=name.split(".")[0],
            state=state,
            total=total if state is State.RUNNING else done,
            taken=len(opened.args) if state is State.RUNNING else done,
            done=done,
            single=opened.map.single,
            name=opened.map.name,
        )
        return MapUpdate(n=n, map=view)


@pytest.fixture
def plane() -> Iterator[Plane]:
    plane = Plane()
    yield plane
    plane.close()


@pytest.fixture
def runs(plane: Plane, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Runs]:
    """This process' functions go to a control plane that runs what the test says."""
    monkeypatch.setenv("GPULAYER_DATA", str(tmp_path / "data"))
    client = Client()
    monkeypatch.setattr(client, "_find", lambda: plane.endpoint)
    hubs.forget()
    monkeypatch.setattr(hubs, "_hub", hubs.Hub(client))
    runs = Runs(plane)
    yield runs
    hubs.forget()
    runs.close()
