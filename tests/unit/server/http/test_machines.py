"""Machines over HTTP: what would become of a job there, who holds what, how they fare."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from gpulayer.protocol.messages import CancelAttempt, InventoryChanged, Sampled
from gpulayer.protocol.types import Device, Explanation, Placement, Process, Sample, State, WorkerView
from gpulayer.protocol.types import DeviceSample as OfDevice
from tests.support.processes import until
from tests.unit.server.http.conftest import INVENTORY

PATIENCE_S = 30
GPU = Device(uuid="gpu-0", kind="cuda", index=0, name="NVIDIA RTX 4090", vram_bytes=24 * 10**9)
WITH_GPU = replace(INVENTORY, devices=(GPU,))
SAMPLE = Sample(cpu=0.25, ram_free_bytes=5, devices=(OfDevice(uuid="gpu-0", foreign=(Process(pid=7, name="x"),)),))


def explain(plane: Any, *, wait: bool = False, **requirements: Any) -> Explanation:
    """What would become of it."""
    body = {"requirements": requirements, "wait_for_worker": wait}
    answer = plane.request("POST", "/v1/explain", json=body)
    assert answer.status_code == 200, answer.text
    return msgspec.json.decode(answer.content, type=Explanation)


def workers(plane: Any) -> list[WorkerView]:
    """All that are known."""
    return msgspec.json.decode(plane.request("GET", "/v1/workers").content, type=list[WorkerView])


def test_what_would_become_of_a_job(plane: Any, worker: Any) -> None:
    told = explain(plane, accelerator="cuda")
    assert (told.placement, [reason.code for reason in told.reasons]) == (Placement.REJECTED, ["device_kind"])
    assert told.nearest
    assert explain(plane, wait=True, accelerator="cuda").placement is Placement.WAITING
    worker.say(InventoryChanged(inventory=WITH_GPU))
    until(lambda: workers(plane)[0].inventory == WITH_GPU, "the inventory")
    told = explain(plane, accelerator="cuda")
    assert (told.placement, told.chosen, told.devices) == (Placement.PLACED, ("alpha",), (GPU,))
    assert plane.request("GET", "/v1/jobs").json() == []


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"requirements": {"frameworks": ["torch>>2"]}}, "bad_job"),
        ({"requirements": {"devices": "two"}}, "bad_request"),
        ({}, "bad_request"),
    ],
)
def test_what_nobody_could_ask_for(plane: Any, body: dict[str, Any], code: str) -> None:
    answer = plane.request("POST", "/v1/explain", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, code)


def test_who_holds_what_of_a_worker(plane: Any, worker: Any) -> None:
    worker.say(InventoryChanged(inventory=WITH_GPU))
    until(lambda: workers(plane)[0].devices_free == ("gpu-0",), "the inventory")
    requirements = {"accelerator": "cuda", "vram_share_bytes": 8 * 10**9, "ram_bytes": 1, "cpu_cores": 0.5}
    spec = {"command": {"argv": ["a"]}, "name": "train.py", "requirements": requirements}
    job = plane.request("POST", "/v1/jobs", json={"key": "k", "spec": spec}).json()
    assert job["state"] == "assigned"
    [view] = workers(plane)
    [holder] = view.holders
    assert (holder.job, holder.name, holder.devices) == (job["id"], "train.py", ("gpu-0",))
    assert (holder.vram_bytes, holder.since > 0, bool(holder.owner)) == (8 * 10**9, True, True)
    assert (view.slots_free, view.ram_declared_bytes, view.cpu_declared) == (3, 1, 0.5)


def test_how_a_worker_fares_is_in_its_view_as_long_as_it_is_there(plane: Any, worker: Any) -> None:
    worker.say(Sampled(sample=SAMPLE))
    until(lambda: workers(plane)[0].sample == SAMPLE, "the sample")
    assert (workers(plane)[0].sampled_at or 0) > 0
    worker.close()
    until(lambda: not workers(plane)[0].connected, "the end of the connection")
    assert workers(plane)[0].sample is None


# ---------------------------------------------------------------- watched


@pytest.fixture
def watching(plane: Any, worker: Any) -> Iterator[Any]:
    """Gives the next message of /v1/watch with something in it."""
    with plane.socket("/v1/watch") as socket:

        def next_with(field: str) -> dict[str, Any]:
            while True:
                message = json.loads(socket.recv(timeout=PATIENCE_S))
                if message.get(field):
                    return message

        assert [each["name"] for each in next_with("workers")["workers"]] == ["alpha"]
        yield next_with


def test_samples_reach_who_watches_and_nothing_else_comes_with_them(plane: Any, worker: Any, watching: Any) -> None:
    worker.say(Sampled(sample=SAMPLE))
    message = watching("samples")
    assert message["samples"] == {"w1": json.loads(msgspec.json.encode(SAMPLE))}
    assert not any(message.get(each) for each in ("workers", "jobs", "sessions"))
    worker.say(Sampled(sample=Sample(cpu=0.75)))
    assert watching("samples")["samples"]["w1"]["cpu"] == 0.75
    with plane.socket("/v1/watch") as another:
        fleet = json.loads(another.recv(timeout=PATIENCE_S))
        assert fleet["workers"][0]["sample"]["cpu"] == 0.75


def test_samples_are_told_once_a_second_at_most_and_the_newest_of_each(plane: Any, worker: Any, watching: Any) -> None:
    """By the loop's own clock: when they are told is decided there."""
    worker.say(Sampled(sample=Sample(cpu=0.0)))
    watching("samples")
    [watcher] = plane.do(lambda: list(plane.service.shell.watchers))
    not_before = watcher._samples_at
    worker.say(Sampled(sample=Sample(cpu=0.1)), Sampled(sample=Sample(cpu=0.2)))
    assert watching("samples")["samples"]["w1"]["cpu"] == 0.2
    assert watcher._samples_at - not_before >= 1.0


def test_a_worker_is_not_told_again_for_its_samples_alone(worker: Any, new_worker: Any, watching: Any) -> None:
    worker.say(Sampled(sample=SAMPLE))
    watching("samples")
    worker.say(Sampled(sample=Sample(cpu=0.5)))
    new_worker("w2", name="beta")
    assert [each["name"] for each in watching("workers")["workers"]] == ["beta"]
    worker.say(InventoryChanged(inventory=WITH_GPU))
    [told] = watching("workers")["workers"]
    assert (told["name"], told["sample"]["cpu"]) == ("alpha", 0.5)
    assert [device["uuid"] for device in told["inventory"]["devices"]] == ["gpu-0"]


def test_a_frame_of_samples_alone_commits_nothing(plane: Any, worker: Any) -> None:
    shell = plane.service.shell
    until(lambda: plane.do(lambda: not shell._outbox), "the commits before")
    before = plane.do(lambda: shell._committing)
    worker.say(Sampled(sample=SAMPLE))
    until(lambda: workers(plane)[0].sample == SAMPLE, "the sample")
    assert plane.do(lambda: (shell._committing, len(shell._decided), len(shell._outbox))) == (before, 0, 0)


# ---------------------------------------------------------------- many at once


def test_a_job_on_two_machines_ends_as_a_whole_and_is_kept_so(plane: Any, worker: Any, new_worker: Any) -> None:
    other = new_worker("w2", name="beta")
    spec = {"command": {"argv": ["train"]}, "requirements": {"nodes": 2}}
    job = plane.request("POST", "/v1/jobs", json={"key": "k", "spec": spec}).json()
    assert (job["state"], job["tasks"]) == ("assigned", {"assigned": 2})
    assigns = {each: each.assigned() for each in (worker, other)}
    assert {assign.index for assign in assigns.values()} == {0, 1}
    assert {assign.nodes for assign in assigns.values()} <= {("alpha", "beta"), ("beta", "alpha")}
    for each, assign in assigns.items():
        each.begin(assign.attempt)
    worker.finish(assigns[worker].attempt, 0, State.FAILED)
    assert other.until(CancelAttempt).attempt == assigns[other].attempt
    other.finish(assigns[other].attempt, 0, State.CANCELLED)
    over = plane.request("GET", f"/v1/jobs/{job['id']}?wait=30").json()
    assert (over["state"], over["tasks"]) == ("failed", {"cancelled": 1, "failed": 1})
    tasks = plane.request("GET", f"/v1/jobs/{job['id']}/tasks").json()
    assert sorted(task["state"] for task in tasks) == ["cancelled", "failed"]
    [problem] = [task["outcome"]["problem"] for task in tasks if task["state"] == "cancelled"]
    assert problem == f"node {assigns[worker].index} (alpha) failed"
