"""Who can take a job, who takes it, and every reason why not: of one machine and of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpulayer.protocol.types import Requirements
from gpulayer_server.scheduling.match import (
    busy,
    explain,
    fits,
    has_room,
    shape,
    slotless,
    unmet,
)
from gpulayer_server.scheduling.room import Room
from gpulayer_server.scheduling.topology import choose
from tests.support.boxes import Box, box, card, cards, torch

ANY = Requirements()


def pick(asked: Requirements, boxes: Sequence[Box]) -> Box | None:
    """The one that takes it, of all that are known."""
    room = Room[Box]()
    for each in boxes:
        room.came(each)
    found = room.best(room.wants(asked))
    return found.worker if found is not None else None


def cuda(count: int = 1) -> Requirements:
    return Requirements(accelerator="cuda", devices=count)


def test_a_worker_that_fits_has_no_reason():
    assert unmet(cuda(2), box(*cards(2))) == []
    assert busy(cuda(2), box(*cards(2))) == []


def test_cpu_and_none_fit_any_worker():
    for accelerator in (None, "cpu"):
        assert unmet(Requirements(accelerator=accelerator), box()) == []
        assert fits(Requirements(accelerator=accelerator), box())


def test_every_unmet_constraint_is_told():
    asked = Requirements(accelerator="cuda", worker="other", python=">=3.12", labels=("team=vision",))
    reasons = unmet(asked, box(slots=0))
    assert [reason.code for reason in reasons] == ["worker_name", "slots", "python", "label", "device_kind"]
    assert not any(reason.temporary for reason in reasons)
    assert {reason.worker for reason in reasons} == {"gpu-box-1"}


def test_a_worker_without_slots_says_what_to_do():
    [reason] = unmet(ANY, box(slots=0))
    assert (reason.code, reason.text, reason.wanted, reason.found) == ("slots", "offers no slots", 1, 0)
    assert reason.remedy == "start the worker of gpu-box-1 with --slots 1 or more"


def test_every_temporary_hindrance_is_told():
    reasons = busy(cuda(2), box(*cards(2), free=cards(1), slots_free=0, reachable=False))
    assert [(reason.code, reason.temporary) for reason in reasons] == [
        ("out_of_reach", True),
        ("slots", True),
        ("devices_busy", True),
    ]


def test_pick_takes_nobody_where_nobody_can():
    assert pick(ANY, []) is None
    assert pick(ANY, [box(slots_free=0), box(reachable=False)]) is None


def test_pick_strands_as_few_devices_as_possible():
    chosen = pick(ANY, [box(*cards(4), name="gpu", slots=9), box(name="cpu")])
    assert chosen is not None
    assert chosen.name == "cpu"


def test_pick_takes_the_most_room_then_the_first_name():
    few, many = box(name="a", slots_free=1), box(name="b", slots_free=2)
    assert pick(ANY, [few, many]) == many
    assert pick(ANY, [box(name="b"), box(name="a")]) == box(name="a")
    assert pick(cuda(), [box(card(), name="b"), box(*cards(8), name="a", slots_free=1)]) == box(card(), name="b")


def test_devices_are_taken_in_the_inventorys_order():
    mixed = (card(7, kind="mps"), *cards(3))
    assert [device.uuid for device in choose(cuda(2), box(*mixed)) or ()] == ["GPU-0", "GPU-1"]
    assert choose(ANY, box(*mixed)) == ()


def test_a_worker_lacks_only_a_slot():
    full, held, lacking = box(name="a", slots_free=0), box(name="b"), box(card(), name="c", slots_free=0)
    assert slotless(ANY, [full, held, lacking]) == ["id-a", "id-c"]
    assert slotless(cuda(), [replace(lacking, devices_free=()), lacking]) == ["id-c"]


# ---------------------------------------------------------------- of all workers


def lines(requirements: Requirements, *boxes: Box) -> list[tuple[str, str]]:
    return [(reason.worker, reason.text) for reason in explain(requirements, boxes)]


def test_every_worker_has_its_line():
    asked = Requirements(accelerator="cuda", devices=2, frameworks=("torch", "jax"))
    jax = torch("0.9.0", name="jax")
    driver = torch(
        "2.13.0+cu130",
        works=("cpu",),
        built_for="13.0",
        problems={"cuda": "CUDA driver version is insufficient (driver 12.2, torch built for 13.0)"},
    )
    assert lines(
        asked,
        box(card(), frameworks=(torch(), jax)),
        box(*cards(2), name="mac-studio", frameworks=(torch(),)),
        box(*cards(2), name="laptop", frameworks=(driver, jax)),
        box(*cards(2), name="gpu-box-2", frameworks=(torch(), jax)),
    ) == [
        ("gpu-box-1", "needs 2 usable cuda devices, worker has 1"),
        ("mac-studio", "framework 'jax' not installed"),
        (
            "laptop",
            "torch on this worker cannot use CUDA: "
            "CUDA driver version is insufficient (driver 12.2, torch built for 13.0)",
        ),
    ]


def test_explain_names_every_worker_and_the_permanent_reason_first_asked():
    reasons = explain(cuda(), [box(name="none", slots_free=0), box(card(), name="busy", free=())])
    assert [(reason.worker, reason.code, reason.temporary) for reason in reasons] == [
        ("none", "device_kind", False),
        ("busy", "devices_busy", True),
    ]


def test_explain_without_a_worker_says_what_to_do():
    [reason] = explain(Requirements(nodes=2), [])
    assert (reason.code, reason.temporary) == ("no_worker", True)
    assert reason.text == "no worker is connected; `gpulayer up` prints the line with which a machine joins"
    assert reason.remedy == "add a machine: `gpulayer up` prints the line with which a machine joins"


def test_explain_of_an_unknown_name_gives_the_nearest_ones():
    first, *others = explain(Requirements(worker="boxx"), [box(name="boxb"), box(name="boxa"), box(name="zebra")])
    assert (first.code, first.text) == ("worker_unknown", "no worker is named 'boxx'; did you mean boxb or boxa?")
    assert (first.wanted, first.found, first.remedy) == ("boxx", "boxb, boxa", "ask for worker boxb or boxa")
    assert [(reason.worker, reason.text) for reason in others] == [
        ("boxb", "is not 'boxx'"),
        ("boxa", "is not 'boxx'"),
        ("zebra", "is not 'boxx'"),
    ]
    assert explain(Requirements(worker="q"), [box()])[0].text == "no worker is named 'q'"


def test_of_a_worker_that_was_not_asked_for_only_its_name_is_told():
    asked = Requirements(accelerator="cuda", worker="boxb")
    assert lines(asked, box(name="boxa"), box(name="boxb")) == [
        ("boxa", "is not 'boxb'"),
        ("boxb", "needs 1 usable cuda device, worker has 0 (CPU only)"),
    ]


def test_too_few_machines_are_told_and_each_of_them_has_its_line():
    reasons = explain(Requirements(accelerator="cuda", nodes=3), [box(card(), name="a"), box(name="b")])
    assert [(reason.worker, reason.code, reason.text, reason.temporary) for reason in reasons] == [
        ("", "nodes", "needs 3 machines at once, 1 could take it", False),
        ("a", "nodes", "could take its part of 3 machines; lacking: 2 more machines", False),
        ("b", "device_kind", "needs 1 usable cuda device, worker has 0 (CPU only)", False),
    ]
    held = explain(Requirements(accelerator="cuda", nodes=3), [box(card(), name="a", slots_free=0)])
    assert [(reason.worker, reason.code) for reason in held] == [("", "nodes"), ("a", "nodes"), ("a", "slots")]
    assert reasons[0].remedy.startswith("add 2 more machines that could take it, or ask for fewer nodes")


def test_machines_that_could_take_their_part_wait_for_the_others():
    reasons = explain(Requirements(nodes=2), [box(name="a"), box(name="b", slots_free=0)])
    assert [(reason.worker, reason.code, reason.text, reason.temporary) for reason in reasons] == [
        ("", "nodes", "needs 2 machines at once, 1 has room now", True),
        ("a", "nodes", "could take its part of 2 machines, and waits for 1 more machine", True),
        ("b", "slots", "all 2 slots busy", True),
    ]
    assert explain(Requirements(nodes=2), [box(name="a"), box(name="b"), box(name="c")]) == ()


def test_machines_that_are_too_far_apart_are_told():
    group = "gpulayer.dev/network-group"
    near = [box(name=name, labels={group: "ib-1"}) for name in ("a", "b")]
    asked = Requirements(nodes=3, locality="require")
    reasons = explain(asked, [*near, box(name="c", labels={group: "ib-2"})])
    assert [(reason.worker, reason.text, reason.temporary) for reason in reasons] == [
        ("", "needs 3 machines of one network group, zone or region, the most are 2 in network group ib-1", False),
        *[(name, "could take its part of 3 machines; lacking: machines near it", False) for name in "abc"],
    ]
    assert reasons[0].remedy == "ask for another group locality than require"
    assert explain(Requirements(nodes=2, locality="require"), near) == ()


def test_machines_near_each_other_that_are_busy_are_waited_for():
    near = [box(name=name, zone="eu-1", slots_free=free) for name, free in (("a", 1), ("b", 0))]
    reasons = explain(Requirements(nodes=2, locality="require"), [*near, box(name="c", zone="eu-2")])
    assert [(reason.worker, reason.code, reason.temporary) for reason in reasons] == [
        ("", "nodes", True),
        ("a", "nodes", True),
        ("c", "nodes", True),
        ("b", "slots", True),
    ]


def test_a_worker_that_takes_no_more_says_why_and_is_passed_over():
    full = box(name="full", full="its disk has 0.4 GB left")
    [reason] = busy(ANY, full)
    assert (reason.code, reason.text, reason.temporary) == ("disk", "its disk has 0.4 GB left", True)
    assert pick(ANY, [full]) is None
    assert pick(ANY, [full, box(name="other")]) == box(name="other")


# ---------------------------------------------------------------- shapes


def test_machines_that_differ_in_name_and_uuids_are_of_one_shape():
    one = box(card(0), card(1), name="a", frameworks=(torch(devices=("GPU-0", "GPU-1")),))
    other = box(card(8), card(9), name="b", frameworks=(torch(devices=("GPU-8", "GPU-9")),), slots_free=0)
    assert shape(one) == shape(other)
    assert hash(shape(one)) == hash(shape(other))


def test_machines_that_differ_in_what_is_asked_for_are_not():
    plain = box(card(), frameworks=(torch(devices=("GPU-0",)),))
    others = [
        box(card(sick="Xid 79"), frameworks=(torch(devices=("GPU-0",)),)),
        box(card(vram_bytes=1), frameworks=(torch(devices=("GPU-0",)),)),
        box(card(), frameworks=(torch(devices=("GPU-7",)),)),
        box(card(), frameworks=(torch("2.0", devices=("GPU-0",)),)),
        box(card(), frameworks=(torch(devices=("GPU-0",)),), probing=("torch",)),
        box(card(), frameworks=(torch(devices=("GPU-0",)),), labels={"team": "vision"}),
        box(card(), frameworks=(torch(devices=("GPU-0",)),), slots=0),
        box(card(), frameworks=(torch(devices=("GPU-0",)),), python="3.12.1"),
    ]
    assert len({shape(plain), *map(shape, others)}) == 1 + len(others)


def test_has_room_looks_at_slots_and_the_disk():
    assert has_room(ANY, box())
    assert not has_room(ANY, box(slots_free=0))
    assert not has_room(ANY, box(full="disk low"))
