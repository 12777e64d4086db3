"""Which machines a job on many machines gets: against every other choice, by each policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpulayer.protocol.types import LOCALITIES, Device, Link, Requirements
from gpulayer_server.scheduling.gang import NETWORK_GROUP, apart, choose_nodes, could, place
from tests.support.boxes import Box
from tests.support.boxes import box as plain_box


def box(
    name: str,
    where: str = "//",
    devices: tuple[Device, ...] = (),
    links: tuple[Link, ...] = (),
    slots_free: int = 1,
) -> Box:
    """A machine at 'region/zone/group', each of which may be empty."""
    region, zone, group = where.split("/")
    labels = {NETWORK_GROUP: group} if group else {}
    return plain_box(
        *devices, name=name, links=links, slots=8, slots_free=slots_free, region=region, zone=zone, labels=labels
    )


def boxes(**counts: int) -> list[Box]:
    """So many machines at each place; '_' stands for '/'."""
    return [box(f"{where}{at}", where.replace("_", "/")) for where, count in counts.items() for at in range(count)]


def gang(nodes: int, locality: str = "prefer") -> Requirements:
    return Requirements(nodes=nodes, locality=locality)


def always(_: Box) -> bool:
    return True


def names(chosen: Sequence[Box] | None) -> list[str]:
    assert chosen is not None
    return [worker.name for worker in chosen]


def crossings(chosen: Sequence[Box]) -> tuple[int, int, int]:
    """How many regions, zones and groups a choice has."""
    places = [place(worker) for worker in chosen]
    return len({p.region for p in places}), len({p[:2] for p in places}), len(set(places))


def together(chosen: Sequence[Box]) -> bool:
    """Whether all are known to be at one place."""
    places = {place(worker) for worker in chosen}
    return len(places) == 1 and any(next(iter(places)))


@st.composite
def fleets(draw: st.DrawFn) -> list[Box]:
    part = st.sampled_from(("", "a", "b"))
    wheres = draw(st.lists(st.tuples(part, part, part), max_size=9))
    return [box(f"box-{at}", "/".join(where)) for at, where in enumerate(wheres)]


POLICIES: dict[str, Callable[[Sequence[Box]], tuple[int, ...]]] = {
    "prefer": lambda chosen: crossings(chosen),
    "spread": lambda chosen: tuple(-count for count in crossings(chosen)),
    "none": lambda _: (),
}


@given(fleet=fleets(), nodes=st.integers(1, 6), locality=st.sampled_from(sorted(LOCALITIES)), data=st.data())
@settings(max_examples=300)
def test_no_other_choice_is_better(fleet: list[Box], nodes: int, locality: str, data: st.DataObject) -> None:
    roomy = set(data.draw(st.lists(st.sampled_from([b.id for b in fleet]))) if fleet else [])
    able = data.draw(st.permutations(fleet))
    chosen = choose_nodes(gang(nodes, locality), able, lambda worker: worker.id in roomy)
    every = list(combinations([b for b in fleet if b.id in roomy], nodes))
    if locality == "require":
        every = [each for each in every if together(each)]
    assert (chosen is None) == (not every)
    if chosen is None:
        return
    assert len({worker.id for worker in chosen}) == nodes
    assert all(worker.id in roomy for worker in chosen)
    if locality == "require":
        assert together(chosen)
    else:
        weigh = POLICIES[locality]
        assert weigh(chosen) == min(weigh(each) for each in every)
    assert names(chosen) == names(choose_nodes(gang(nodes, locality), fleet, lambda worker: worker.id in roomy))


@given(fleet=fleets(), nodes=st.integers(1, 6), locality=st.sampled_from(sorted(LOCALITIES)))
def test_what_could_never_be_had_is_known(fleet: list[Box], nodes: int, locality: str) -> None:
    asks = gang(nodes, locality)
    assert could(asks, fleet) == (choose_nodes(asks, fleet, always) is not None)
    assert bool(apart(asks, fleet)) == (len(fleet) >= nodes and not could(asks, fleet))


def test_near_ones_are_preferred() -> None:
    fleet = boxes(eu_a_ib1=2, eu_a_ib2=3, eu_b_ib1=4, us_a_ib1=5)
    assert names(choose_nodes(gang(2), fleet, always)) == ["eu_a_ib10", "eu_a_ib11"]  # what fits tightest
    assert names(choose_nodes(gang(4), fleet, always)) == [f"eu_b_ib1{at}" for at in range(4)]
    assert crossings(choose_nodes(gang(6), fleet, always) or []) == (1, 2, 2)
    assert crossings(choose_nodes(gang(14), fleet, always) or []) == (2, 3, 4)
    assert choose_nodes(gang(15), fleet, always) is None


def test_a_known_group_is_nearer_than_a_zone() -> None:
    assert names(choose_nodes(gang(2, "require"), boxes(eu_a_=2, eu_b_ib1=3), always)) == ["eu_b_ib10", "eu_b_ib11"]


def test_nodes_are_numbered_by_place() -> None:
    fleet = boxes(eu_a_=2, eu_b_=4)
    assert names(choose_nodes(gang(6), fleet, always)) == [worker.name for worker in fleet]


def test_neighbours_stand_beside_each_other() -> None:
    fleet = boxes(eu_a_ib1=2, us_a_ib1=2)
    mixed = [fleet[2], fleet[0], fleet[3], fleet[1]]
    assert names(choose_nodes(gang(4), mixed, always)) == ["eu_a_ib10", "eu_a_ib11", "us_a_ib10", "us_a_ib11"]


def test_required_ones_wait_for_a_place_that_holds_all() -> None:
    fleet = boxes(eu_a_ib1=2, eu_a_ib2=3, eu_b_=4)
    assert crossings(choose_nodes(gang(3, "require"), fleet, always) or []) == (1, 1, 1)
    assert names(choose_nodes(gang(4, "require"), fleet, always)) == [f"eu_b_{at}" for at in range(4)]
    assert choose_nodes(gang(4, "require"), fleet, lambda worker: worker.name != "eu_b_0") is None
    assert could(gang(4, "require"), fleet)
    assert choose_nodes(gang(5, "require"), fleet, always) is None
    assert not could(gang(5, "require"), fleet)


def test_why_there_is_no_place_is_told() -> None:
    fleet = boxes(eu_a_ib1=2, eu_a_ib2=3)
    assert apart(gang(4, "require"), fleet) == (
        "needs 4 machines of one network group, zone or region, the most are 3 in network group ib2"
    )
    assert apart(gang(2, "require"), boxes(__=3)) == (
        "needs 2 machines of one network group, zone or region, and of none it is known where it is: "
        "join with --label gpulayer.dev/network-group=NAME or --zone"
    )
    assert apart(gang(2, "require"), boxes(eu_a_=1, eu__=1)).endswith("the most are 1 in zone a")
    assert apart(gang(6, "require"), fleet) == ""
    assert apart(gang(4, "prefer"), fleet) == ""


def test_machines_of_unknown_place_are_as_good_as_any_where_nearness_is_only_preferred() -> None:
    assert len(choose_nodes(gang(3), boxes(__=3), always) or []) == 3
    assert names(choose_nodes(gang(2), boxes(__=2, eu_a_=2), always)) == ["eu_a_0", "eu_a_1"]


def test_spread_ones_share_as_little_as_can_be() -> None:
    fleet = boxes(eu_a_ib1=3, eu_a_ib2=3, eu_b_=3, us_a_=3)
    assert crossings(choose_nodes(gang(2, "spread"), fleet, always) or []) == (2, 2, 2)
    assert crossings(choose_nodes(gang(3, "spread"), fleet, always) or []) == (2, 3, 3)
    assert crossings(choose_nodes(gang(4, "spread"), fleet, always) or []) == (2, 3, 4)
    every = choose_nodes(gang(8, "spread"), fleet, always) or []
    assert sorted(sum(place(b) == where for b in every) for where in {place(b) for b in every}) == [2, 2, 2, 2]


def devices(name: str, count: int) -> tuple[Device, ...]:
    return tuple(Device(uuid=f"{name}-{at}", kind="cuda", index=at) for at in range(count))


def test_machines_without_devices_go_first_where_none_are_needed() -> None:
    fleet = [box("a", devices=devices("a", 4)), box("b"), box("c", devices=devices("c", 1)), box("d", slots_free=8)]
    for locality in ("prefer", "none"):
        assert names(choose_nodes(gang(3, locality), fleet, always)) == ["d", "b", "c"]


def test_of_one_place_the_machines_with_the_fastest_links_go_first() -> None:
    slow = [
        box(name, devices=(pair := devices(name, 2)), links=(Link(a=pair[0].uuid, b=pair[1].uuid, kind="PHB"),))
        for name in ("a", "b")
    ]
    fast = [
        box(name, devices=(pair := devices(name, 2)), links=(Link(a=pair[0].uuid, b=pair[1].uuid, kind="NV", count=4),))
        for name in ("y", "z")
    ]
    asks = Requirements(accelerator="cuda", devices=2, nodes=2)
    assert names(choose_nodes(asks, [*slow, *fast], always)) == ["y", "z"]
    assert names(choose_nodes(asks, [*slow, fast[0]], always)) == ["y", "a"]


@pytest.mark.parametrize("locality", LOCALITIES)
def test_each_of_many_machines_is_asked_once(locality: str) -> None:
    fleet = [box(f"{at:05}", f"r{at % 3}/z{at % 12}/g{at % 480}") for at in range(3_000)]
    asked: list[str] = []

    def room(worker: Box) -> bool:
        asked.append(worker.id)
        return True

    assert len(choose_nodes(gang(5, locality), fleet, room) or []) == 5
    assert len(asked) == len(set(asked)) <= len(fleet)
