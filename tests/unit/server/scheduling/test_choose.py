"""Which devices a job gets of those that are free, shared or beside somebody else's processes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.types import Device, Requirements
from gpulayer_server.core.machine import Claim
from gpulayer_server.scheduling.match import has_room
from gpulayer_server.scheduling.topology import choose
from tests.support.boxes import GB
from tests.support.fleets import candidate, recorded
from tests.support.linkedboxes import like_cards as cards
from tests.support.linkedboxes import linked_box as box


def indices(devices: Sequence[Device] | None) -> list[int]:
    assert devices is not None
    return [device.index for device in devices]


def take(count: int) -> Requirements:
    return Requirements(accelerator="cuda", devices=count)


def test_only_devices_that_fit_are_taken() -> None:
    devices = [*cards(2, vram_gb=24), Device(uuid="A100", kind="cuda", index=2, vram_bytes=80 * GB)]
    devices.append(Device(uuid="apple", kind="mps", index=3, unified=True))
    worker = box(devices)
    assert choose(Requirements(accelerator="cuda", min_vram_bytes=40 * GB), worker) == (devices[2],)
    assert choose(Requirements(accelerator="cuda", devices=2, min_vram_bytes=40 * GB), worker) is None
    assert choose(Requirements(accelerator="mps"), worker) == (devices[3],)
    assert choose(Requirements(), worker) == ()
    assert choose(Requirements(accelerator="rocm"), worker) is None


def test_the_smallest_device_of_the_size_that_is_told_is_taken() -> None:
    worker = candidate(recorded("mig-a100"))
    names = [device.name for device in choose(Requirements(accelerator="cuda", min_vram_bytes=8 * GB), worker) or ()]
    assert names == ["NVIDIA A100-SXM4-80GB MIG 1g.10gb"]
    names = [device.name for device in choose(Requirements(accelerator="cuda", min_vram_bytes=16 * GB), worker) or ()]
    assert names == ["NVIDIA A100-SXM4-80GB MIG 2g.20gb"]


def test_what_is_taken_or_filled_by_others_is_not_had() -> None:
    devices = cards(3)
    assert choose(take(2), box(devices, free=(1,))) is None
    assert indices(choose(take(2), box(devices, foreign={"GPU-00": 23 * GB}))) == [1, 2]
    assert choose(take(3), box(devices, foreign={"GPU-00": 23 * GB})) is None


def test_a_device_beside_somebody_else_is_taken_last() -> None:
    devices = cards(3)
    worker = box(devices, foreign={"GPU-00": GB})
    assert indices(choose(take(1), worker)) == [1]
    assert indices(choose(take(3), worker)) == [0, 1, 2]


def test_a_sick_device_is_never_taken() -> None:
    worker = candidate(recorded("sick-box"))
    assert indices(choose(take(1), worker)) == [0]
    assert choose(take(2), worker) is None
    assert choose(share(24), worker) is not None
    worker.take("a", Claim(devices=worker.inventory.devices[:1]))
    assert choose(take(1), worker) is None
    assert choose(share(1), worker) is None


@given(data=st.data())
def test_devices_are_found_exactly_where_the_matcher_says_that_there_is_room(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 6))
    some = st.lists(st.integers(0, count - 1), unique=True)
    shared = data.draw(some, label="shared")
    worker = box(
        cards(count),
        free=[at for at in data.draw(some, label="free") if at not in shared],
        vram_left={f"GPU-{at:02}": data.draw(st.integers(0, 24)) * GB for at in shared},
        foreign={f"GPU-{at:02}": data.draw(st.integers(0, 24)) * GB for at in data.draw(some, label="foreign")},
    )
    asks = data.draw(
        st.one_of(
            st.builds(share, st.integers(1, 24)),
            st.builds(take, st.integers(1, 6)),
            st.builds(lambda n, gb: Requirements(accelerator="cuda", devices=n, min_vram_bytes=gb * GB),
                      st.integers(1, 6), st.integers(1, 24)),
        )
    )  # fmt: skip
    chosen = choose(asks, worker)
    assert (chosen is not None) == has_room(asks, worker)
    if chosen is not None:
        assert len({device.uuid for device in chosen}) == asks.device_count


def share(gigabytes: int) -> Requirements:
    return Requirements(accelerator="cuda", vram_share_bytes=gigabytes * GB)


def test_a_share_goes_to_the_fullest_card_on_which_it_fits() -> None:
    devices = cards(4)
    worker = box(devices, free=(0, 3), vram_left={"GPU-01": 12 * GB, "GPU-02": 6 * GB})
    assert indices(choose(share(4), worker)) == [2]
    assert indices(choose(share(8), worker)) == [1]
    assert indices(choose(share(16), worker)) == [0]
    assert choose(share(25), worker) is None


def test_a_share_begins_the_smallest_card_on_which_it_fits() -> None:
    devices = [*cards(1, vram_gb=24), Device(uuid="T4", kind="cuda", index=1, vram_bytes=16 * GB)]
    assert indices(choose(share(4), box(devices))) == [1]
    assert indices(choose(share(20), box(devices))) == [0]


def test_what_others_use_is_not_shared_out() -> None:
    devices = cards(2)
    worker = box(devices, free=(0,), vram_left={"GPU-01": 12 * GB}, foreign={"GPU-01": 6 * GB, "GPU-00": 20 * GB})
    assert indices(choose(share(6), worker)) == [1]
    assert choose(share(8), worker) is None
    assert indices(choose(share(4), worker)) == [1]


def test_the_first_share_breaks_no_good_pair() -> None:
    inventory = recorded("a6000-box").inventory
    assert indices(choose(share(8), box(inventory.devices, inventory.links))) == [2]


@given(
    lefts=st.lists(st.one_of(st.none(), st.integers(0, 24)), min_size=1, max_size=8),
    foreign=st.lists(st.one_of(st.none(), st.integers(0, 24)), min_size=8, max_size=8),
    wanted=st.integers(1, 24),
)
def test_a_share_never_exceeds_what_is_left(lefts: list[int | None], foreign: list[int | None], wanted: int) -> None:
    devices = cards(len(lefts))
    used = {d.uuid: f * GB for d, f in zip(devices, foreign, strict=False) if f is not None}
    worker = box(
        devices,
        free=[at for at, left in enumerate(lefts) if left is None],
        vram_left={d.uuid: left * GB for d, left in zip(devices, lefts, strict=True) if left is not None},
        foreign=used,
    )
    room = {
        d.uuid: (24 if left is None else left) * GB - used.get(d.uuid, 0)
        for d, left in zip(devices, lefts, strict=True)
    }
    chosen = choose(share(wanted), worker)
    if chosen is None:
        assert all(left < wanted * GB for left in room.values())
    else:
        assert len(chosen) == 1
        assert room[chosen[0].uuid] >= wanted * GB
