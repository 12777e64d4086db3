"""What really happened to calls, and what must hold of them: each has one result, and that is the first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from gpulayer.protocol.calls import OK, RUNNER_DIED, CallRun, MapView
from gpulayer.protocol.types import TERMINAL, State
from gpulayer_server.core.events import Dispatch, Effects
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import MapState
from gpulayer_server.store.database import Store
from tests.simulation.simulator import Simulator, Violation

if TYPE_CHECKING:
    from tests.simulation.runners import CallKey, Given, Runner


#: So long a map waits for a client that went away.
AWAY_S = 30.0


class CallsTruth:
    """Every call that ever ran, every result that anybody was told of."""

    def __init__(self, sim: Simulator):
        self.sim = sim
        self.runs: Counter[CallKey] = Counter()
        self.results: dict[CallKey, tuple[int, bytes]] = {}  # that were told, by code and data
        self.views: dict[str, MapView] = {}  # the last that was told of each map
        self.map_of_key: dict[tuple[str, str], str] = {}
        self.length: Callable[[str], float] = lambda _: inf  # of an attempt's stream, at the control plane
        self._texts: dict[tuple[str, CallKey], int] = {}  # by attempt and call: where what it wrote ends in the spool
        self._left: dict[str, float] = {}  # maps whose clients went away before they had sent all, and since when
        self._lost: set[str] = set()  # attempts that were given up
        self._told_since: dict[str, MapView] = {}  # since the last look into the store

    # ---------------------------------------------------------------- runners

    def began(self, runner: Runner, call: Given) -> None:
        """A call begins to run."""
        self.runs[call.key] += 1
        self.sim.log(runner.kernel.machine.name, f"{runner.attempt} runs call {call.key}")
        view = self.views.get(call.key[0])
        if view is None:
            raise Violation(f"call {call.key} runs, and nobody was told of its map")

    def wrote(self, attempt: str, key: CallKey, end: int) -> None:
        """A call wrote something, up to this byte of its attempt's spool."""
        self._texts[attempt, key] = end

    # ---------------------------------------------------------------- clients

    def left(self, name: str) -> None:
        """A map's client went away before it had sent all of its calls."""
        self._left[name] = self.sim.now

    def came_back(self, name: str) -> None:
        """A map's client is there, and the plane hears of it."""
        self._left.pop(name, None)

    def _check_away(self, view: MapView) -> None:
        """A map ended because its client is away: it is, for long, and nothing that it sent is lost."""
        since = self._left.get(view.id, inf)
        if self.sim.now - since < AWAY_S * 0.99 or view.done != view.taken or view.taken == view.total:
            raise Violation(f"map {view.id} ended for its client's sake, which is away since {since}: {view}")

    # ---------------------------------------------------------------- the plane

    def decided(self, plane: Plane, effects: Effects) -> None:
        """What one event gave out, and what it accepted."""
        for attempt, _ in effects.marks:
            self._lost.add(attempt)
        for name, run in effects.results:
            self._accepted(name, run)
        for _, message in effects.sends:
            if isinstance(message, Dispatch):
                self._given_out(plane, message)

    def _accepted(self, name: str, run: CallRun) -> None:
        for n, (code, data) in enumerate(zip(run.codes, run.data, strict=True)):
            if code == RUNNER_DIED:
                continue
            attempt, of, index = data.decode().split()
            if (of, int(index)) != (name, run.first + n):
                raise Violation(f"call {run.first + n} of {name} gets the result of call {index} of {of}")
            if self.length(attempt) < self._texts.get((attempt, (name, run.first + n)), 0):
                raise Violation(f"call {run.first + n} of {name} has a result, and not all of its text is here")
            if attempt in self._lost:
                raise Violation(f"call {run.first + n} of {name} gets the result of {attempt}, which was given up")

    def _given_out(self, plane: Plane, message: Dispatch) -> None:
        attempt = plane.attempts.get(message.attempt)
        for each in message.ranges:
            of = plane.maps.get(each.map)
            if of is None or attempt is None or attempt.over:
                continue  # it ended later in this event
            done = [key for key in range(each.first, each.first + each.count) if (each.map, key) in self.results]
            if done:
                raise Violation(f"calls {done} of {each.map} have results, and are given out to {message.attempt}")

    # ---------------------------------------------------------------- what clients are told

    def told(self, view: MapView) -> None:
        """Somebody was told how a map stands."""
        before = self.views.get(view.id)
        if before is not None:
            if before.state in TERMINAL and (before.state, before.done) != (view.state, view.done):
                raise Violation(f"map {view.id} was told to be {before}, and now {view}")
            if before.taken > view.taken or before.done > view.done:
                raise Violation(f"map {view.id} had {before}, and now {view}")
        if view.problem.startswith("its client went away") and (before is None or before.state not in TERMINAL):
            self._check_away(view)
        if view.state is State.SUCCEEDED and view.done != view.total:
            raise Violation(f"map {view.id} has succeeded, and is not done: {view}")
        if view.total is not None and not view.done <= view.taken <= view.total:
            raise Violation(f"map {view.id} can't be: {view}")
        self.views[view.id] = self._told_since[view.id] = view

    def answered(self, owner: str, key: str, view: MapView) -> None:
        """A map's opening was answered."""
        name = self.map_of_key.setdefault((owner, key), view.id)
        if name != view.id:
            raise Violation(f"key {key} made map {name}, and then {view.id}")
        self.told(view)

    def told_results(self, name: str, run: CallRun) -> None:
        """Results left the control plane: they are committed, and stay."""
        for n, code in enumerate(run.codes):
            key, result = (name, run.first + n), (code, run.data[n])
            if self.results.setdefault(key, result) != result:
                raise Violation(f"call {key} had the result {self.results[key]}, and now {result}")

    def rebuilt(self, store: Store) -> None:
        """A plane was made from the store: what was told before still holds."""
        for name, view in self._told_since.items():
            state = store.maps.map(name)
            if state is None or state.taken < view.taken:
                raise Violation(f"told: {view}, stored: {state}")
            if view.state in TERMINAL and (state.state, state.done) != (view.state, view.done):
                raise Violation(f"told: {view}, stored: {state}")
        self._told_since.clear()

    # ---------------------------------------------------------------- the end

    def check(self, store: Store) -> None:
        """What is stored of maps is what was told, and each call has one result."""
        for name in self.map_of_key.values():
            state = store.maps.map(name)
            if state is None:
                raise Violation(f"map {name} was answered, and is not in the store")
            stored = _stored(store, state)
            told = {key: result for key, result in self.results.items() if key[0] == name}
            if any(stored.get(key) != result for key, result in told.items()):
                raise Violation(f"results of {name} that were told are not in the store: {told} {stored}")
            if state.state not in TERMINAL:
                raise Violation(f"map {name} has not ended: {state}")
            if state.state is State.SUCCEEDED:
                self._check_success(name, state.total or 0, stored)
            if state.state is not State.FAILED and state.failed_index is not None:
                raise Violation(f"a call stopped map {name}, which is {state.state.value}: {state}")
            if state.state is State.FAILED and state.failed_index is None and not state.problem:
                raise Violation(f"map {name} has failed, or not, for no reason: {state}")

    def _check_success(self, name: str, total: int, stored: dict[CallKey, tuple[int, bytes]]) -> None:
        missing = [index for index in range(total) if (name, index) not in stored]
        if missing:
            raise Violation(f"map {name} has succeeded without calls {missing}")
        never = [key for key, (code, _) in stored.items() if code == OK and not self.runs[key]]
        if never:
            raise Violation(f"calls {never} have results, and never ran")


def _stored(store: Store, state: MapState) -> dict[CallKey, tuple[int, bytes]]:
    """The results of a map that are in the store: of each call one."""
    stored: dict[CallKey, tuple[int, bytes]] = {}
    for each in store.maps.results_by_coming((state.n, state.k), 0, 10**9):
        for n, code in enumerate(each.run.codes):
            key = (state.id, each.run.first + n)
            if key in stored:
                raise Violation(f"call {key} has two results in the store")
            stored[key] = (code, each.run.data[n])
    return stored
