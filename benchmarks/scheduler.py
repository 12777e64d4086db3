"""What one placement costs: the real plane, 1,000 and 10,000 machines, 100,000 queued tasks that ask for 500 things."""

from __future__ import annotations

import argparse
import gc
import heapq
import random
import time
from dataclasses import dataclass, field

from benchmarks.report import Report, Row, median
from benchmarks.schedulerwork.asking import jobs
from benchmarks.schedulerwork.fleet import hello, inventories
from gpulayer.protocol.messages import Assign, Finished
from gpulayer.protocol.types import JobSpec, Outcome, State
from gpulayer_server.core.events import Effects, Event, Submission, SubmittedBatch, Tick, WorkerConnected, WorkerSaid
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Settings
from gpulayer_server.garbage import collect_seldom

_MACHINES, _MANY = 1_000, 10_000
_TASKS, _QUICK_TASKS = 100_000, 20_000
_BATCH = 1_000
_OWNERS = 8
_DURATION_S = (20.0, 120.0)
_DONE = Outcome(state=State.SUCCEEDED, exit_code=0)


@dataclass(kw_only=True)
class Tally:
    """What one run took."""

    shapes: int = 0
    asked: int = 0
    placed: int = 0
    joining_s: float = 0.0
    queueing_s: float = 0.0
    placing_s: float = 0.0  # with the ends of what was placed, and a tick for each second
    ticks: int = 0
    late: int = 0  # reservations
    slowest_s: float = 0.0


@dataclass(kw_only=True)
class Run:
    """A plane, its clock, and who runs where."""

    plane: Plane
    tally: Tally = field(default_factory=Tally)
    now: float = 0.0
    ends: list[tuple[float, str, int]] = field(default_factory=list[tuple[float, str, int]])  # when, attempt, worker
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def handle(self, event: Event) -> tuple[Effects, float]:
        """One event, and what it took of the CPU."""
        begun = time.process_time()
        out = self.plane.handle(event, self.now)
        took = time.process_time() - begun
        for conn, message in out.sends:
            if isinstance(message, Assign):
                self.tally.placed += 1
                heapq.heappush(self.ends, (self.now + self.draw.uniform(*_DURATION_S), message.attempt, conn))
        return out, took

    def join(self, machines: int) -> None:
        """The fleet comes."""
        for n, (slots, inventory) in enumerate(inventories(machines)):
            _, took = self.handle(WorkerConnected(conn=n + 1, hello=hello(n, slots, inventory), acked={}))
            self.tally.joining_s += took
        self.tally.shapes = self.plane.room.shape_count

    def submit(self, specs: list[JobSpec]) -> None:
        """All jobs are queued, and placed with the last of them."""
        self.tally.asked = len({spec.requirements for spec in specs})
        for first in range(0, len(specs), _BATCH):
            part = specs[first : first + _BATCH]
            submissions = tuple(
                Submission(key=f"k{first + n}", payload_hash="h", spec=spec) for n, spec in enumerate(part)
            )
            last = first + _BATCH >= len(specs)
            event = SubmittedBatch(
                request=first, owner=f"owner{first // _BATCH % _OWNERS}", submissions=submissions, more=not last
            )
            _, took = self.handle(event)
            if last:
                self.tally.placing_s += took
            else:
                self.tally.queueing_s += took

    def drain(self) -> None:
        """Each program ends by itself, in a frame of its own, until nothing waits."""
        while self.ends:
            at, attempt, conn = heapq.heappop(self.ends)
            while self.now + 1.0 <= at:
                self.now += 1.0
                _, took = self.handle(Tick())
                self.tally.ticks += 1
                self.tally.late = max(self.tally.late, len(self.plane.reservations))
                self._count(took)
            self.now = at
            ended = Finished(attempt=attempt, end_offset=0, outcome=_DONE, began=True, released=True)
            _, took = self.handle(WorkerSaid(conn=conn, messages=(ended,), acked={attempt: 0}))
            self._count(took)

    def _count(self, took: float) -> None:
        self.tally.placing_s += took
        self.tally.slowest_s = max(self.tally.slowest_s, took)


def measure(machines: int, tasks: int) -> Tally:
    """Fill a fleet and drain it. Raises `RuntimeError` where not everything was placed once."""
    collect_seldom()  # as the control plane does
    run = Run(plane=Plane(epoch=1, now=0.0, settings=Settings(silent_after_s=1e9, keep_keys_ticks=0)))
    run.join(machines)
    specs = jobs(tasks, machines)
    gc.collect()
    gc.freeze()
    run.submit(specs)
    run.drain()
    gc.unfreeze()
    if run.plane.jobs or run.tally.placed != tasks:
        raise RuntimeError(
            f"{run.tally.placed:,} of {tasks:,} tasks were placed, {len(run.plane.jobs):,} jobs are left"
        )
    return run.tally


def main(argv: list[str]) -> int:
    """Measure, print the table and the JSON object; 1 when a goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks scheduler", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_TASKS:,} tasks, one repeat")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="of the whole (default 3)")
    options = parser.parse_args(argv)
    tasks, repeats = (_QUICK_TASKS, 1) if options.quick else (_TASKS, max(1, options.repeats))
    few: list[Tally] = []
    many: list[Tally] = []
    for _ in range(repeats):
        few.append(measure(_MACHINES, tasks))
        many.append(measure(_MANY, tasks))
    report = Report("scheduler")
    first = few[0]
    note = f"{first.shapes} shapes, {tasks:,} tasks that ask for {first.asked} things; with each end and each tick"
    report.add(median("scheduler.cpu_ms_1k", [_each_ms(t) for t in few], "ms", note=note, goal="<= 0.5"))
    note = f"{many[0].shapes} shapes, {many[0].asked} things"
    report.add(median("scheduler.cpu_ms_10k", [_each_ms(t) for t in many], "ms", note=note))
    growth = [_each_ms(b) / _each_ms(a) for a, b in zip(few, many, strict=True)]
    report.add(median("scheduler.growth_10k", growth, "", goal="<= 4"))
    report.add(median("scheduler.slowest_ms", [t.slowest_s * 1e3 for t in few], "ms", note="one event or tick"))
    report.add(median("scheduler.queue_us", [t.queueing_s / tasks * 1e6 for t in few], "µs", note="to queue a task"))
    report.add(median("scheduler.join_us", [t.joining_s / _MANY * 1e6 for t in many], "µs", note="a machine of 10,000"))
    report.add(Row(name="scheduler.reservations", value=max(t.late for t in few), unit="", note="most at once"))
    return report.finish()


def _each_ms(tally: Tally) -> float:
    return tally.placing_s / tally.placed * 1e3
