"""Why a job waits or can't be, machine by machine, and what would become of one that nobody submitted."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from gpulayer.protocol.messages import InventoryChanged
from gpulayer.protocol.types import CellSpec, CommandSpec, JobSpec, Placement, Requirements, State
from gpulayer_server.core.events import LimitsSet
from gpulayer_server.core.explaining import Why, explanation, holder_words
from gpulayer_server.core.machine import Claim
from gpulayer_server.core.state import Limits
from gpulayer_server.core.views import stored_view

CUDA = Requirements(accelerator="cuda")


def explain(world: Any, requirements: Requirements, **more: Any) -> Any:
    """What would become of it now."""
    return explanation(world.plane, requirements, "ann", world.now, **more)


def command(**more: Any) -> JobSpec:
    """A program."""
    return JobSpec(command=CommandSpec(argv=("run",)), **more)


def test_what_could_be_placed_now_and_where_it_would_go(world: Any) -> None:
    world.join("cpu")
    world.join("gpu", gpus=2)
    told = explain(world, replace(CUDA, devices=2))
    assert (told.placement, told.eligible, told.chosen) == (Placement.PLACED, ("gpu",), ("gpu",))
    assert [device.uuid for device in told.devices] == ["gpu-gpu0", "gpu-gpu1"]
    assert [(reason.worker, reason.code) for reason in told.reasons] == [("cpu", "device_kind")]
    assert told.nearest == ""
    assert not world.plane.queue


def test_what_has_to_wait_says_who_holds_it_and_since_when(world: Any) -> None:
    world.join("gpu", gpus=2)
    world.ask(command(requirements=CUDA, name="train.py"), owner="ana")
    world.now += 14 * 60
    told = explain(world, replace(CUDA, devices=2))
    assert (told.placement, told.eligible, told.chosen, told.devices) == (Placement.WAITING, ("gpu",), (), ())
    [reason] = told.reasons
    assert (reason.worker, reason.code, reason.temporary) == ("gpu", "devices_busy", True)
    assert "train.py by ana, 14 min" in reason.text


def test_of_those_who_share_a_device_all_are_named(world: Any) -> None:
    world.join("gpu", gpus=1)
    [worker] = world.plane.workers.values()
    [device] = worker.inventory.devices
    for name in ("one", "two"):
        worker.take(name, Claim(devices=(device,), vram_share_bytes=1, job=name, name=name, owner="ana"))
    told = Why(world.plane, 0.0).who
    assert told == {device.uuid: "one by ana, just begun and two by ana, just begun"}


def test_what_no_worker_could_take_names_the_nearest_step(world: Any) -> None:
    world.join("cpu")
    world.join("gpu", gpus=1)
    told = explain(world, replace(CUDA, frameworks=("jax",)))
    assert (told.placement, told.eligible, told.chosen) == (Placement.REJECTED, (), ())
    assert {reason.worker for reason in told.reasons} == {"cpu", "gpu"}
    assert "jax" in told.nearest
    assert "gpu" in told.nearest


def test_it_would_wait_for_a_worker_where_it_may(world: Any) -> None:
    world.join("cpu")
    told = explain(world, CUDA, wait_for_worker=True)
    assert (told.placement, told.chosen) == (Placement.WAITING, ())
    assert [reason.code for reason in told.reasons] == ["device_kind"]


def test_it_waits_for_a_worker_that_is_being_started(world: Any) -> None:
    world.plane.local_expected_until = world.now + 30
    told = explain(world, CUDA)
    assert (told.placement, [reason.code for reason in told.reasons]) == (Placement.WAITING, ["starting"])


def test_many_machines_at_once(world: Any) -> None:
    for name in ("a", "b"):
        world.join(name, slots=1)
    nodes = Requirements(nodes=2)
    told = explain(world, nodes)
    assert (told.placement, sorted(told.chosen)) == (Placement.PLACED, ["a", "b"])
    world.submit()
    told = explain(world, nodes)
    assert (told.placement, len(told.eligible), told.chosen) == (Placement.WAITING, 2, ())
    assert {reason.worker for reason in told.reasons} == {"", "a", "b"}
    told = explain(world, Requirements(nodes=3))
    assert told.placement is Placement.REJECTED


def test_a_job_that_may_wait_for_a_worker_is_not_rejected_and_tells_why(world: Any) -> None:
    world.join("cpu")
    job = world.ask(command(requirements=CUDA, wait_for_worker=True)).id
    assert world.state(job) is State.QUEUED
    world.wait(70)
    view = world.view(job)
    assert (view.state, [reason.code for reason in view.reasons]) == (State.QUEUED, ["device_kind"])
    assert view.nearest
    world.join("gpu", gpus=1)
    assert world.assigned() == [job]


def test_a_rejected_job_keeps_its_reasons_and_the_nearest_step(world: Any) -> None:
    world.join("gpu", gpus=1)
    job = world.ask(command(requirements=replace(CUDA, frameworks=("jax",))))
    assert job.state is State.REJECTED
    before = explain(world, replace(CUDA, frameworks=("jax",)))
    assert (job.reasons, job.nearest) == (before.reasons, before.nearest)
    record = world.plane.done[job.id][1]
    assert stored_view(record, {}).nearest == before.nearest
    assert job.nearest


def test_a_worker_whose_probes_run_may_be_the_one(world: Any) -> None:
    conn = world.join("gpu", gpus=1)
    inventory = world.plane.workers["id-gpu"].inventory
    world.say(conn, InventoryChanged(inventory=replace(inventory, probing=("torch",))))
    job = world.ask(command(requirements=replace(CUDA, frameworks=("torch",)))).id
    assert world.state(job) is State.QUEUED
    assert [reason.code for reason in world.view(job).reasons] == ["probing"]
    world.say(conn, InventoryChanged(inventory=inventory))
    assert job not in world.plane.jobs  # torch is not there: nobody could take it


def test_reasons_are_computed_again_when_the_fleet_is_another(world: Any) -> None:
    world.join("a", slots=1)
    world.submit()
    job = world.submit().id
    assert [reason.worker for reason in world.view(job).reasons] == ["a"]
    world.join("b", slots=0)
    assert world.out.fleet_changed
    assert [(reason.worker, reason.temporary) for reason in world.view(job).reasons] == [("a", True), ("b", False)]


def test_of_jobs_that_ask_for_the_same_the_fleet_is_looked_at_once(world: Any) -> None:
    world.join("a", slots=1)
    jobs = [world.submit().id for _ in range(3)]
    why = Why(world.plane, world.now)
    tasks = [world.plane.jobs[job].tasks[0] for job in jobs[1:]]
    assert why.waits(tasks[0])[0] is why.waits(tasks[1])[0]


def test_what_waits_for_a_session_or_a_job_says_so(world: Any) -> None:
    world.join("a", slots=3)
    first = world.submit(session="s").id
    cell = world.submit(session="s").id
    [reason] = world.view(cell).reasons
    assert (reason.code, reason.text) == ("session_busy", f"session 's' on a is running {first}")
    later = world.ask(JobSpec(cell=CellSpec(code="1"), after=(first,))).id
    [reason] = world.view(later).reasons
    assert (reason.code, first in reason.text) == ("after", True)


@pytest.mark.parametrize(
    ("claim", "seconds", "said"),
    [
        (Claim(name="train.py", owner="ana", job="k3f9"), 14 * 60.0, "train.py by ana, 14 min"),
        (Claim(owner="ana", job="k3f9"), 2 * 3600.0, "job k3f9 by ana, 2 h"),
        (Claim(session="s", owner="ana"), 86_400.0, "session s by ana, 1 day"),
        (Claim(job="k3f9"), 3 * 86_400.0, "job k3f9, 3 days"),
        (Claim(job="k3f9"), 59.0, "job k3f9, just begun"),
    ],
)
def test_who_holds_something(claim: Claim, seconds: float, said: str) -> None:
    assert holder_words(claim, claim.since + seconds) == said


def test_who_is_at_the_limit_of_his_token_waits_and_is_told_so(world: Any) -> None:
    world.join("a", slots=4)
    world.do(LimitsSet(limits={"ana": Limits(max_running=1, max_devices=0)}))
    world.submit(owner="ana")
    job = world.submit(owner="ana").id
    assert world.state(job) is State.QUEUED
    [reason] = world.view(job).reasons
    assert (reason.worker, reason.code, reason.temporary) == ("", "limit", True)
    assert reason.text == "ana holds 1 of 1 running task and 0 of 0 devices that the token allows at once"
    told = explanation(world.plane, Requirements(), "ana", world.now)
    assert (told.placement, told.eligible, told.reasons) == (Placement.WAITING, ("a",), (reason,))
    assert explain(world, Requirements()).placement is Placement.PLACED  # somebody else's
    world.do(LimitsSet(limits={}))
    assert world.assigned() == [job]


def test_what_is_kept_for_one_who_waits_longer_is_told(world: Any) -> None:
    world.join("a", slots=4, gpus=2)
    world.submit(gpus=1)
    big = world.submit(gpus=2).id
    world.wait(200)
    assert world.plane.reservations
    told = explain(world, CUDA)
    assert (told.placement, told.chosen) == (Placement.WAITING, ())
    assert [(reason.worker, reason.code) for reason in told.reasons] == [("a", "reserved")]
    assert big in told.reasons[0].text
