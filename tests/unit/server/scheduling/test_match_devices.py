"""Constraints on devices: each in words, with numbers on both sides, and the step that mends it."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.types import Device, Reason, Requirements
from gpulayer_server.scheduling.match import fits, unmet, usable
from tests.support.boxes import A100_40GB, GB, T4, Box, box, card, cards, torch

NVML = "NVIDIA devices present, NVML failed: Driver Not Loaded"


def asks(devices: int = 1, **asked: Any) -> Requirements:
    return Requirements(accelerator="cuda", devices=devices, **asked)


def only(requirements: Requirements, worker: Box) -> Reason:
    """The one reason."""
    assert not fits(requirements, worker)
    [reason] = unmet(requirements, worker)
    assert (reason.worker, reason.temporary) == (worker.name, False)
    return reason


def t4(index: int = 0, **changed: Any) -> Device:
    return card(index, **{"name": "Tesla T4", "vram_bytes": T4, "capability": "7.5", **changed})


def a100(index: int = 0, **changed: Any) -> Device:
    about = {"name": "NVIDIA A100-SXM4-40GB", "vram_bytes": A100_40GB, "capability": "8.0", **changed}
    return card(index, **about)


# ---------------------------------------------------------------- none, or too few


@pytest.mark.parametrize(
    ("worker", "has"),
    [
        (box(), "CPU only"),
        (box(Device(uuid="mps", kind="mps", index=0, name="Apple M3 Max")), "only mps M3 Max"),
        (
            box(*[Device(uuid=str(i), kind="rocm", index=i, name="AMD Instinct MI300X") for i in range(8)]),
            "only 8 × rocm MI300X",
        ),
        (box(problems=(NVML,)), NVML),
        (box(Device(uuid="mps", kind="mps", index=0), problems=("amdsmi failed: x",)), "only mps; amdsmi failed: x"),
    ],
)
def test_a_machine_without_such_a_device_says_what_it_has(worker: Box, has: str):
    reason = only(asks(), worker)
    assert (reason.code, reason.wanted) == ("device_kind", "cuda")
    assert reason.text == f"needs 1 usable cuda device, worker has 0 ({has})"


def test_a_machine_without_such_a_device_says_what_to_do():
    assert only(asks(), box()).remedy == (
        "add a machine with a cuda device: `gpulayer up` prints the line with which a machine joins"
    )
    assert only(asks(), box(problems=(NVML,))).remedy == f"mend the driver on gpu-box-1 ({NVML})"


def test_too_few_devices_give_both_numbers():
    reason = only(asks(2), box(card()))
    assert reason.text == "needs 2 usable cuda devices, worker has 1"
    assert (reason.code, reason.wanted, reason.found) == ("device_count", 2, 1)
    assert reason.remedy == "ask for 1 cuda device, which gpu-box-1 has"


def test_a_sick_device_takes_no_work_and_says_why():
    reason = only(asks(2), box(card(0), card(1, sick="Xid 79: fallen off the bus")))
    assert reason.code == "device_count"
    assert reason.text == (
        "needs 2 usable cuda devices, worker has 1 (cuda:1 RTX 4090 takes no work: Xid 79: fallen off the bus)"
    )
    assert reason.remedy == "mend cuda:1 on gpu-box-1 (Xid 79: fallen off the bus)"
    assert fits(asks(1), box(card(0), card(1, sick="Xid 79: fallen off the bus")))


def test_of_a_sick_device_its_size_is_told_too():
    reasons = unmet(asks(min_vram_bytes=40 * GB), box(card(sick="ECC")))
    assert [reason.text for reason in reasons] == [
        "needs 1 usable cuda device, worker has 0 (cuda:0 RTX 4090 takes no work: ECC)",
        "needs 40 GB, the largest has 24 GB (RTX 4090)",
    ]


def test_a_failure_is_told_where_some_devices_are_there():
    assert only(asks(2), box(card(), problems=("GPU-7: no answer",))).text == (
        "needs 2 usable cuda devices, worker has 1 (GPU-7: no answer)"
    )


# ---------------------------------------------------------------- memory


def test_memory_that_no_device_has():
    reason = only(asks(min_vram_bytes=40 * GB), box(t4(0), card(1)))
    assert reason.text == "needs 40 GB, the largest has 24 GB (RTX 4090)"
    assert (reason.code, reason.wanted, reason.found) == ("vram", 40 * GB, card().vram_bytes)
    assert reason.remedy == "ask for 24 GB, which gpu-box-1 has"


def test_memory_that_too_few_devices_have():
    assert only(asks(2, min_vram_bytes=40 * GB), box(card(0), a100(1))).text == (
        "needs 40 GB on each of 2 devices, 1 has it, the next has 24 GB (RTX 4090)"
    )
    assert only(asks(2, min_vram_bytes=40 * GB), box(*cards(2))).text == (
        "needs 40 GB on each of 2 devices, the largest has 24 GB (RTX 4090)"
    )


@pytest.mark.parametrize(("device", "gb"), [(card(), 24), (a100(), 40), (t4(), 16)])
def test_a_card_is_one_of_the_size_that_it_is_sold_with(device: Device, gb: int):
    assert unmet(asks(min_vram_bytes=gb * GB), box(device)) == []
    assert fits(asks(min_vram_bytes=gb * GB), box(device))
    assert only(asks(min_vram_bytes=(gb + 4) * GB), box(device)).text.startswith(
        f"needs {gb + 4} GB, the largest has {gb} GB"
    )


def test_a_card_of_11_gb_is_none_of_12():
    worker = box(card(name="NVIDIA GeForce GTX 1080 Ti", vram_bytes=11_178 * 2**20))
    assert only(asks(min_vram_bytes=12 * GB), worker).text == "needs 12 GB, the largest has 11 GB (GTX 1080 Ti)"


def test_unknown_memory_is_not_enough_and_the_machines_own_counts_where_it_is_shared():
    reason = only(asks(min_vram_bytes=GB), box(card(vram_bytes=None)))
    assert (reason.text, reason.found) == ("needs 1 GB, the memory of cuda:0 RTX 4090 is not known", None)
    assert fits(asks(min_vram_bytes=48 * GB), box(card(vram_bytes=None, unified=True)))
    assert not fits(asks(min_vram_bytes=80 * GB), box(card(vram_bytes=None, unified=True)))


def test_of_a_sick_card_that_would_fit_the_remedy_speaks():
    reason = only(asks(min_vram_bytes=40 * GB), box(card(0), a100(1, sick="Xid 79")))
    assert reason.text == "needs 40 GB, the largest has 24 GB (RTX 4090)"
    assert reason.remedy == "mend cuda:1 on gpu-box-1 (Xid 79)"


def test_a_share_has_to_fit_to_the_byte():
    assert fits(asks(vram_share_bytes=T4), box(t4()))
    reason = only(asks(vram_share_bytes=16 * GB), box(t4()))
    assert reason.text == "needs a share of 16 GB of one device, the largest has 15.8 GB (T4)"
    assert (reason.code, reason.wanted, reason.found) == ("vram_share", 16 * GB, T4)
    assert reason.remedy == "ask for a share of 15.8 GB, which gpu-box-1 has"
    assert only(asks(vram_share_bytes=GB), box(card(vram_bytes=None))).text == (
        "needs a share of 1 GB of one device, the memory of cuda:0 RTX 4090 is not known"
    )


# ---------------------------------------------------------------- names, capabilities, drivers


@pytest.mark.parametrize("glob", ["A100*", "a100-sxm4-*", "NVIDIA A100*", "*40gb", "A100-SXM4-40GB"])
def test_a_name_fits_from_any_word_on_and_in_any_case(glob: str):
    assert fits(asks(device_names=(glob,)), box(a100()))
    assert fits(asks(device_names=("H100*", glob)), box(a100()))


def test_names_that_do_not_fit():
    reason = only(asks(device_names=("A100*", "H100*")), box(card(), t4(1)))
    assert reason.text == "needs a device named 'A100*' or 'H100*', worker has RTX 4090, T4"
    assert (reason.code, reason.wanted, reason.found) == ("device_name", "A100*|H100*", "RTX 4090, T4")
    assert reason.remedy == "ask for RTX 4090, T4, which gpu-box-1 has"
    assert only(asks(2, device_names=("A100*",)), box(a100(), t4(1), t4(2))).text == (
        "needs 2 devices named 'A100*', worker has 1 of A100-SXM4-40GB, 2 × T4"
    )
    assert not fits(asks(device_names=("100",)), box(a100()))


def test_compute_capability():
    assert fits(asks(min_capability="8"), box(a100()))
    assert fits(asks(min_capability="8.0"), box(card()))
    assert fits(asks(min_capability="9.0"), box(card(capability="10.0")))
    reason = only(asks(min_capability="8.0"), box(t4()))
    assert reason.text == "needs compute capability 8.0, the highest is 7.5 (T4)"
    assert (reason.code, reason.wanted, reason.found) == ("capability", "8.0", "7.5")
    assert only(asks(min_capability="8.0"), box(card(capability=""))).text == (
        "needs compute capability 8.0, that of cuda:0 RTX 4090 is not known"
    )
    assert only(asks(2, min_capability="8.0"), box(a100(), t4(1))).text == (
        "needs compute capability 8.0, 1 of 2 has it, the next has 7.5 (T4)"
    )


def test_driver():
    assert fits(asks(min_driver="535.104"), box(card()))
    reason = only(asks(min_driver="550"), box(card()))
    assert reason.text == "needs driver 550, driver 535.104.05 is installed"
    assert (reason.code, reason.wanted, reason.found) == ("driver", "550", "535.104.05")
    assert reason.remedy == "install driver 550 or newer on gpu-box-1"
    assert only(asks(min_driver="550"), box(card(driver=""))).text == (
        "needs driver 550, that of cuda:0 RTX 4090 is not known"
    )


# ---------------------------------------------------------------- several at once


def test_two_halves_are_no_whole():
    large, new = card(0, vram_bytes=48 * GB, capability="7.0"), card(1)
    reason = only(asks(min_vram_bytes=40 * GB, min_capability="8.0"), box(large, new))
    assert reason.code == "device_count"
    assert reason.text == (
        "needs 1 usable cuda device with 40 GB and compute capability 8.0, worker has 0 with all of that"
    )
    assert (reason.wanted, reason.found) == (1, 0)


def test_every_constraint_is_told_in_order():
    asked = asks(2, min_vram_bytes=80 * GB, device_names=("H100*",), min_capability="9.0", min_driver="570")
    assert [reason.code for reason in unmet(asked, box(card()))] == [
        "device_count",
        "device_name",
        "vram",
        "capability",
        "driver",
    ]


def test_a_framework_that_does_not_work_on_one_of_two_devices():
    works = torch(devices=("GPU-0",), problems={"cuda": "out of memory"})
    worker = box(*cards(2), frameworks=(works,))
    assert fits(asks(1, frameworks=("torch",)), worker)
    reason = only(asks(2, frameworks=("torch",)), worker)
    assert reason.text == "torch works on 1 of 2 cuda devices of this worker, not on cuda:1: out of memory"
    assert (reason.code, reason.wanted, reason.found) == ("framework_device", 2, 1)
    assert reason.remedy == "mend cuda:1 on gpu-box-1 (out of memory)"


def test_a_device_is_usable_where_it_fits_alone():
    worker = box(t4(0), a100(1), a100(2, sick="ECC"), frameworks=(torch(devices=("GPU-0", "GPU-1")),))
    asked = asks(min_vram_bytes=40 * GB, frameworks=("torch",))
    assert [usable(asked, device, worker.inventory) for device in worker.inventory.devices] == [False, True, False]
