"""Which devices of a machine are taken: against every other choice, and on machines that we know."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.types import Device, DeviceSample, Inventory, Link, Process, Requirements, Sample
from gpulayer_server.core.machine import Claim
from gpulayer_server.scheduling.match import has_room
from gpulayer_server.scheduling.topology import ALONE, choose, rank, slowest, subset
from tests.support.fleets import candidate, recorded

GB = 10**9
KINDS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS", "")


@dataclass(frozen=True, kw_only=True)
class Box:
    """A worker."""

    inventory: Inventory
    devices_free: tuple[Device, ...]
    vram_left: dict[str, int] = field(default_factory=dict[str, int])
    sample: Sample | None = None
    id: str = "id-box"
    name: str = "box"
    slots: int = 8
    slots_free: int = 8
    room_ahead: int = 0
    ram_left_bytes: int = 0
    cpu_left: float = 0.0
    reachable: bool = True
    full: str = ""


def box(
    devices: Sequence[Device],
    links: Sequence[Link] = (),
    free: Sequence[int] | None = None,
    vram_left: dict[str, int] | None = None,
    foreign: dict[str, int] | None = None,
    ram_bytes: int = 64 * GB,
) -> Box:
    """A machine of which those with the numbers `free` are free. `foreign`: bytes of others' processes by UUID."""
    inventory = Inventory(
        host="box",
        os="linux",
        arch="x86_64",
        cpu_cores=8,
        ram_bytes=ram_bytes,
        python="3.11.9",
        devices=tuple(devices),
        links=tuple(links),
    )
    measured = [
        DeviceSample(
            uuid=d.uuid,
            free_bytes=d.vram_bytes - used if d.vram_bytes is not None else None,
            foreign=(Process(pid=9, bytes=used),),
        )
        for d in devices
        if (used := (foreign or {}).get(d.uuid)) is not None
    ]
    return Box(
        inventory=inventory,
        devices_free=tuple(d for at, d in enumerate(devices) if free is None or at in free),
        vram_left=vram_left or {},
        sample=Sample(devices=tuple(measured)),
    )


def cards(count: int, vram_gb: int = 24, numas: Sequence[int | None] | None = None) -> list[Device]:
    return [
        Device(
            uuid=f"GPU-{i:02}",
            kind="cuda",
            index=i,
            name="NVIDIA RTX 4090",
            vram_bytes=vram_gb * GB,
            numa=numas[i] if numas else None,
        )
        for i in range(count)
    ]


def linked(devices: Sequence[Device], words: Sequence[str]) -> list[Link]:
    """Links of all pairs in order, from words such as 'NV4'; '' is an unknown one, of which nothing is told."""
    pairs = combinations(sorted(device.uuid for device in devices), 2)
    return [
        Link(a=a, b=b, kind=word.rstrip("0123456789"), count=int(word[2:]) if word[2:].isdigit() else 1)
        for (a, b), word in zip(pairs, words, strict=True)
        if word
    ]


@st.composite
def machines(draw: st.DrawFn, least: int = 1, most: int = 8) -> tuple[list[Device], list[Link]]:
    count = draw(st.integers(least, most))
    node = st.sampled_from((None, 0, 1))
    devices = cards(count, numas=draw(st.lists(node, min_size=count, max_size=count)))
    pairs = count * (count - 1) // 2
    word = st.sampled_from(("NV18", "NV4", "NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS", ""))
    return devices, linked(devices, draw(st.lists(word, min_size=pairs, max_size=pairs)))


def weigh(chosen: Sequence[Device], links: Sequence[Link]) -> tuple[int, int, int, int]:
    """How good a set is, reckoned anew: its slowest pair, how few nodes it lies on, known ones, all of its pairs."""
    speeds = {(link.a, link.b): rank(link.kind, link.count) for link in links}
    pairs = [speeds.get((min(a.uuid, b.uuid), max(a.uuid, b.uuid)), 0) for a, b in combinations(chosen, 2)]
    unknown = sum(d.numa is None for d in chosen)
    nodes = len({d.numa for d in chosen} - {None}) + unknown
    return min(pairs, default=0), -nodes, -unknown, sum(pairs)


def recorded_box(name: str, free: Sequence[int] | None = None) -> Box:
    inventory = recorded(name).inventory
    return box(inventory.devices, inventory.links, free)


def indices(devices: Sequence[Device] | None) -> list[int]:
    assert devices is not None
    return [device.index for device in devices]


def take(count: int) -> Requirements:
    return Requirements(accelerator="cuda", devices=count)


# ---------------------------------------------------------------- ranks


def test_links_are_ranked() -> None:
    links = [("NV", 18), ("NV", 4), ("NV", 2), ("NV", 1), *[(kind, 1) for kind in KINDS[1:]]]
    ranks = [rank(kind, count) for kind, count in links]
    assert ranks == sorted(set(ranks), reverse=True)
    assert rank("", 1) == rank("carrier pigeon", 9) == 0


# ---------------------------------------------------------------- against brute force


@given(machine=machines(), data=st.data())
@settings(max_examples=150)
def test_no_other_choice_is_better(machine: tuple[list[Device], list[Link]], data: st.DataObject) -> None:
    devices, links = machine
    usable = data.draw(st.lists(st.sampled_from(devices), unique_by=lambda d: d.uuid, min_size=1), label="usable")
    count = data.draw(st.integers(1, len(usable)), label="count")
    chosen = subset(usable, links, count, keep=devices)
    assert len({device.uuid for device in chosen}) == count
    assert all(device in usable for device in chosen)
    assert weigh(chosen, links) == max(weigh(each, links) for each in combinations(usable, count))


@given(machine=machines(), data=st.data())
def test_the_order_in_which_devices_and_links_come_changes_nothing(
    machine: tuple[list[Device], list[Link]], data: st.DataObject
) -> None:
    devices, links = machine
    count = data.draw(st.integers(0, len(devices)))
    shuffled = subset(data.draw(st.permutations(devices)), data.draw(st.permutations(links)), count)
    assert shuffled == subset(devices, links, count)


@given(machine=machines(least=9, most=14), count=st.integers(1, 9))
@settings(max_examples=60)
def test_larger_machines_give_as_many_as_are_asked_for(machine: tuple[list[Device], list[Link]], count: int) -> None:
    devices, links = machine
    chosen = subset(devices, links, count)
    assert len({device.uuid for device in chosen}) == count
    assert chosen == subset(devices, links, count)


def tree(count: int) -> tuple[list[Device], list[Link]]:
    """Cards under switches, bridges, nodes: two, four and eight each."""
    devices = cards(count, numas=[at // 8 for at in range(count)])
    ways = ("PIX", "PXB", "NODE", "SYS")
    words = [
        ways[next(level for level in range(4) if a >> level + 1 == b >> level + 1 or level == 3)]
        for a, b in combinations(range(count), 2)
    ]
    return devices, linked(devices, words)


@pytest.mark.parametrize("seed", range(20))
def test_on_a_tree_of_switches_of_any_size_the_slowest_pair_is_as_fast_as_can_be(seed: int) -> None:
    devices, links = tree(12)
    drawn = random.Random(seed)
    free = drawn.sample(devices, drawn.randint(9, 12))
    for count in range(1, 6):
        chosen = subset(free, links, count)
        assert weigh(chosen, links)[0] == max(weigh(each, links)[0] for each in combinations(free, count))


def test_a_rack_of_72() -> None:
    devices = cards(72, numas=[at // 4 for at in range(72)])
    links = linked(devices, ["NV18"] * (72 * 71 // 2))
    assert indices(subset(devices, links, 4)) == [0, 1, 2, 3]
    assert len(subset(devices, links, 36)) == 36
    assert indices(subset(devices[2:], links, 4)) == [4, 5, 6, 7]  # of one node, and 2 and 3 are left for a pair


def test_of_a_tree_the_broken_parts_go_first() -> None:
    devices, links = tree(16)
    free = [device for device in devices if device.index not in (5, 8)]
    assert indices(subset(free, links, 1)) == [4]
    assert indices(subset(free, links, 2)) == [6, 7]
    assert indices(subset(free, links, 4)) == [0, 1, 2, 3]


def test_a_device_near_to_all_does_not_make_those_near_to_each_other() -> None:
    devices = cards(9)
    near = {(at, to): "NV4" for at in (0,) for to in range(1, 9)} | {(6, 7): "NODE", (6, 8): "NODE", (7, 8): "NODE"}
    links = linked(devices, [near.get(pair, "SYS") for pair in combinations(range(9), 2)])
    assert indices(subset(devices, links, 3)) == [0, 6, 7]


def test_a_whole_four_is_worth_more_than_two_pairs() -> None:
    devices = cards(5)
    fast, slow = {(0, 1), (2, 3)}, {(0, 2), (0, 3), (0, 4)}
    words = ["NV4" if pair in fast else "SYS" if pair in slow else "PXB" for pair in combinations(range(5), 2)]
    assert indices(subset(devices, linked(devices, words), 1)) == [0]


def test_what_the_job_cannot_use_is_not_stranded_either() -> None:
    devices = cards(4)
    devices[1] = Device(uuid="GPU-01", kind="cuda", index=1, name="NVIDIA A100", vram_bytes=80 * GB)
    links = linked(devices, ["PIX", "NODE", "NODE", "NODE", "NODE", "PIX"])
    asks = Requirements(accelerator="cuda", device_names=("RTX*",))
    assert indices(choose(asks, box(devices, links, free=(0, 1, 2)))) == [2]  # 0 and 1 are a pair
    assert indices(subset([devices[0], devices[2]], links, 1, keep=devices[:3])) == [2]
    assert indices(subset([devices[0], devices[2]], links, 1)) == [0]


def test_more_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="3 of 2 devices"):
        subset(cards(2), (), 3)
    assert subset(cards(2), (), 0) == ()


# ---------------------------------------------------------------- machines that we know


@pytest.mark.parametrize(
    ("count", "free", "taken"),
    [
        (2, range(8), [0, 3]),
        (4, range(8), [0, 1, 2, 3]),
        (8, range(8), list(range(8))),
        (2, (0, 1, 5, 6), [5, 6]),
        (2, (0, 1, 4, 7), [4, 7]),
        (2, (0, 4, 5), [0, 4]),  # NV2 across the sockets beats NV1 within one
        (4, (1, 2, 3, 4, 5, 6, 7), [4, 5, 6, 7]),
        (3, range(8), [0, 2, 3]),
        (1, (0, 1, 2, 3, 5), [5]),  # four of one node stay together
        (1, (1, 4, 5, 6, 7), [1]),
        (2, (0, 1, 2, 3, 4, 7), [4, 7]),
    ],
)
def test_a_hybrid_cube_mesh(count: int, free: Sequence[int], taken: list[int]) -> None:
    assert indices(choose(take(count), recorded_box("dgx1", free))) == taken


@pytest.mark.parametrize(
    ("count", "free", "taken"),
    [
        (1, (1, 2, 3, 4, 5, 6, 7), [1]),  # its pair is broken already
        (1, (0, 1, 2, 3, 5, 6, 7), [5]),
        (2, (1, 2, 3, 5, 6, 7), [2, 3]),
        (2, (1, 2, 3, 4, 5, 6, 7), [2, 3]),
        (2, (0, 2, 4, 6), [0, 2]),  # over one socket
        (4, (0, 1, 2, 4, 5, 6, 7), [4, 5, 6, 7]),
        (3, (0, 1, 2, 4, 5, 6, 7), [0, 1, 2]),
    ],
)
def test_pairs_under_switches(count: int, free: Sequence[int], taken: list[int]) -> None:
    assert indices(choose(take(count), recorded_box("pcie-box", free))) == taken


def test_behind_one_switch_for_all_the_nodes_decide() -> None:
    assert indices(choose(take(2), recorded_box("h100-node"))) == [0, 1]
    assert indices(choose(take(4), recorded_box("h100-node", (1, 2, 3, 4, 5, 6, 7)))) == [4, 5, 6, 7]
    assert indices(choose(take(2), recorded_box("h100-node", range(2, 8)))) == [2, 3]
    assert indices(choose(take(1), recorded_box("h100-node", range(3, 8)))) == [3]
    assert indices(choose(take(1), recorded_box("h100-node", (0, 1, 2, 3, 5)))) == [5]  # four of one node stay


def test_the_bridged_pair_is_taken_for_two_and_spared_for_one() -> None:
    assert indices(choose(take(2), recorded_box("a6000-box"))) == [0, 1]
    assert indices(choose(take(1), recorded_box("a6000-box"))) == [2]


def test_slices_of_a_card_that_is_begun_go_first() -> None:
    slices = [
        Device(uuid=f"MIG-{at}", kind="cuda", index=at // 2, parent=f"GPU-{at // 2}", vram_bytes=20 * GB)
        for at in range(4)
    ]
    assert indices(choose(take(2), box(slices, free=(1, 2, 3)))) == [1, 1]
    assert choose(take(1), box(slices, free=(1, 2, 3))) == (slices[1],)


def test_links_of_cards_hold_for_their_slices() -> None:
    slices = [Device(uuid=f"MIG-{at}", kind="cuda", index=at, parent=f"GPU-{at}") for at in range(3)]
    links = [Link(a="GPU-0", b="GPU-1", kind="SYS"), Link(a="GPU-0", b="GPU-2", kind="NV", count=4)]
    assert indices(choose(take(2), box(slices, links))) == [0, 2]


def test_the_slowest_pair_is_told() -> None:
    dgx = recorded_box("dgx1")
    devices = dgx.inventory.devices
    assert slowest(devices[:4], dgx.inventory) == rank("NV", 1)
    assert slowest((devices[0], devices[3]), dgx.inventory) == rank("NV", 2)
    assert slowest(devices, dgx.inventory) == rank("SYS")
    assert slowest(devices[:1], dgx.inventory) == ALONE


# ---------------------------------------------------------------- what can be had


def test_only_devices_that_fit_are_taken() -> None:
    devices = [*cards(2, vram_gb=24), Device(uuid="A100", kind="cuda", index=2, vram_bytes=80 * GB)]
    devices.append(Device(uuid="apple", kind="mps", index=3, unified=True))
    worker = box(devices)
    assert choose(Requirements(accelerator="cuda", min_vram_bytes=40 * GB), worker) == (devices[2],)
    assert choose(Requirements(accelerator="cuda", devices=2, min_vram_bytes=40 * GB), worker) is None
    assert choose(Requirements(accelerator="mps"), worker) == (devices[3],)
    assert choose(Requirements(), worker) == ()
    assert choose(Requirements(accelerator="rocm"), worker) is None


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
