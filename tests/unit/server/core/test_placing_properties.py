"""Whatever comes: no machine holds more than it has, no gang is half placed, nothing waits in vain."""

from __future__ import annotations

import copy
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.messages import Ahead, Assign, Finished, Heartbeat, Hello
from gpulayer.protocol.types import (
    PROTOCOL_VERSION,
    CellSpec,
    CommandSpec,
    Device,
    Inventory,
    JobSpec,
    Outcome,
    Requirements,
    State,
)
from gpulayer_server.core import waiting
from gpulayer_server.core.events import (
    CancelWanted,
    Effects,
    Event,
    LimitsSet,
    Submission,
    Submitted,
    SubmittedBatch,
    Tick,
    WorkerConnected,
    WorkerGone,
    WorkerSaid,
)
from gpulayer_server.core.machine import Worker, memory_bytes
from gpulayer_server.core.plane import Plane
from gpulayer_server.core.state import Job, Limits, Settings, Snapshot
from gpulayer_server.scheduling import gang, match

GB = 10**9
OWNERS = ("ana", "ben", "cleo")
DONE = Outcome(state=State.SUCCEEDED, exit_code=0)
ASKED = (
    Requirements(),
    Requirements(),
    Requirements(ram_bytes=3 * GB),
    Requirements(cpu_cores=1.5),
    Requirements(accelerator="cuda", devices=1),
    Requirements(accelerator="cuda", devices=2),
    Requirements(accelerator="cuda", devices=4, ram_bytes=2 * GB),
    Requirements(accelerator="cuda", devices=1, min_vram_bytes=20 * GB),
    Requirements(accelerator="cuda", vram_share_bytes=6 * GB),
    Requirements(accelerator="cuda", vram_share_bytes=14 * GB),
    Requirements(worker="m1"),
    Requirements(labels=("team=a",)),
    Requirements(nodes=2),
    Requirements(nodes=3, accelerator="cuda", devices=1),
    Requirements(nodes=2, locality="require"),
)
#: slots, devices, memory of each, machine's memory, cores, team, zone
MACHINES = st.tuples(
    st.integers(0, 4),
    st.sampled_from((0, 0, 1, 2, 4)),
    st.sampled_from((16 * GB, 24 * GB)),
    st.sampled_from((4 * GB, 10 * GB)),
    st.integers(1, 4),
    st.sampled_from(("", "a")),
    st.sampled_from(("z1", "z2")),
)


class Fleet:
    """A plane with machines that do what they are told, and an eye on what it decides."""

    def __init__(self, machines: list[Any], reserve_after_s: float = 1e9):
        self.settings = Settings(reserve_after_s=reserve_after_s)
        self.plane = Plane(epoch=1, now=0.0, settings=self.settings)
        self.now = 0.0
        self.machines = machines
        self.conns: dict[int, int] = {}  # connection by machine
        self.run: dict[str, int] = {}  # attempt -> machine
        self._n = 0
        for n in range(len(machines)):
            self.connect(n)

    def do(self, event: Event) -> Effects:
        out = self.plane.handle(event, self.now)
        placed: dict[str, list[Assign]] = {}
        for conn, message in out.sends:
            if isinstance(message, Assign):
                machine = next(n for n, other in self.conns.items() if other == conn)
                self.run[message.attempt] = machine
                placed.setdefault(message.job, []).append(message)
        for job, assigned in placed.items():
            nodes = assigned[0].spec.requirements.nodes
            if nodes > 1:
                assert [message.index for message in assigned] == list(range(nodes)), "half a gang"
                assert len({self.run[message.attempt] for message in assigned}) == nodes, job
                assert {message.nodes for message in assigned} == {assigned[0].nodes}
                assert len(assigned[0].nodes) == nodes
        return out

    def connect(self, n: int) -> None:
        slots, devices, vram, ram, cores, team, zone = self.machines[n]
        self._n += 1
        self.conns[n] = self._n
        inventory = Inventory(
            host=f"m{n}",
            os="linux",
            arch="x86_64",
            cpu_cores=cores,
            ram_bytes=ram,
            python="3.11.2",
            devices=tuple(Device(uuid=f"m{n}-{i}", kind="cuda", index=i, vram_bytes=vram) for i in range(devices)),
            labels={"team": team} if team else {},
            zone=zone,
        )
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            worker_id=f"id-{n}",
            nonce=f"{self._n}",
            name=f"m{n}",
            version="0",
            slots=slots,
            inventory=inventory,
        )
        for attempt in [name for name, machine in self.run.items() if machine == n]:
            del self.run[attempt]  # it is not declared: it never began
        self.do(WorkerConnected(conn=self._n, hello=hello, acked={}))

    def submit(self, owner: str, *specs: JobSpec) -> Any:
        self._n += 1
        made = tuple(Submission(key=f"{self._n}-{n}", payload_hash="p", spec=spec) for n, spec in enumerate(specs))
        if len(made) == 1:
            return self.do(Submitted(request=self._n, owner=owner, submission=made[0])).replies[0][1]
        return self.do(SubmittedBatch(request=self._n, owner=owner, submissions=made)).replies[0][1]

    def finish(self, attempt: str) -> None:
        machine = self.run.pop(attempt)
        ended = Finished(attempt=attempt, end_offset=0, outcome=DONE, began=True, released=True)
        self.do(WorkerSaid(conn=self.conns[machine], messages=(ended,), acked={attempt: 0}))

    def tick(self) -> None:
        self.now += 1.0
        for conn in list(self.plane.by_conn):
            self.do(WorkerSaid(conn=conn, messages=(Heartbeat(),)))
        self.do(Tick())

    # ---------------------------------------------------------------- what must hold

    def check(self) -> None:
        for worker in self.plane.workers.values():
            check_worker(worker)
        for owner, limits in self.plane.limits.items():
            claims = [each for w in self.plane.workers.values() for each in w.claims.values() if each.owner == owner]
            use = self.plane.usage.of.get(owner)
            assert (use.running if use else 0) == len(claims)
            assert limits.max_running is None or len(claims) <= limits.max_running
            assert limits.max_devices is None or sum(len(each.devices) for each in claims) <= limits.max_devices
        if not self.plane.reservations:
            self.check_nothing_waits()

    def check_nothing_waits(self) -> None:
        plane = self.plane
        there = [worker for worker in plane.workers.values() if worker.conn is not None]
        for _, line in plane.queue.heads():
            task = plane.tasks[plane.queue.head(line) or ""]
            asked = plane.jobs[task.job].spec.requirements
            if line.session in plane.session_of or waiting.limited(plane, line.owner, asked):
                continue
            ready = [worker for worker in there if match.fits(asked, worker) and match.has_room(asked, worker)]
            if asked.nodes == 1:
                chosen = next(iter(ready), None)
                assert chosen is None, f"{task.id} waits for {asked}, and {chosen.name} has room"
                continue
            nodes = gang.choose_nodes(asked, ready, lambda _: True)
            assert nodes is None, f"{task.id} waits for {asked}, and there is room"

    def reborn(self) -> None:
        """The plane begins anew from what its rows hold."""
        old = self.plane
        held = {name: copy.copy(attempt) for name, attempt in old.attempts.items()}
        jobs: list[Job] = []
        for job in old.jobs.values():
            again = copy.copy(job)
            again.tally, again.waits_in, again.tasks = {}, None, []
            for task in job.tasks:
                other = copy.copy(task)
                other.tally = None
                if task.attempt is not None:
                    other.attempt = held.get(task.attempt.id, task.attempt)
                again.tasks.append(other)
            jobs.append(again)
        workers = [
            Worker(id=w.id, name=w.name, slots=w.slots, local=w.local, inventory=w.inventory, last_seen_at=self.now)
            for w in old.workers.values()
        ]
        snapshot = Snapshot(
            jobs=jobs,
            attempts=list(held.values()),
            sessions=[copy.copy(session) for session in old.sessions.values()],
            workers=workers,
            last_job_n=old.last_job_n,
        )
        self.plane = Plane(epoch=old.epoch + 1, now=self.now, snapshot=snapshot, settings=self.settings)
        for worker in old.workers.values():
            again = self.plane.workers[worker.id]
            assert again.claims == worker.claims
            assert (again.vram_left, again.ram_left_bytes, again.cpu_left) == (
                worker.vram_left,
                worker.ram_left_bytes,
                worker.cpu_left,
            )
        self.plane.limits = old.limits
        assert {o: (u.running, u.devices) for o, u in self.plane.usage.of.items()} == {
            o: (u.running, u.devices) for o, u in old.usage.of.items()
        }
        for n in self.conns:
            self.connect(n)


def check_worker(worker: Worker) -> None:
    """No more is held of a worker than it has."""
    whole: set[str] = set()
    shares: dict[str, int] = {}
    memory = {device.uuid: memory_bytes(device, worker.inventory) for device in worker.inventory.devices}
    for claim in worker.claims.values():
        for device in claim.devices:
            if claim.vram_share_bytes is None:
                assert device.uuid not in whole, "a device is held twice"
                whole.add(device.uuid)
            else:
                shares[device.uuid] = shares.get(device.uuid, 0) + claim.vram_share_bytes
    assert not whole & shares.keys()
    assert all(taken <= memory[uuid] for uuid, taken in shares.items())
    assert sum(claim.ram_bytes for claim in worker.claims.values()) <= worker.inventory.ram_bytes
    assert sum(claim.cpu_cores for claim in worker.claims.values()) <= worker.inventory.cpu_cores
    light = [claim for claim in worker.claims.values() if claim.plain and claim.job]
    assert len(worker.claims) - len(light) <= worker.slots
    assert len(worker.claims) <= worker.slots + worker.ahead
    free = [device for device in worker.inventory.devices if device.uuid not in whole | shares.keys()]
    assert list(worker.devices_free) == free


def command(asked: Requirements, priority: int = 0) -> JobSpec:
    return JobSpec(command=CommandSpec(argv=("true",)), requirements=asked, priority=priority)


class Walk:
    """Whatever may happen, one thing after another."""

    def __init__(self, fleet: Fleet, seed: int):
        self.fleet = fleet
        self.draw = random.Random(seed)

    def run(self, steps: int) -> None:
        likely = {
            self.commands: 35, self.cell: 7, self.end: 33, self.cancel: 5, self.reconnect: 4, self.limit: 4,
            self.word: 4, self.fleet.reborn: 2, self.fleet.tick: 6,
        }  # fmt: skip
        for step in self.draw.choices(list(likely), list(likely.values()), k=steps):
            step()
            self.fleet.check()

    def commands(self) -> None:
        count = self.draw.choice((1, 1, 1, 4))
        specs = [command(self.draw.choice(ASKED), self.draw.choice((0, 0, 0, 5))) for _ in range(count)]
        self.fleet.submit(self.draw.choice(OWNERS), *specs)

    def cell(self) -> None:
        session = self.draw.choice((None, "s", "t"))
        asked = self.draw.choice([each for each in ASKED if each.nodes == 1])
        spec = JobSpec(cell=CellSpec(code="1", session=session, idle_timeout_s=3.0), requirements=asked)
        self.fleet.submit(self.draw.choice(OWNERS), spec)

    def end(self) -> None:
        if self.fleet.run:
            self.fleet.finish(self.draw.choice(sorted(self.fleet.run)))

    def cancel(self) -> None:
        if self.fleet.plane.jobs:
            self.fleet.do(CancelWanted(request=0, job=self.draw.choice(sorted(self.fleet.plane.jobs))))

    def reconnect(self) -> None:
        n = self.draw.choice(sorted(self.fleet.conns))
        self.fleet.do(WorkerGone(conn=self.fleet.conns[n]))
        self.fleet.connect(n)

    def limit(self) -> None:
        owner = self.draw.choice(OWNERS)
        if self.fleet.plane.usage.weight(owner) == 0:  # who holds more than that may keep it
            most = Limits(max_running=self.draw.choice((None, 1, 3)), max_devices=self.draw.choice((None, 2)))
            self.fleet.do(LimitsSet(limits={owner: most}))

    def word(self) -> None:
        conn = self.draw.choice(sorted(self.fleet.plane.by_conn))
        worker = self.fleet.plane.by_conn[conn]
        word = self.draw.choice((Ahead(count=3), Heartbeat(full="disk"), Heartbeat()))
        if worker.room_ahead == worker.ahead or not isinstance(word, Ahead):
            self.fleet.do(WorkerSaid(conn=conn, messages=(word,)))


@settings(max_examples=40, deadline=None)
@given(st.lists(MACHINES, min_size=1, max_size=5), st.integers(0, 2**32))
def test_no_machine_holds_more_than_it_has_and_nothing_waits_in_vain(machines: list[Any], seed: int) -> None:
    Walk(Fleet(machines), seed).run(80)


@settings(max_examples=30, deadline=None)
@given(st.lists(MACHINES, min_size=1, max_size=4), st.integers(0, 2**32))
def test_the_same_with_reservations(machines: list[Any], seed: int) -> None:
    Walk(Fleet(machines, reserve_after_s=2.0), seed).run(80)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 5),
    st.sampled_from(("prefer", "require", "spread", "none")),
    st.sampled_from((0, 1, 2)),
    st.integers(0, 2**32),
)
def test_who_needs_many_machines_is_placed_though_small_jobs_keep_coming(
    nodes: int, locality: str, devices: int, seed: int
) -> None:
    """Each end is answered by two new small jobs: without a reservation no two machines are free at once."""
    draw = random.Random(seed)
    fleet = Fleet([(2, 2, 16 * GB, 10 * GB, 4, "", "z1")] * 6, reserve_after_s=5.0)
    small = [command(Requirements()), command(Requirements(accelerator="cuda", devices=1))]
    fleet.submit("ben", *small * 12)
    kind = "cuda" if devices else None
    asked = Requirements(nodes=nodes, locality=locality, accelerator=kind, devices=devices)
    wanted = fleet.submit("ana", command(asked)).id
    ends = 0
    while fleet.plane.jobs[wanted].tasks[0].state is State.QUEUED:
        assert ends < 400, "it starves"
        fleet.finish(draw.choice(sorted(fleet.run)))
        fleet.submit("ben", *draw.choices(small, k=2))
        ends += 1
        if ends % 2 == 0:
            fleet.tick()
        fleet.check()
    assert {task.state for task in fleet.plane.jobs[wanted].tasks} == {State.ASSIGNED}
    assert not fleet.plane.reservations


@settings(max_examples=20, deadline=None)
@given(st.sampled_from((Requirements(accelerator="cuda", devices=4), Requirements(ram_bytes=9 * GB))), st.randoms())
def test_who_needs_much_of_one_machine_is_placed_though_small_jobs_keep_coming(asked: Requirements, draw: Any) -> None:
    fleet = Fleet([(6, 4, 16 * GB, 10 * GB, 8, "", "z1")] * 2, reserve_after_s=5.0)
    small = [command(Requirements(accelerator="cuda", devices=1)), command(Requirements(ram_bytes=3 * GB))]
    fleet.submit("ben", *small * 12)
    wanted = fleet.submit("ben", command(asked)).id
    ends = 0
    while fleet.plane.jobs[wanted].tasks[0].state is State.QUEUED:
        assert ends < 400, "it starves"
        fleet.finish(draw.choice(sorted(fleet.run)))
        fleet.submit("ana", *draw.choices(small, k=2))
        ends += 1
        fleet.tick()
        fleet.check()
    assert fleet.plane.jobs[wanted].tasks[0].state is State.ASSIGNED
