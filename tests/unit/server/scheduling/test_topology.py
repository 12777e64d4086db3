"""Which devices of a machine are taken: against every other choice, and on machines that we know."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.types import Device, Link, Requirements
from gpulayer_server.scheduling.topology import ALONE, choose, rank, slowest, subset
from tests.support.boxes import GB, Box
from tests.support.fleets import recorded
from tests.support.linkedboxes import like_cards as cards
from tests.support.linkedboxes import linked_box as box

KINDS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS", "")


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
