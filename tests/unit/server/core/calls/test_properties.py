"""Whatever happens in whatever order: each call has one accepted result, and never two runners at once."""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.calls import (
    OK,
    RAISED,
    CallRange,
    CallRun,
    CallsAccepted,
    CallsDone,
    CallsReturned,
    DropCalls,
    EndRunner,
)
from gpulayer.protocol.messages import (
    Assign,
    CancelAttempt,
    Finished,
    HeldAttempt,
    NotStarted,
    Released,
    Started,
    Welcome,
    WorkerMessage,
)
from gpulayer.protocol.types import Outcome, State
from gpulayer_server.core.calls.pool import LiveMap, Pool
from gpulayer_server.core.calls.ranges import Ranges
from gpulayer_server.core.events import Dispatch, Effects, ResultsRow, Tick
from tests.unit.server.core.calls.conftest import CallsWorld

Call = tuple[str, int]


class Box:
    """A worker with one slot, as it is: what its runner has, and which results were not accepted."""

    def __init__(self, name: str):
        self.name = name
        self.conn: int | None = None
        self.attempt: str | None = None
        self.started = False
        self.has: list[Call] = []
        self.results: dict[Call, int] = {}

    def drop(self, name: str) -> None:
        self.has = [call for call in self.has if call[0] != name]
        self.results = {call: code for call, code in self.results.items() if call[0] != name}

    def forget(self) -> None:
        self.attempt, self.started = None, False
        self.has, self.results = [], {}


class Story:
    """A plane, some workers, and a seed that says what happens."""

    def __init__(self, rng: Random, *, retries: int, tolerant: bool):
        self.rng = rng
        self.world = CallsWorld()
        self.boxes = [Box(f"w{n}") for n in range(3)]
        self.accepted: Counter[Call] = Counter()
        self.ran: Counter[Call] = Counter()
        self.taken: dict[str, int] = {}
        self.closed: set[str] = set()
        self.doubled = False  # a plane began anew, and may not know of what runs where it can't look
        self.options = {"retries": retries, "return_exceptions": tolerant, "backoff_s": 1.0}
        for box in self.boxes:
            self.connect(box)

    # ---------------------------------------------------------------- what happens

    def connect(self, box: Box) -> None:
        if box.conn is None:
            attempts: tuple[HeldAttempt, ...] = ()
            if box.attempt is not None:
                calls = tuple(CallRange(map=name, first=index) for name, index in [*box.has, *box.results])
                attempts = (HeldAttempt(attempt=box.attempt, started=box.started, calls=calls),)
            box.conn = self.world.join(box.name, slots=1, attempts=attempts)
            [welcome] = self.world.sent(Welcome)
            ended = [verdict.attempt for verdict in welcome.verdicts if not verdict.go_on]
            if box.attempt in ended:
                box.forget()
            self.heard()
            for name in ended:
                self.say(box, Released(attempt=name))
            if box.results and box.attempt is not None:
                self.tell(box, list(box.results))

    def leave(self, box: Box) -> None:
        if box.conn is not None:
            conn, box.conn = box.conn, None
            self.world.leave(conn)
            self.heard()

    def say(self, box: Box, *messages: WorkerMessage) -> None:
        if box.conn is not None:
            self.world.say(box.conn, *messages)
            self.heard()

    def heard(self) -> None:
        """Carry out what the plane asked for."""
        out: Effects = self.world.out
        for row in out.rows.values():
            if isinstance(row, ResultsRow):
                for n in range(len(row.run.codes)):
                    self.accepted[row.run.map, row.run.first + n] += 1
        by_conn = {box.conn: box for box in self.boxes if box.conn is not None}
        ends: list[Box] = []
        for conn, message in out.sends:
            box = by_conn.get(conn)
            if isinstance(message, Assign) and box is not None:
                box.forget()
                box.attempt = message.attempt
            elif box is not None and box.attempt == getattr(message, "attempt", ""):
                self.told(box, message)
                if isinstance(message, (EndRunner, CancelAttempt)):
                    ends.append(box)
        self.check()
        for box in ends:
            self.end(box)

    def told(self, box: Box, message: object) -> None:
        match message:
            case Dispatch(ranges=ranges):
                for each in ranges:
                    self.given(box, each)
            case CallsAccepted(ranges=ranges):
                for each in ranges:
                    for index in range(each.first, each.first + each.count):
                        box.results.pop((each.map, index), None)
            case DropCalls(map=of):
                box.drop(of)
            case _:
                pass

    def given(self, box: Box, each: CallRange) -> None:
        for index in range(each.first, each.first + each.count):
            call = (each.map, index)
            assert call not in box.has
            assert not self.accepted[call], f"{call} is given out, and has a result"
            others = [
                other for other in self.boxes if other is not box and call in other.has and other.conn is not None
            ]
            assert not others or self.doubled, f"{call} is with two runners"
            box.has.append(call)

    def run(self, box: Box) -> None:
        """Some of its calls are done; not all of that arrives."""
        if box.has:
            some = box.has[: self.rng.randint(1, len(box.has))]
            for call in some:
                box.has.remove(call)
                box.results[call] = RAISED if self.rng.random() < 0.15 else OK
                self.ran[call] += 1
        if box.results and self.rng.random() < 0.9:
            self.tell(box, list(box.results))

    def tell(self, box: Box, calls: list[Call]) -> None:
        runs: list[CallRun] = []
        for name in sorted({name for name, _ in calls}):
            ranges = Ranges((index, index + 1) for of, index in calls if of == name)
            for first, end in ranges:
                codes = bytes([box.results[name, index] for index in range(first, end)])
                runs.append(CallRun(map=name, first=first, codes=codes, data=(b"r",) * (end - first), spent_us=40))
        if box.attempt is not None and runs:
            self.say(box, CallsDone(attempt=box.attempt, runs=tuple(runs)))

    def give_back(self, box: Box) -> None:
        if box.attempt is not None and box.has:
            began = self.rng.random() < 0.3
            call = box.has.pop(0 if began else -1)
            ranges = (CallRange(map=call[0], first=call[1]),)
            self.say(box, CallsReturned(attempt=box.attempt, ranges=ranges, began=began, reason="signal 9"))

    def start(self, box: Box) -> None:
        if box.attempt is not None and not box.started:
            if self.rng.random() < 0.1:
                name = box.attempt
                box.forget()
                self.say(box, NotStarted(attempt=name, reason="no room"))
            else:
                box.started = True
                self.say(box, Started(attempt=box.attempt))

    def end(self, box: Box) -> None:
        """Its runner ends; what it has is not done."""
        if box.attempt is not None and box.conn is not None:
            name, state = box.attempt, State.SUCCEEDED if self.rng.random() < 0.8 else State.FAILED
            if box.results:
                self.tell(box, list(box.results))
            box.forget()
            outcome = Outcome(state=state)
            self.say(box, Finished(attempt=name, end_offset=0, outcome=outcome, began=True), Released(attempt=name))

    def die(self, box: Box) -> None:
        """It loses everything, and comes back."""
        self.leave(box)
        box.forget()
        self.connect(box)

    def away(self, box: Box) -> None:
        """So long that its attempt ended, there and here."""
        self.leave(box)
        for _ in range(70):
            self.tick()
        box.has, box.results = [], {}
        self.connect(box)

    def restart(self) -> None:
        """Another plane, from the rows."""
        for box in self.boxes:
            box.conn = None
        self.world.reborn_with_maps()
        self.doubled = True
        if self.rng.random() < 0.5:
            self.tick()

    def tick(self) -> None:
        self.world.now += 1.0
        for worker in self.world.plane.workers.values():
            worker.last_seen_at = self.world.now
        self.world.do(Tick())
        self.heard()

    def open(self) -> None:
        if len(self.taken) < 4:
            view = self.world.open(self.rng.randint(0, 6), last=False, **self.options)
            self.taken[view.id] = view.taken
            self.heard()

    def bring(self) -> None:
        for name in self.taken:
            if name in self.world.plane.maps and name not in self.closed and self.rng.random() < 0.5:
                last = self.rng.random() < 0.3
                view = self.world.bring(name, self.taken[name], self.rng.randint(0, 20), last=last)
                self.taken[name] = view.taken
                if last:
                    self.closed.add(name)
                self.heard()

    # ---------------------------------------------------------------- what must hold

    def check(self) -> None:
        for call, count in self.accepted.items():
            assert count == 1, f"{call} has {count} accepted results"
        for pool in self.world.plane.calls.by_job.values():
            for of in pool.maps.values():
                self.check_map(of)
            self.check_counts(pool)

    def check_map(self, of: LiveMap) -> None:
        there: Counter[int] = Counter()
        later = Counter(list(of.put_off))
        for ranges in (of.waiting, of.done):
            for first, end in ranges:
                there.update(range(first, end))
        flights = Counter[int]()
        for lease in of.pool.leases.values():
            for first, end in lease.flight.get(of, ()):
                flights.update(range(first, end))
        assert of.held == flights.total()
        for index in range(of.row.taken):
            places = there[index] + flights[index] + later[index]
            assert places >= 1, f"call {index} of {of.row.id} is lost"
            assert places == 1 or of.pool.doubled, f"call {index} of {of.row.id} is in {places} places"
            assert there[index] <= 1
        assert not [index for index in there if index >= of.row.taken]

    def check_counts(self, pool: Pool) -> None:
        assert pool.waiting == sum(of.waiting.count for of in pool.maps.values())
        assert pool.held == sum(lease.count for lease in pool.leases.values())
        assert set(pool.turns) == {of for of in pool.maps.values() if of.waiting.count}
        assert pool.ready == sum(lease.ready for lease in pool.leases.values())
        assert set(pool.idle) == {lease for lease in pool.leases.values() if lease.ready and not lease.count}
        assert not pool.maps or pool.leases or pool.queued or pool.later, "nobody will ever run what waits"
        assert not (pool.idle and pool.waiting and not pool.unheard), "a runner has nothing, and calls wait"

    def finish(self) -> None:
        """All goes well from here on: every map ends."""
        for box in self.boxes:
            self.connect(box)
        for name in self.taken:
            if name in self.world.plane.maps and name not in self.closed:
                self.world.bring(name, self.taken[name], 0, last=True)
                self.heard()
        for _ in range(400):
            if not self.world.plane.maps:
                break
            for box in self.boxes:
                if box.attempt is not None and not box.started:
                    box.started = True
                    self.say(box, Started(attempt=box.attempt))
                while box.has or box.results:
                    for call in box.has:
                        box.results[call] = OK
                        self.ran[call] += 1
                    box.has = []
                    self.tell(box, list(box.results))
            self.tick()
        assert not self.world.plane.maps, [of.row for of in self.world.plane.maps.values()]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), retries=st.sampled_from([0, 2]), tolerant=st.booleans())
def test_each_call_has_one_result_whatever_happens(seed: int, retries: int, tolerant: bool) -> None:
    rng = Random(seed)
    story = Story(rng, retries=retries, tolerant=tolerant)
    story.open()
    for _ in range(rng.randint(5, 60)):
        box = rng.choice(story.boxes)
        deeds = [story.open, story.bring, story.bring, story.tick]
        deeds += [lambda box=box: story.start(box)] * 4 + [lambda box=box: story.run(box)] * 6
        deeds += [lambda box=box: story.give_back(box), lambda box=box: story.end(box)]
        deeds += [lambda box=box: story.leave(box), lambda box=box: story.connect(box)] * 2
        rare = [story.restart, lambda box=box: story.die(box), lambda box=box: story.away(box)]
        rng.choice(rare if rng.random() < 0.08 else deeds)()
    story.finish()
    for name, taken in story.taken.items():
        state = story.world.plane.calls.ended[name][1].row if name in story.world.plane.calls.ended else None
        if state is not None and state.state is State.SUCCEEDED:
            assert all(story.accepted[name, index] == 1 for index in range(taken))
