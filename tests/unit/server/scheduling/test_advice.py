"""The nearest miss: the machine with the least to mend, and the step that mends it."""

from __future__ import annotations

from typing import Any

from gpulayer.protocol.types import Device, Requirements, Sample
from gpulayer_server.scheduling.advice import nearest
from gpulayer_server.scheduling.match import explain
from tests.support.boxes import GB, Box, alice, box, card, cards, torch, used

MPS = Device(uuid="mps", kind="mps", index=0, name="Apple M3 Max", unified=True)


def advice(requirements: Requirements, *boxes: Box) -> str:
    return nearest(requirements, boxes, explain(requirements, boxes))


def asks(devices: int = 1, **asked: Any) -> Requirements:
    return Requirements(accelerator="cuda", devices=devices, **asked)


def test_a_package_is_nearer_than_a_card():
    asked = asks(frameworks=("jax",), min_vram_bytes=20 * GB)
    boxes = (box(name="laptop"), box(card(vram_bytes=8 * GB), name="small"), box(card(), name="gpu-box-2", cuda="13.0"))
    assert advice(asked, *boxes) == "install jax[cuda13] on gpu-box-2"


def test_all_that_is_to_mend_stands_in_one_line():
    assert advice(asks(frameworks=("jax",), min_driver="570"), box(card())) == (
        "install driver 570 or newer on gpu-box-1; install jax[cuda12] on gpu-box-1"
    )


def test_a_label_is_nearer_than_a_package():
    asked = Requirements(labels=("team=vision",), frameworks=("torch",))
    boxes = (box(name="a", labels={"team": "vision"}), box(name="b", frameworks=(torch(),)))
    assert advice(asked, *boxes) == "start the worker of b with --label team=vision"


def test_of_cards_that_are_too_small_the_largest_is_nearest():
    boxes = (box(card(vram_bytes=16 * GB), name="a"), box(card(), name="b"), box(name="c"))
    assert advice(asks(min_vram_bytes=40 * GB), *boxes) == "ask for 24 GB, which b has"


def test_where_nobody_has_such_a_device_it_says_how_a_machine_is_added():
    assert advice(asks(), box(MPS, name="mac-studio"), box(name="laptop")) == (
        "no worker has a cuda device; "
        "add a machine with a cuda device: `gpulayer up` prints the line with which a machine joins"
    )


def test_a_broken_driver_is_nearer_than_a_new_machine():
    broken = box(name="gpu-box-2", problems=("NVIDIA devices present, NVML failed: Driver Not Loaded",))
    assert advice(asks(), box(name="laptop"), broken) == (
        "mend the driver on gpu-box-2 (NVIDIA devices present, NVML failed: Driver Not Loaded)"
    )


def test_of_devices_that_nobody_could_look_at_no_figures_are_promised():
    broken = box(name="gpu-box-2", problems=("NVIDIA devices present, NVML failed: Driver Not Loaded",))
    assert advice(asks(min_vram_bytes=100 * GB), box(card(), name="b"), broken) == "ask for 24 GB, which b has"
    assert advice(asks(2), box(card(), name="b"), broken) == "ask for 1 cuda device, which b has"
    mend = "mend the driver on gpu-box-2 (NVIDIA devices present, NVML failed: Driver Not Loaded)"
    assert advice(asks(2), box(name="laptop"), broken).endswith(mend)  # it is still nearer than a new machine


def test_a_sick_device_is_nearer_than_another_machine():
    boxes = (box(name="laptop"), box(card(sick="Xid 79"), name="gpu-box-2"))
    assert advice(asks(), *boxes) == "mend cuda:0 on gpu-box-2 (Xid 79)"


def test_a_typing_slip_gives_the_nearest_name():
    assert advice(Requirements(worker="boxx"), box(name="boxb"), box(name="zebra")) == "ask for worker boxb"
    assert advice(Requirements(worker="q"), box(name="boxb")) == ""


def test_of_a_worker_that_is_asked_for_only_its_own_step_is_told():
    asked = Requirements(worker="b", frameworks=("torch",))
    boxes = (box(name="a", frameworks=(torch(),)), box(name="b", labels={"x": "y"}))
    assert advice(asked, *boxes) == "install torch on b"


def test_without_a_worker_it_says_how_one_comes():
    assert advice(Requirements()) == "add a machine: `gpulayer up` prints the line with which a machine joins"


def test_a_stranger_that_holds_least_is_nearest():
    boxes = (
        box(card(), name="a", sample=Sample(devices=(used(0, 0, alice(25 * GB)),))),
        box(card(), name="b", sample=Sample(devices=(used(0, 13_800_000_000, alice(11 * GB)),))),
        box(name="laptop"),
    )
    assert advice(asks(min_vram_bytes=20 * GB), *boxes) == "free 6.2 GB on b: python pid 4121 by alice holds it"


def test_where_waiting_is_all_there_is_to_do_nothing_is_told():
    assert advice(asks(), box(card(), free=()), box(name="laptop")) == ""
    stranger = box(card(), free=(), slots_free=0, sample=Sample(devices=(used(0, 0, alice(25 * GB)),)))
    assert advice(asks(), stranger) == ""


def test_where_one_can_take_it_nothing_is_told():
    stranger = box(card(), name="a", sample=Sample(devices=(used(0, 0, alice(25 * GB)),)))
    assert advice(asks(), stranger, box(card(), name="b")) == ""


def test_of_many_machines_as_many_are_mended_as_are_lacking():
    asked = asks(nodes=2, frameworks=("torch",))
    able = box(card(), name="a", frameworks=(torch(),))
    assert advice(asked, able, box(card(), name="b"), box(name="c")) == "install torch with CUDA 12.x on b"
    assert advice(asked, able, box(name="c")).startswith("add 1 more machine that could take it")
    assert advice(asks(2, nodes=2), *[box(*cards(2), name=name) for name in "ab"]) == ""


def test_of_machines_too_far_apart_the_policy_is_told():
    asked = Requirements(nodes=2, locality="require")
    assert advice(asked, box(name="a", zone="x"), box(name="b", zone="y")) == (
        "ask for another group locality than require"
    )


def test_a_machine_for_which_no_step_is_known_is_not_the_nearest():
    boxes = (box(card(vram_bytes=None), name="a"), box(card(), name="b", os="darwin"))
    assert advice(asks(min_vram_bytes=20 * GB, os="linux"), *boxes) == (
        "add a machine with linux, or leave out the operating system"
    )
