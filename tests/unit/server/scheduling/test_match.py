"""Who can take a job, who takes it, and every reason why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.types import Device, Inventory, Requirements, Sample
from gpulayer_server.scheduling.match import busy, choose_devices, explain, has_room, pick, soonest, unmet

ANY = Requirements()


@dataclass(frozen=True, kw_only=True)
class Box:
    """A worker."""

    id: str
    name: str
    inventory: Inventory
    slots: int
    slots_free: int
    devices_free: tuple[Device, ...]
    reachable: bool
    full: str
    room_ahead: int = 0
    vram_left: Mapping[str, int] = field(default_factory=dict[str, int])
    ram_left_bytes: int = 1
    cpu_left: float = 1.0
    sample: Sample | None = None


def gpus(name: str, count: int, kind: str = "cuda") -> tuple[Device, ...]:
    return tuple(Device(uuid=f"{name}{i}", kind=kind, index=i) for i in range(count))


def box(
    name: str = "box",
    *,
    has: int = 0,
    free: int | None = None,
    slots: int = 2,
    slots_free: int | None = None,
    reachable: bool = True,
    problems: tuple[str, ...] = (),
    full: str = "",
) -> Box:
    devices = gpus(name, has)
    return Box(
        id=f"id-{name}",
        name=name,
        inventory=Inventory(
            host=name, os="linux", arch="x", cpu_cores=1, ram_bytes=1, python="3", devices=devices, problems=problems
        ),
        slots=slots,
        slots_free=slots if slots_free is None else slots_free,
        devices_free=devices if free is None else devices[:free],
        reachable=reachable,
        full=full,
    )


def cuda(count: int = 1) -> Requirements:
    return Requirements(accelerator="cuda", devices=count)


def test_a_worker_that_fits_has_no_reason():
    assert unmet(cuda(2), box(has=2)) == []
    assert busy(cuda(2), box(has=2)) == []


def test_cpu_and_none_fit_any_worker():
    for accelerator in (None, "cpu"):
        assert unmet(Requirements(accelerator=accelerator), box()) == []


def test_a_kind_without_a_count_needs_one_device():
    [reason] = unmet(Requirements(accelerator="cuda"), box())
    assert reason.text == "needs 1 usable cuda device, worker has 0"


def test_devices_of_another_kind_do_not_count():
    assert [reason.code for reason in unmet(Requirements(accelerator="mps"), box(has=4))] == ["device_count"]


def test_every_unmet_constraint_is_told():
    reasons = unmet(Requirements(accelerator="cuda", worker="other"), box(slots=0))
    assert [reason.code for reason in reasons] == ["worker_name", "slots", "device_count"]
    assert not any(reason.temporary for reason in reasons)


def test_what_is_wrong_with_a_machine_stands_in_the_reason():
    [reason] = unmet(cuda(), box(problems=("NVML failed",)))
    assert reason.text.endswith("worker has 0 (NVML failed)")


def test_every_temporary_hindrance_is_told():
    reasons = busy(cuda(2), box(has=2, free=1, slots_free=0, reachable=False))
    assert [(reason.code, reason.temporary) for reason in reasons] == [
        ("out_of_reach", True),
        ("slots", True),
        ("devices_busy", True),
    ]


def test_pick_takes_nobody_where_nobody_can():
    assert pick(ANY, []) is None
    assert pick(ANY, [box(slots_free=0), box(reachable=False)]) is None


def test_pick_strands_as_few_devices_as_possible():
    chosen = pick(ANY, [box("gpu", has=4, slots=9), box("cpu")])
    assert chosen is not None
    assert chosen.name == "cpu"


def test_pick_takes_the_most_room_then_the_first_name():
    few, many = box("a", slots_free=1), box("b", slots_free=2)
    assert pick(ANY, [few, many]) == many
    assert pick(ANY, [box("b"), box("a")]) == box("a")
    assert pick(cuda(), [box("b", has=1), box("a", has=8, slots_free=1)]) == box("b", has=1)


def test_devices_are_taken_in_the_inventorys_order():
    mixed = (*gpus("m", 1, "mps"), *gpus("c", 3))
    assert [device.uuid for device in choose_devices(cuda(2), mixed)] == ["c0", "c1"]
    assert choose_devices(ANY, mixed) == ()


def test_explain_names_every_worker_and_the_permanent_reason_first_asked():
    reasons = explain(cuda(), [box("none", slots_free=0), box("busy", has=1, free=0)])
    assert [(reason.worker, reason.code, reason.temporary) for reason in reasons] == [
        ("none", "device_count", False),
        ("busy", "devices_busy", True),
    ]


def test_explain_without_a_worker_says_what_to_do():
    [reason] = explain(ANY, [])
    assert (reason.code, reason.temporary) == ("no_worker", True)


def test_explain_of_an_unknown_name_gives_the_nearest_ones():
    workers = [box("train-1"), box("zebra")]
    first = explain(Requirements(worker="trian-1"), workers)[0]
    assert first.text == "no worker is named 'trian-1'; did you mean train-1?"
    assert explain(Requirements(worker="q"), workers)[0].text == "no worker is named 'q'"


def test_a_worker_that_takes_no_more_says_why_and_is_passed_over():
    full = box("full", full="its disk has 0.4 GB left")
    [reason] = busy(ANY, full)
    assert (reason.code, reason.text, reason.temporary) == ("disk", "its disk has 0.4 GB left", True)
    assert pick(ANY, [full]) is None
    assert pick(ANY, [full, box("other")]) == box("other")


boxes = st.builds(
    box,
    has=st.integers(0, 2),
    free=st.none() | st.integers(0, 2),
    slots=st.integers(0, 2),
    slots_free=st.none() | st.integers(0, 2),
    reachable=st.booleans(),
    full=st.sampled_from(["", "full"]),
)


@given(boxes, st.sampled_from([ANY, cuda(), cuda(2)]))
def test_a_worker_is_taken_when_nothing_keeps_it_busy(worker: Box, requirements: Requirements):
    free = not busy(requirements, worker)
    assert (has_room(requirements, worker) and worker.reachable) == free
    assert (pick(requirements, [worker]) is worker) == (free and not unmet(requirements, worker))


def test_the_one_with_the_most_room_ahead_takes_what_no_slot_is_free_for() -> None:
    boxes = [replace(box(name, slots_free=0), room_ahead=room) for name, room in (("a", 3), ("b", 7), ("c", 0))]
    chosen = soonest(boxes)
    assert chosen is not None
    assert chosen.name == "b"


def test_nobody_takes_ahead_who_did_not_say_so_or_is_full() -> None:
    assert soonest([box("a", slots_free=0), replace(box("b", full="disk low"), room_ahead=9)]) is None
