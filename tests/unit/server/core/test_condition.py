"""What workers say of their machines: samples that cost nothing, inventories that change what fits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpulayer.protocol.messages import Heartbeat, InventoryChanged, Sampled
from gpulayer.protocol.types import (
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
from gpulayer_server.core import condition
from gpulayer_server.core.events import Tick

GB = 10**9


def command(**asks: Any) -> JobSpec:
    """A program that asks for this."""
    return JobSpec(command=CommandSpec(argv=("run",)), requirements=Requirements(**asks))


def foreign(uuid: str, count: int = GB) -> Sample:
    """Somebody else's process is on a device."""
    process = Process(pid=7, name="python", user="alice", bytes=count)
    return Sample(devices=(DeviceSample(uuid=uuid, free_bytes=GB, foreign=(process,)),))


def inventory(world: Any) -> Inventory:
    """That of the only worker."""
    return world.plane.workers["id-box"].inventory


def test_a_sample_is_kept_in_memory_and_nothing_is_written(world: Any) -> None:
    conn = world.join()
    world.now += 5
    out = world.say(conn, Sampled(sample=Sample(cpu=0.5)))
    worker = world.plane.workers["id-box"]
    assert (worker.sample, worker.sampled_at) == (Sample(cpu=0.5), 1005.0)
    assert (worker.last_seen_at, out.sampled) == (1005.0, {"id-box"})
    assert (out.rows, out.sends, out.fleet_changed, out.changed) == ({}, [], False, set())


def test_the_newest_sample_counts_and_none_outlives_its_connection(world: Any) -> None:
    conn = world.join()
    world.say(conn, Sampled(sample=Sample(cpu=0.1)), Sampled(sample=Sample(cpu=0.2)))
    assert world.plane.workers["id-box"].sample == Sample(cpu=0.2)
    world.leave(conn)
    assert world.plane.workers["id-box"].sample is None
    world.say(conn, Sampled(sample=Sample(cpu=0.3)))
    assert world.plane.workers["id-box"].sample is None


def test_a_worker_that_says_no_more_how_it_fares_is_one_of_which_it_is_not_known(world: Any) -> None:
    conn = world.join()
    world.say(conn, Sampled(sample=Sample(cpu=0.5)))
    world.wait(29)
    assert world.plane.workers["id-box"].sample is not None
    world.wait(2)
    assert world.plane.workers["id-box"].sample is None
    assert world.plane.workers["id-box"].conn == conn


def test_what_a_stranger_leaves_of_a_device_lets_one_who_waits_begin(world: Any) -> None:
    conn = world.join(gpus=1, vram_bytes=24 * GB)
    world.say(conn, Sampled(sample=foreign("box-gpu0", 23 * GB)))
    job = world.ask(command(accelerator="cuda")).id
    assert [reason.code for reason in world.view(job).reasons] == ["foreign"]
    assert "python pid 7 by alice" in world.view(job).reasons[0].text
    assert "alice" in world.view(job).nearest
    world.say(conn, Sampled(sample=Sample()))
    assert world.assigned() == []
    out = world.do(Tick())
    assert (world.assigned(), out.fleet_changed) == ([job], True)


def test_memory_that_was_measured_to_be_free_lets_one_who_waits_begin(world: Any) -> None:
    conn = world.join(ram_bytes=64 * GB)
    world.say(conn, Sampled(sample=Sample(ram_free_bytes=9 * GB)))
    job = world.ask(command(ram_bytes=10 * GB)).id
    assert [reason.code for reason in world.view(job).reasons] == ["ram_busy"]
    for free in (8, 11, 9):  # more in between, and at the end too little again
        world.say(conn, Sampled(sample=Sample(ram_free_bytes=free * GB)))
    world.do(Tick())
    assert world.assigned() == []
    world.say(conn, Sampled(sample=Sample(ram_free_bytes=10 * GB + 1)))
    world.do(Tick())
    assert world.assigned() == [job]


@pytest.mark.parametrize(
    ("asks", "sample"),
    [
        ({"worker": "nobody"}, foreign("box-gpu0")),  # nothing that is measured matters to it
        ({"ram_bytes": 50 * GB}, Sample(ram_free_bytes=20 * GB)),  # more than before, and still too little
        ({"accelerator": "cuda", "devices": 2}, Sample(ram_free_bytes=1)),
    ],
)
def test_a_sample_makes_nobody_look_for_room_unless_it_matters(world: Any, asks: Any, sample: Sample) -> None:
    conn = world.join(gpus=2, ram_bytes=64 * GB)
    held = world.ask(command(accelerator="cuda")).id
    world.say(conn, Sampled(sample=Sample(ram_free_bytes=10 * GB)))
    world.ask(replace(command(**asks), wait_for_worker=True))
    assert len(world.plane.queue) == 1
    world.say(conn, Sampled(sample=sample))
    world.plane.room.freed.clear()
    condition.look(world.plane, world.out)
    assert not world.plane.room.freed
    assert world.state(held) is State.ASSIGNED


def test_another_inventory_is_written_and_changes_what_fits(world: Any) -> None:
    conn = world.join()
    world.plane.local_expected_until = 2000.0  # nothing is rejected meanwhile
    job = world.submit(gpus=1).id
    assert world.state(job) is State.QUEUED
    device = Device(uuid="new", kind="cuda", index=0)
    world.say(conn, InventoryChanged(inventory=replace(inventory(world), devices=(device,))))
    assert world.plane.workers["id-box"] in world.out.rows.values()
    assert world.out.fleet_changed
    assert world.assigned() == [job]
    assert world.attempt(job).devices == (device,)


def test_the_same_inventory_again_changes_nothing(world: Any) -> None:
    conn = world.join(gpus=1)
    out = world.say(conn, InventoryChanged(inventory=replace(inventory(world))))
    assert (out.rows, out.fleet_changed) == ({}, False)


def test_what_runs_on_a_device_that_is_gone_goes_on_and_it_is_free_of_it_later(world: Any) -> None:
    conn = world.join(gpus=2)
    job = world.submit(gpus=1).id
    attempt = world.attempt(job)
    left = tuple(device for device in inventory(world).devices if device not in attempt.devices)
    world.say(conn, InventoryChanged(inventory=replace(inventory(world), devices=left)))
    assert world.state(job) is State.ASSIGNED
    assert [device.uuid for device in world.plane.workers["id-box"].devices_free] == [left[0].uuid]
    world.start(conn, attempt.id)
    world.finish(conn, attempt.id)
    world.release(conn, attempt.id)
    assert [device.uuid for device in world.plane.workers["id-box"].devices_free] == [left[0].uuid]


@pytest.mark.parametrize("sick", ["", "Xid 79: fallen off the bus"])
def test_a_sick_device_takes_no_work_until_it_is_mended(world: Any, sick: str) -> None:
    conn = world.join(gpus=1)
    device = replace(inventory(world).devices[0], sick=sick)
    world.say(conn, InventoryChanged(inventory=replace(inventory(world), devices=(device,))))
    world.plane.local_expected_until = 2000.0
    job = world.submit(gpus=1).id
    assert world.state(job) is (State.QUEUED if sick else State.ASSIGNED)
    world.say(conn, InventoryChanged(inventory=replace(inventory(world), devices=(replace(device, sick=""),))))
    assert world.state(job) is State.ASSIGNED


def test_what_is_said_beside_a_sample_is_heard(world: Any) -> None:
    conn = world.join()
    world.say(conn, Sampled(sample=Sample(cpu=0.5)), Heartbeat(notes=("hot",)))
    assert world.plane.workers["id-box"].notes == ("hot",)
