"""What keeps a machine that could take a job from taking it now: each in words, with numbers, and who is in the way."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.types import DeviceSample, Process, Reason, Requirements, Sample
from gpulayer_server.scheduling.match import busy, free_devices, has_room, unmet
from tests.support.boxes import GB, RTX_4090, Box, alice, box, card, cards, used


def asks(devices: int = 1, **asked: Any) -> Requirements:
    return Requirements(accelerator="cuda", devices=devices, **asked)


def sampled(*devices: DeviceSample, **changed: Any) -> Sample:
    return Sample(devices=devices, **changed)


def only(requirements: Requirements, worker: Box, who: dict[str, str] | None = None) -> Reason:
    """The one reason."""
    assert unmet(requirements, worker) == []
    assert not has_room(requirements, worker)
    [reason] = busy(requirements, worker, who or {})
    assert (reason.worker, reason.temporary) == (worker.name, True)
    return reason


def test_slots():
    reason = only(Requirements(), box(slots=1, slots_free=0))
    assert (reason.code, reason.text, reason.wanted, reason.found) == ("slots", "all 1 slot busy", 1, 0)
    assert only(Requirements(), box(slots_free=0)).text == "all 2 slots busy"


def test_devices_that_are_held_and_by_whom():
    worker = box(*cards(2), free=cards(2)[1:])
    reason = only(asks(2), worker, {"GPU-0": "train.py by ana, 14 min"})
    assert reason.text == "needs 2 free cuda devices, 1 free now (cuda:0: train.py by ana, 14 min)"
    assert (reason.code, reason.wanted, reason.found) == ("devices_busy", 2, 1)
    assert only(asks(2), worker).text == "needs 2 free cuda devices, 1 free now"
    assert has_room(asks(1), worker)


def test_the_devices_of_one_holder_are_told_together():
    ana, ben = "train.py by ana, 14 min", "sweep by ben, 3 min"
    reason = only(asks(), box(*cards(3), free=()), {"GPU-0": ana, "GPU-1": ben, "GPU-2": ana})
    assert reason.text == f"needs 1 free cuda device, 0 free now (cuda:0,2: {ana}; cuda:1: {ben})"


def test_free_devices_that_do_not_fit_do_not_count():
    small = card(0, vram_bytes=8 * GB)
    worker = box(small, card(1), free=(small,))
    assert only(asks(min_vram_bytes=24 * GB), worker).text == "needs 1 free cuda device, 0 free now"
    assert free_devices(asks(), worker) == [small]


# ---------------------------------------------------------------- somebody else's processes


def test_a_foreign_process_fills_the_card():
    worker = box(card(), sample=sampled(used(0, 800_000_000, alice(22 * GB))))
    reason = only(asks(), worker)
    assert reason.text == "0.8 GB of 24 GB free on cuda:0: python pid 4121 by alice holds 22 GB"
    assert (reason.code, reason.found) == ("foreign", 800_000_000)
    assert reason.wanted == RTX_4090 // 2
    assert reason.remedy == "free 12.1 GB on gpu-box-1: python pid 4121 by alice holds it"
    assert free_devices(asks(), worker) == []


def test_what_has_to_be_freed_is_what_the_job_asks_for():
    worker = box(card(), sample=sampled(used(0, 13_800_000_000, alice(11 * GB))))
    assert has_room(asks(), worker)
    assert only(asks(min_vram_bytes=20 * GB), worker).remedy == (
        "free 6.2 GB on gpu-box-1: python pid 4121 by alice holds it"
    )


def test_a_screen_on_the_card_is_in_nobodys_way():
    screen = Process(pid=900, name="Xorg", user="root", bytes=400_000_000)
    worker = box(card(), sample=sampled(used(0, 24_600_000_000, screen)))
    assert has_room(asks(min_vram_bytes=24 * GB), worker)
    assert busy(asks(min_vram_bytes=24 * GB), worker) == []


def test_another_card_is_taken_then():
    worker = box(*cards(2), sample=sampled(used(0, 0, alice(25 * GB))))
    assert [device.uuid for device in free_devices(asks(), worker)] == ["GPU-1"]
    assert has_room(asks(), worker)
    assert [reason.code for reason in busy(asks(2), worker)] == ["foreign"]


@pytest.mark.parametrize(
    ("processes", "words", "names"),
    [
        (
            (Process(pid=7), alice(22 * GB)),
            "python pid 4121 by alice holds 22 GB, a process pid 7 is on it",
            "python pid 4121 by alice and a process pid 7 hold it",
        ),
        (
            (alice(9 * GB), Process(pid=8, name="a", bytes=8 * GB), Process(pid=9, name="b", bytes=GB)),
            "python pid 4121 by alice holds 9 GB, a pid 8 holds 8 GB and 1 more",
            "python pid 4121 by alice and a pid 8 and 1 more hold it",
        ),
    ],
)
def test_many_processes_are_told_shortly(processes: tuple[Process, ...], words: str, names: str):
    reason = only(asks(), box(card(), sample=sampled(used(0, 0, *processes))))
    assert reason.text == f"0 GB of 24 GB free on cuda:0: {words}"
    assert reason.remedy.endswith(names)


def test_where_free_memory_was_not_measured_it_is_what_is_not_used():
    by_use = DeviceSample(uuid="GPU-0", used_bytes=24 * GB, foreign=(alice(None),))
    assert only(asks(), box(card(), sample=sampled(by_use))).found == RTX_4090 - 24 * GB
    by_process = DeviceSample(uuid="GPU-0", foreign=(alice(20 * GB),))
    assert only(asks(), box(card(), sample=sampled(by_process))).found == RTX_4090 - 20 * GB
    nothing = DeviceSample(uuid="GPU-0", foreign=(alice(None),))
    assert has_room(asks(), box(card(vram_bytes=None), sample=sampled(nothing)))


# ---------------------------------------------------------------- shares


def test_a_share_fits_beside_others_on_one_card():
    worker = box(*cards(2), free=(), vram_left={"GPU-1": 9 * GB})
    assert has_room(asks(vram_share_bytes=9 * GB), worker)
    assert [device.uuid for device in free_devices(asks(vram_share_bytes=9 * GB), worker)] == ["GPU-1"]
    assert not has_room(asks(), worker)


def test_a_share_that_is_left_nowhere_says_where_most_is():
    worker = box(*cards(2), free=(), vram_left={"GPU-0": 3_100_000_000, "GPU-1": GB})
    reason = only(asks(vram_share_bytes=8 * GB), worker, {"GPU-0": "train.py by ana, 14 min"})
    assert reason.text == "needs a share of 8 GB, 3.1 GB left on cuda:0 (cuda:0: train.py by ana, 14 min)"
    assert (reason.code, reason.wanted, reason.found) == ("vram_busy", 8 * GB, 3_100_000_000)


def test_a_share_of_devices_that_others_have_whole():
    reason = only(asks(vram_share_bytes=8 * GB), box(card(), free=()), {"GPU-0": "train.py by ana, 14 min"})
    assert reason.text == (
        "needs a share of 8 GB of a cuda device, all are taken whole (cuda:0: train.py by ana, 14 min)"
    )
    assert reason.code == "devices_busy"


def test_a_share_that_a_stranger_holds():
    reason = only(asks(vram_share_bytes=8 * GB), box(card(), sample=sampled(used(0, 3 * GB, alice(22 * GB)))))
    assert reason.text == "3 GB of 24 GB free on cuda:0: python pid 4121 by alice holds 22 GB"
    assert (reason.code, reason.remedy) == ("foreign", "free 5 GB on gpu-box-1: python pid 4121 by alice holds it")
    shared = box(card(), vram_left={"GPU-0": 12 * GB}, sample=sampled(used(0, 20 * GB, alice(5 * GB))))
    assert not has_room(asks(vram_share_bytes=8 * GB), shared)
    assert has_room(asks(vram_share_bytes=7 * GB), shared)


def test_a_share_beside_a_stranger_of_whom_it_is_not_known_what_it_holds():
    worker = box(card(), sample=sampled(used(0, 3 * GB, alice(None))))
    assert has_room(asks(vram_share_bytes=3 * GB), worker)
    reason = only(asks(vram_share_bytes=8 * GB), worker)
    assert reason.text == "3 GB of 24 GB free on cuda:0: python pid 4121 by alice is on it"
    assert reason.remedy == "free 5 GB on gpu-box-1: python pid 4121 by alice holds it"


# ---------------------------------------------------------------- memory and cores


def test_memory_that_others_declared():
    reason = only(Requirements(ram_bytes=32 * GB), box(ram_left_bytes=12 * GB))
    assert reason.text == "needs 32 GB of memory, 12 GB of 64 GB that no other job declared"
    assert (reason.code, reason.wanted, reason.found) == ("ram_busy", 32 * GB, 12 * GB)


def test_memory_that_is_not_free_as_measured():
    worker = box(sample=sampled(ram_free_bytes=10 * GB))
    assert only(Requirements(ram_bytes=32 * GB), worker).text == "needs 32 GB of memory, 10 GB of 64 GB free now"
    assert has_room(Requirements(ram_bytes=10 * GB), worker)
    assert has_room(Requirements(), worker)


def test_what_the_system_takes_keeps_no_job_waiting():
    assert has_room(Requirements(ram_bytes=64 * GB), box(sample=sampled(ram_free_bytes=61 * GB)))


def test_cores_that_others_declared():
    reason = only(Requirements(cpu_cores=4), box(cpu_left=2.5))
    assert reason.text == "needs 4 cores, 2.5 of 16 that no other job declared"
    assert (reason.code, reason.wanted, reason.found) == ("cpu_busy", 4, 2.5)
    assert has_room(Requirements(cpu_cores=0.3), box(cpu_left=16 - 15.7))
