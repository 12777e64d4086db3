"""What holds of all machines and all requirements: reasons are complete, and the quick forms agree with them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from gpulayer.protocol.types import Device, DeviceSample, Framework, Inventory, Process, Requirements, Sample
from gpulayer_server.scheduling.advice import nearest
from gpulayer_server.scheduling.asked import problem_of
from gpulayer_server.scheduling.match import busy, explain, fits, free_devices, has_room, shape, unmet, usable
from tests.support.boxes import GB, Box, box
from tests.support.mending import PYTHONS, VERSIONS, mend

KINDS = ("cuda", "rocm", "mps")
NAMES = ("NVIDIA A100-SXM4-40GB", "Tesla T4", "NVIDIA GeForce RTX 4090", "")
SIZES = (8 * GB, 16 * GB, 24 * GB, 40 * GB)
FRAMEWORKS = ("torch", "jax", "mlx")
UUIDS = tuple(f"U{n}" for n in range(4))

some = st.sampled_from


def subsets(values: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(some(values), unique=True, max_size=len(values)).map(tuple)


@st.composite
def devices(draw: st.DrawFn) -> tuple[Device, ...]:
    kinds = draw(st.lists(some(("cuda", "cuda", "rocm", "mps")), max_size=4))
    return tuple(
        Device(
            uuid=UUIDS[n],
            kind=kind,
            index=n,
            name=draw(some(NAMES)),
            vram_bytes=draw(some((None, *SIZES))),
            unified=draw(some((False, False, True))),
            capability=draw(some(("", "7.5", "8.0", "9.0"))),
            driver=draw(some(("", "535.104.05", "550.1", "580"))),
            sick=draw(some(("", "", "", "Xid 79"))),
        )
        for n, kind in enumerate(kinds)
    )


framework = st.builds(
    Framework,
    name=some(FRAMEWORKS),
    version=some(("", *VERSIONS, "2.13.0+cu126", "garbage")),
    built_for=some(("", "cpu", "12.6", "13.0")),
    works=subsets(("cpu", *KINDS)),
    devices=subsets(UUIDS),
    problems=some(({}, {"cuda": "out of memory"}, {"": "ImportError: no"})),
)
inventories = st.builds(
    Inventory,
    host=st.just("h"),
    os=some(("linux", "darwin")),
    arch=some(("x86_64", "aarch64", "arm64")),
    cpu_cores=some((2, 8)),
    ram_bytes=some((16 * GB, 64 * GB)),
    python=some((*PYTHONS, "")),
    devices=devices(),
    problems=some(((), (), ("NVML failed",))),
    frameworks=st.lists(framework, max_size=3, unique_by=lambda each: each.name).map(tuple),
    probing=subsets(("jax", "mlx")).map(lambda names: names[:1]),
    cuda=some(("", "12.2", "13.0")),
    labels=some(({}, {"team": "vision"}, {"team": "audio", "rack": "1"})),
)


@st.composite
def boxes(draw: st.DrawFn, name: str = "") -> Box:
    machine = draw(inventories)
    held = draw(subsets(UUIDS))
    shared = {
        device.uuid: draw(some((0, 4 * GB, 20 * GB)))
        for device in machine.devices
        if device.uuid in held and not device.sick and draw(st.booleans())
    }
    process = st.builds(Process, pid=st.just(7), name=st.just("x"), bytes=some((None, 1 * GB, 30 * GB)))
    sample = Sample(
        ram_free_bytes=draw(some((None, 1 * GB, 60 * GB))),
        devices=tuple(
            DeviceSample(
                uuid=uuid,
                free_bytes=draw(some((None, 0, 30 * GB))),
                used_bytes=draw(some((None, 1 * GB))),
                foreign=tuple(draw(st.lists(process, max_size=3))),
            )
            for uuid in draw(subsets(UUIDS))
        ),
    )
    slots = draw(some((0, 1, 1, 2, 2, 2)))
    return replace(
        box(name=name or draw(some(("a", "b", "c")))),
        inventory=machine,
        slots=slots,
        slots_free=draw(st.integers(0, slots)),
        devices_free=tuple(device for device in machine.devices if device.uuid not in held and not device.sick),
        reachable=draw(some((True, True, True, False))),
        full=draw(some(("", "", "", "disk low"))),
        vram_left=shared,
        ram_left_bytes=draw(some((machine.ram_bytes, 1 * GB))),
        cpu_left=draw(some((float(machine.cpu_cores), 0.5))),
        sample=draw(some((None, sample))),
    )


@st.composite
def requirements(draw: st.DrawFn) -> Requirements:
    kind = draw(some((None, "cpu", "cuda", "cuda", "cuda", "rocm", "mps")))
    of_devices = kind not in (None, "cpu")
    share = draw(some((None, None, 8 * GB, 30 * GB))) if of_devices else None
    return Requirements(
        accelerator=kind,
        devices=draw(st.integers(0, 3)) if of_devices and share is None else 0,
        vram_share_bytes=share,
        min_vram_bytes=draw(some((None, *SIZES))) if of_devices else None,
        device_names=draw(some(((), (), ("A100*",), ("*4090", "t4")))) if of_devices else (),
        min_capability=draw(some(("", "", "8.0", "9"))) if of_devices else "",
        min_driver=draw(some(("", "", "550"))) if of_devices else "",
        worker=draw(some((None, None, "a"))),
        frameworks=draw(some(((), (), ("torch",), ("torch>=2.4", "jax"), ("mlx<3", "torch>=3")))),
        python=draw(some(("", "", ">=3.12", "==3.11.*"))),
        ram_bytes=draw(some((None, None, 32 * GB, 128 * GB))),
        cpu_cores=draw(some((None, None, 0.7, 4.0, 12.5))),
        os=draw(some(("", "", "linux", "macos"))),
        arch=draw(some(("", "", "arm64", "aarch64"))),
        labels=draw(some(((), (), ("team=vision",), ("team=vision", "rack=1")))),
    )


@settings(deadline=None)
@given(requirements(), boxes())
def test_fits_is_that_nothing_is_unmet(asked: Requirements, worker: Box):
    assert problem_of(asked) is None
    reasons = unmet(asked, worker)
    assert fits(asked, worker) == (not reasons)
    assert not any(reason.temporary for reason in reasons)
    assert len({(reason.code, reason.text) for reason in reasons}) == len(reasons)


@settings(deadline=None)
@given(requirements(), boxes())
def test_has_room_is_that_nothing_keeps_it_busy(asked: Requirements, worker: Box):
    reasons = busy(asked, worker)
    assert (has_room(asked, worker) and worker.reachable) == (not reasons)
    assert all(reason.temporary for reason in reasons)


@settings(deadline=None)
@given(requirements(), boxes())
def test_mending_exactly_what_is_told_makes_it_fit(asked: Requirements, worker: Box):
    reasons = unmet(asked, worker)
    mended = mend(worker, asked, reasons)
    assert unmet(asked, mended) == []
    assert fits(asked, mended)


@settings(deadline=None)
@given(requirements(), boxes())
def test_leaving_any_reason_unmended_does_not(asked: Requirements, worker: Box):
    reasons = unmet(asked, worker)
    # more memory mends all that is about memory, and a device that is all that is asked for mends all
    assume(len({"ram", "vram", "vram_share"} & {reason.code for reason in reasons}) < 2)
    assume(not any(reason.text.endswith("with all of that") for reason in reasons))
    for left_out in reasons:
        others = [reason for reason in reasons if reason is not left_out]
        assert not fits(asked, mend(worker, asked, others))


@settings(max_examples=50, deadline=None)
@given(requirements(), st.tuples(boxes("a"), boxes("b"), boxes("c")), some((1, 1, 2, 3)))
def test_every_worker_that_does_not_take_it_has_a_reason(asked: Requirements, fleet: tuple[Box, ...], nodes: int):
    asked = changed(asked, nodes=1 if asked.worker else nodes)
    reasons = explain(asked, fleet)
    told = {reason.worker for reason in reasons}
    ready = [each for each in fleet if fits(asked, each) and each.reachable and has_room(asked, each)]
    for each in fleet:
        if each not in ready or len(ready) < asked.nodes:
            assert each.name in told
    if sum(fits(asked, each) for each in fleet) < asked.nodes:
        assert all(
            any(r.worker == each.name and not r.temporary for r in reasons) for each in fleet if each not in ready
        )
    advice = nearest(asked, fleet, reasons)
    assert "\n" not in advice
    if len(ready) >= asked.nodes:
        assert (told & {each.name for each in ready}, advice) == (set(), "")


@settings(deadline=None)
@given(requirements(), boxes(), st.permutations(range(4)))
def test_machines_of_one_shape_have_the_same_unmet(asked: Requirements, worker: Box, order: list[int]):
    """Another machine: other UUIDs, in another order, other words for what ails a device."""
    machine = worker.inventory
    renamed = [
        changed(device, uuid=f"other-{device.uuid}", index=9, sick=device.sick and "ECC") for device in machine.devices
    ]
    moved = tuple(renamed[at] for at in order if at < len(renamed))
    frameworks = tuple(
        changed(each, devices=tuple(f"other-{uuid}" for uuid in each.devices), problems={})
        for each in machine.frameworks
    )
    other = replace(worker, inventory=changed(machine, devices=moved, frameworks=frameworks, host="other"))
    assert shape(other) == shape(worker)
    assert hash(shape(other)) == hash(shape(worker))
    assert [reason.code for reason in unmet(asked, other)] == [reason.code for reason in unmet(asked, worker)]


@settings(deadline=None)
@given(requirements(), boxes(), inventories, subsets(Inventory.__struct_fields__), st.integers(0, 2))
def test_machines_with_other_unmet_are_of_other_shapes(
    asked: Requirements, worker: Box, machine: Inventory, fields: tuple[str, ...], slots: int
):
    """Another machine: the same one but for some fields."""
    mixed = changed(worker.inventory, **{name: getattr(machine, name) for name in fields})
    other = replace(worker, inventory=mixed, slots=slots)
    if [reason.code for reason in unmet(asked, other)] != [reason.code for reason in unmet(asked, worker)]:
        assert shape(other) != shape(worker)


@settings(deadline=None)
@given(requirements(), boxes())
def test_free_devices_are_usable_and_nobody_elses(asked: Requirements, worker: Box):
    free = free_devices(asked, worker)
    whole = asked.vram_share_bytes is None
    for device in free:
        assert usable(asked, device, worker.inventory)
        assert device in worker.devices_free or (not whole and device.uuid in worker.vram_left)
    if asked.device_kind is not None and has_room(asked, worker):
        assert len(free) >= asked.device_count
