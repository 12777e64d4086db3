"""Limits of owners, turns between them, declared memory and shares of devices, and what is kept for who waits long."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.messages import Hello, Sampled
from gpulayer.protocol.types import (
    PROTOCOL_VERSION,
    CommandSpec,
    Device,
    DeviceSample,
    Inventory,
    JobSpec,
    Process,
    Requirements,
    Sample,
    State,
)
from gpulayer_server.core import waiting
from gpulayer_server.core.events import LimitsSet, Tick, WorkerConnected
from gpulayer_server.core.machine import Worker
from gpulayer_server.core.state import Limits, Settings

GB = 10**9
ONE = Requirements(accelerator="cuda", devices=1)


def command(requirements: Requirements, *, patient: bool = False, priority: int = 0) -> JobSpec:
    spec = CommandSpec(argv=("true",))
    return JobSpec(command=spec, requirements=requirements, wait_for_worker=patient, priority=priority)


def machine(world: Any, name: str, *, gpus: int = 0, slots: int = 8, ram: int = 64 * GB, vram: int = 24 * GB) -> Worker:
    """A machine joins."""
    world._conns += 1
    inventory = Inventory(
        host=name,
        os="linux",
        arch="x86_64",
        cpu_cores=16,
        ram_bytes=ram,
        python="3.11",
        devices=tuple(Device(uuid=f"{name}-{i}", kind="cuda", index=i, vram_bytes=vram) for i in range(gpus)),
    )
    hello = Hello(
        protocol=PROTOCOL_VERSION,
        worker_id=name,
        nonce="n",
        name=name,
        version="0",
        slots=slots,
        inventory=inventory,
    )
    world.do(WorkerConnected(conn=world._conns, hello=hello, acked={}))
    return world.plane.workers[name]


def ask(world: Any, requirements: Requirements, *, owner: str = "ann", **more: Any) -> Any:
    return world.ask(command(requirements, **more), owner=owner)


def end(world: Any, job: str, index: int = 0) -> None:
    attempt = world.plane.jobs[job].tasks[index].attempt
    conn = world.plane.workers[attempt.worker].conn
    world.finish(conn, attempt.id)
    world.release(conn, attempt.id)


# ---------------------------------------------------------------- limits, turns


def test_who_is_over_a_limit_waits_and_others_do_not(world):
    machine(world, "box", gpus=4)
    world.do(LimitsSet(limits={"ann": Limits(max_running=2)}))
    jobs = [ask(world, Requirements()).id for _ in range(3)]
    assert [world.state(job) for job in jobs] == [State.ASSIGNED, State.ASSIGNED, State.QUEUED]
    assert waiting.limited(world.plane, "ann", Requirements())
    assert ask(world, Requirements(), owner="ben").state is State.ASSIGNED
    end(world, jobs[0])
    assert world.state(jobs[2]) is State.ASSIGNED


def test_a_limit_of_devices_holds_up_who_asks_for_devices_only(world):
    machine(world, "box", gpus=4)
    world.do(LimitsSet(limits={"ann": Limits(max_devices=1)}))
    first, second = ask(world, ONE), ask(world, ONE)
    assert (first.state, second.state, ask(world, Requirements()).state) == (
        State.ASSIGNED,
        State.QUEUED,
        State.ASSIGNED,
    )
    world.do(LimitsSet(limits={}))
    assert world.state(second.id) is State.ASSIGNED


def test_a_session_counts_for_its_owner(world):
    machine(world, "box")
    world.do(LimitsSet(limits={"ann": Limits(max_running=1)}))
    world.submit(session="s")
    assert ask(world, Requirements()).state is State.QUEUED
    assert world.submit(session="s").state is State.QUEUED  # in its session, which is busy


def test_a_job_on_many_machines_is_within_the_limit_as_a_whole(world):
    machine(world, "a")
    machine(world, "b")
    world.do(LimitsSet(limits={"ann": Limits(max_running=2)}))
    single = ask(world, Requirements()).id
    gang = ask(world, Requirements(nodes=2)).id
    assert world.state(gang) is State.QUEUED
    end(world, single)
    assert [task.state for task in world.plane.jobs[gang].tasks] == [State.ASSIGNED, State.ASSIGNED]


def test_owners_take_turns(world):
    box = machine(world, "box", slots=1)
    first = ask(world, Requirements(), owner="ann").id
    jobs = {owner: [ask(world, Requirements(), owner=owner).id for _ in range(3)] for owner in ("ann", "ben")}
    order: list[str] = []
    running = first
    for _ in range(6):
        end(world, running)
        (claim,) = box.claims.values()
        running = claim.job
        order.append(next(owner for owner, names in jobs.items() if running in names))
    assert order == ["ann", "ann", "ann", "ben", "ben", "ben"]  # with one slot nobody holds anything when it is free
    machine(world, "more", slots=3)
    more = [ask(world, Requirements(), owner=owner).id for owner in ("ann", "ann", "ann", "ben")]
    assert world.state(more[3]) is State.QUEUED  # ben holds the one slot of box already
    end(world, more[0])
    assert world.state(more[3]) is State.ASSIGNED


# ---------------------------------------------------------------- what is declared


def test_shares_of_a_device_lie_on_the_fullest_card_until_no_more_fit(world):
    box = machine(world, "box", gpus=2)
    eight = Requirements(accelerator="cuda", vram_share_bytes=8 * GB)
    shares = [ask(world, eight) for _ in range(3)]
    assert [view.devices[0].uuid for view in shares] == ["box-0"] * 3
    assert (box.vram_left, [device.uuid for device in box.devices_free]) == ({"box-0": 0}, ["box-1"])
    assert ask(world, ONE).devices[0].uuid == "box-1"
    assert ask(world, eight).state is State.QUEUED
    end(world, shares[0].id)
    assert box.vram_left == {"box-0": 0}  # the one that waited has it
    for view in shares[1:]:
        end(world, view.id)
    assert box.vram_left == {"box-0": 16 * GB}


def test_declared_memory_and_cores_are_never_promised_twice(world):
    box = machine(world, "box", ram=10 * GB)
    first = ask(world, Requirements(ram_bytes=6 * GB, cpu_cores=10)).id
    more, cores = ask(world, Requirements(ram_bytes=6 * GB)).id, ask(world, Requirements(cpu_cores=7)).id
    assert (world.state(more), world.state(cores)) == (State.QUEUED, State.QUEUED)
    assert ask(world, Requirements(ram_bytes=4 * GB)).state is State.ASSIGNED
    assert (box.ram_left_bytes, box.cpu_left, box.ram_declared_bytes) == (0, 6.0, 10 * GB)
    end(world, first)
    assert (world.state(more), world.state(cores)) == (State.ASSIGNED, State.ASSIGNED)


def test_what_a_session_declared_is_held_after_a_restart(world):
    machine(world, "box", gpus=1, ram=10 * GB)
    share = Requirements(accelerator="cuda", vram_share_bytes=9 * GB, ram_bytes=6 * GB)
    ask(world, share)
    world.plane.sessions.clear()
    again = world.reborn().workers["box"]
    assert (again.vram_left, again.ram_left_bytes) == ({"box-0": 15 * GB}, 4 * GB)
    assert [claim.owner for claim in again.claims.values()] == ["ann"]


def test_a_job_goes_where_it_strands_the_fewest_devices(world):
    machine(world, "large", gpus=4)
    machine(world, "small", gpus=1)
    machine(world, "none")
    assert ask(world, Requirements()).worker == "none"
    assert ask(world, ONE).worker == "small"
    assert ask(world, Requirements(accelerator="cuda", devices=4)).worker == "large"


def test_who_waits_is_placed_when_somebody_elses_process_leaves_the_card(world):
    box = machine(world, "box", gpus=1)
    foreign = (Process(pid=7, name="python", bytes=20 * GB),)
    busy = DeviceSample(uuid="box-0", used_bytes=20 * GB, free_bytes=4 * GB, foreign=foreign)
    world.say(box.conn, Sampled(sample=Sample(devices=(busy,))))
    job = ask(world, ONE).id
    assert world.state(job) is State.QUEUED
    free = DeviceSample(uuid="box-0", used_bytes=0, free_bytes=24 * GB)
    world.say(box.conn, Sampled(sample=Sample(devices=(free,))))
    world.do(Tick())  # samples are looked at once a second
    assert world.state(job) is State.ASSIGNED


# ---------------------------------------------------------------- patience, reservations


def test_one_who_waits_for_a_worker_is_not_rejected_and_holds_nobody_up(world):
    machine(world, "box")
    job = ask(world, ONE, patient=True).id
    assert ask(world, ONE).state is State.REJECTED
    world.wait(5)
    assert world.state(job) is State.QUEUED
    machine(world, "gpu", gpus=1)
    assert world.state(job) is State.ASSIGNED


@pytest.fixture
def crowd(world):
    """Two machines with two devices each, all of which small jobs hold; and one who needs both of a machine."""
    world.plane.settings = Settings(reserve_after_s=5.0)
    machine(world, "a", gpus=2, slots=4)
    machine(world, "b", gpus=2, slots=4)
    world.small = [ask(world, ONE).id for _ in range(4)]
    world.wanted = ask(world, Requirements(accelerator="cuda", devices=2)).id
    return world


def held_by(world: Any, worker: str) -> list[str]:
    return [job for job in world.small if world.plane.workers[worker].claims and _on(world, job) == worker]


def _on(world: Any, job: str) -> str:
    return world.plane.jobs[job].tasks[0].attempt.worker if job in world.plane.jobs else ""


def test_what_is_reserved_is_kept_from_small_jobs_and_the_rest_is_not(crowd):
    crowd.wait(6)
    (reservation,) = crowd.plane.reservations.values()
    (kept,) = reservation.kept.values()
    there = kept.worker.id
    other = "b" if there == "a" else "a"
    later = [ask(crowd, ONE).id for _ in range(2)]
    end(crowd, held_by(crowd, there)[0])
    assert [crowd.state(job) for job in later] == [State.QUEUED, State.QUEUED]
    assert ask(crowd, Requirements(worker=there)).state is State.ASSIGNED  # a slot is left beside the one that is kept
    end(crowd, held_by(crowd, other)[0])
    assert [crowd.state(job) for job in later] == [State.ASSIGNED, State.QUEUED]
    assert crowd.state(crowd.wanted) is State.QUEUED
    end(crowd, held_by(crowd, there)[0])
    assert crowd.view(crowd.wanted).worker == there
    assert not crowd.plane.reservations


def test_before_its_time_nothing_is_reserved(crowd):
    crowd.wait(4)
    assert not crowd.plane.reservations


def test_a_reservation_ends_with_who_waits(crowd):
    crowd.wait(6)
    (kept,) = next(iter(crowd.plane.reservations.values())).kept.values()
    later = ask(crowd, ONE).id
    end(crowd, held_by(crowd, kept.worker.id)[0])
    assert crowd.state(later) is State.QUEUED
    crowd.cancel(crowd.wanted)
    assert (crowd.state(later), crowd.plane.reservations) == (State.ASSIGNED, {})


def test_a_reservation_moves_on_when_its_worker_goes(crowd):
    crowd.wait(6)
    (kept,) = next(iter(crowd.plane.reservations.values())).kept.values()
    crowd.leave(kept.worker.conn)
    crowd.do(Tick())
    (moved,) = next(iter(crowd.plane.reservations.values())).kept.values()
    assert moved.worker is not kept.worker
    assert not crowd.plane.room.reserved(kept.worker)


def test_the_first_in_the_order_get_the_reservations(world):
    world.plane.settings = Settings(reserve_after_s=5.0)
    for n in range(8):
        machine(world, f"m{n}", gpus=2)
        ask(world, Requirements(worker=f"m{n}", accelerator="cuda", devices=1))
    two = Requirements(accelerator="cuda", devices=2)
    low = [ask(world, Requirements(accelerator="cuda", devices=2, ram_bytes=n + 1)).id for n in range(4)]
    world.wait(7)
    assert {task.split("/")[0] for task in world.plane.reservations} == set(low)
    high = ask(world, two, priority=9).id
    world.wait(7)
    assert {task.split("/")[0] for task in world.plane.reservations} == {high, *low[:3]}
