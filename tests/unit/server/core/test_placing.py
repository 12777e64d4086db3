"""Placed, waiting, or rejected at once."""

from __future__ import annotations

import pytest

from gpulayer.protocol.messages import Ahead, Assign, Heartbeat
from gpulayer.protocol.types import CommandSpec, JobSpec, State
from gpulayer_server.core.events import LocalWorkerExpected


def test_a_job_that_fits_is_placed_at_once(world):
    conn = world.join(gpus=2)
    view = world.submit(gpus=1)
    assert (view.state, view.worker) == (State.ASSIGNED, "box")
    [(sent_to, assign)] = world.out.sends
    assert sent_to == conn
    assert isinstance(assign, Assign)
    assert (assign.job, assign.attempt) == (view.id, view.attempt)
    assert [device.uuid for device in assign.devices] == ["box-gpu0"]


def test_only_a_job_with_retries_is_leased(world):
    world.join()
    world.submit()
    assert not world.sent(Assign)[0].leased
    world.submit(retries=1)
    assert world.sent(Assign)[0].leased


def test_a_job_waits_for_a_busy_slot_and_says_why(world):
    world.join(slots=1)
    world.submit()
    first, second = world.submit().id, world.submit().id
    view = world.view(second)
    assert (view.state, view.ahead) == (State.QUEUED, 1)
    assert world.view(first).ahead == 0
    [reason] = view.reasons
    assert (reason.worker, reason.code, reason.temporary, reason.text) == ("box", "slots", True, "all 1 slot busy")


def test_a_job_waits_for_busy_devices_and_says_why(world):
    world.join(slots=4, gpus=2)
    world.submit(gpus=2)
    [reason] = world.view(world.submit(gpus=1).id).reasons
    assert (reason.code, reason.wanted, reason.found) == ("devices_busy", 1, 0)
    assert reason.text.startswith("needs 1 free cuda device, 0 free now")


def test_one_class_that_waits_does_not_hold_up_another(world):
    world.join(slots=4, gpus=1)
    world.submit(gpus=1)
    assert world.submit(gpus=1).state is State.QUEUED
    assert world.submit().state is State.ASSIGNED


def test_a_job_that_no_worker_could_take_is_rejected_with_every_reason(world):
    world.join("small", gpus=1)
    world.join("none")
    view = world.submit(gpus=2)
    assert view.state is State.REJECTED
    assert {reason.worker: reason.text for reason in view.reasons} == {
        "small": "needs 2 usable cuda devices, worker has 1",
        "none": "needs 2 usable cuda devices, worker has 0 (CPU only)",
    }
    assert not any(reason.temporary for reason in view.reasons)
    assert world.plane.idle()


def test_an_unknown_worker_is_rejected_with_the_nearest_name(world):
    world.join("train-box")
    view = world.submit(worker="trainbox")
    assert view.state is State.REJECTED
    assert view.reasons[0].code == "worker_unknown"
    assert view.reasons[0].text == "no worker is named 'trainbox'; did you mean train-box?"


def test_without_any_worker_a_job_is_rejected_and_told_what_to_do(world):
    view = world.submit()
    assert view.state is State.REJECTED
    assert [reason.code for reason in view.reasons] == ["no_worker"]
    assert "gpulayer up" in view.reasons[0].text


def test_a_job_waits_for_the_local_worker_that_is_being_started(world):
    world.do(LocalWorkerExpected(until=world.now + 20))
    job = world.submit().id
    assert world.state(job) is State.QUEUED
    world.join(local=True)
    assert world.assigned() == [job]


def test_a_job_is_rejected_when_the_local_worker_does_not_come(world):
    world.do(LocalWorkerExpected(until=world.now + 20))
    job = world.submit().id
    world.wait(19)
    assert world.state(job) is State.QUEUED
    world.wait(1)
    assert job not in world.plane.jobs
    assert world.out.changed == {job}


def test_a_job_waits_for_a_worker_that_is_out_of_reach_for_a_while(world):
    conn = world.join()
    world.leave(conn)
    job = world.submit().id
    assert [reason.code for reason in world.view(job).reasons] == ["out_of_reach"]
    world.join()
    assert world.assigned() == [job]


def test_a_job_goes_to_the_named_worker(world):
    world.join("a", slots=9)
    world.join("b")
    assert world.submit(worker="b").worker == "b"


def test_no_slot_is_given_twice(world):
    world.join(slots=2)
    world.join("other", slots=1)
    views = [world.submit() for _ in range(5)]
    assert [view.state for view in views].count(State.ASSIGNED) == 3
    assert all(worker.slots_free == 0 for worker in world.plane.workers.values())


def test_no_device_is_given_twice(world):
    world.join(slots=9, gpus=3)
    views = [world.submit(gpus=1) for _ in range(5)]
    taken = [device.uuid for view in views for device in view.devices]
    assert sorted(taken) == ["box-gpu0", "box-gpu1", "box-gpu2"]


@pytest.mark.parametrize("wanted", [{"session": "s"}, {"gpus": 1}])
def test_commands_that_may_wait_for_a_slot_do_not_keep_it_from_who_stands_before_them(world, wanted):
    conn = world.join(slots=1, gpus=1)
    command = JobSpec(command=CommandSpec(argv=("true",)))
    world.say(conn, Ahead(count=2))
    first, second = world.ask(command), world.ask(command)
    cell = world.submit(**wanted)
    later = world.ask(command)
    assert [world.state(view.id) for view in (second, cell, later)] == [State.ASSIGNED, State.QUEUED, State.QUEUED]
    for view in (first, second):
        world.finish(conn, view.attempt, end=0)
        world.release(conn, view.attempt)
    assert world.state(cell.id) is State.ASSIGNED
    assert world.state(later.id) is State.ASSIGNED  # ahead again: nobody waits before it


def test_who_waits_for_devices_keeps_no_slot(world):
    conn = world.join(slots=2, gpus=1)
    world.say(conn, Ahead(count=2))
    world.submit(gpus=1)
    assert world.submit(gpus=1).state is State.QUEUED
    command = JobSpec(command=CommandSpec(argv=("true",)))
    assert [world.ask(command).state for _ in range(2)] == [State.ASSIGNED] * 2


def test_the_one_with_the_most_room_ahead_takes_what_no_slot_is_free_for(world):
    conns = {name: world.join(name, slots=1) for name in ("a", "b", "c")}
    command = JobSpec(command=CommandSpec(argv=("true",)))
    for _ in conns:
        world.ask(command)
    world.say(conns["a"], Ahead(count=3))
    world.say(conns["b"], Ahead(count=7))
    assert world.view(world.ask(command).id).worker == "b"


def test_nobody_takes_ahead_who_did_not_say_so_or_is_full(world):
    world.join("a", slots=1)
    full = world.join("b", slots=1)
    command = JobSpec(command=CommandSpec(argv=("true",)))
    assert [world.ask(command).state for _ in range(2)] == [State.ASSIGNED] * 2
    world.say(full, Heartbeat(full="disk low"))
    world.say(full, Ahead(count=9))
    assert world.ask(command).state is State.QUEUED
