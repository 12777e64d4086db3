"""Links and seats out of what `nvidia-smi topo -m` prints, whatever became of the text on its way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.types import Link
from gpulayer_worker.inventory.topo import Seat, Topology, parse

FOLDER = Path(__file__).parents[3] / "fleets" / "topologies"
RECORDED = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.txt"))}
UUIDS = tuple(f"GPU-{index:02}" for index in range(16))
SOUND = {name: parse(text, UUIDS) for name, text in RECORDED.items()}


def matrix(found: Topology, count: int) -> list[str]:
    """The links in words, a row for each device."""
    words = {(link.a, link.b): link.kind + (str(link.count) if link.kind == "NV" else "") for link in found.links}
    rows = range(count)
    return [
        " ".join("x" if a == b else words.get((min(UUIDS[a], UUIDS[b]), max(UUIDS[a], UUIDS[b])), "?") for b in rows)
        for a in rows
    ]


def spaced(text: str) -> str:
    """The same with spaces, as a terminal shows it."""
    return "\n".join(line.expandtabs(8) for line in text.splitlines())


def wrapped(text: str, width: int) -> str:
    return "\n".join(
        line[at : at + width] for line in spaced(text).splitlines() for at in range(0, max(1, len(line)), width)
    )


def test_a_hybrid_cube_mesh() -> None:
    assert matrix(SOUND["dgx1-v100-8gpu"], 8) == [
        "x NV1 NV1 NV2 NV2 SYS SYS SYS",
        "NV1 x NV2 NV1 SYS NV2 SYS SYS",
        "NV1 NV2 x NV2 SYS SYS NV1 SYS",
        "NV2 NV1 NV2 x SYS SYS SYS NV1",
        "NV2 SYS SYS SYS x NV1 NV1 NV2",
        "SYS NV2 SYS SYS NV1 x NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 x NV2",
        "SYS SYS SYS NV1 NV2 NV1 NV2 x",
    ]
    seats = SOUND["dgx1-v100-8gpu"].seats
    assert [seats[uuid].numa for uuid in UUIDS[:8]] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert seats["GPU-04"].cpus == (*range(20, 40), *range(60, 80))


def test_a_switch_with_network_cards() -> None:
    found = SOUND["hgx-h100-8gpu"]
    assert {(link.kind, link.count) for link in found.links} == {("NV", 18)}
    assert len(found.links) == 28
    assert found.seats["GPU-07"] == Seat(numa=1, cpus=(*range(56, 112), *range(168, 224)))


def test_columns_apart_by_spaces() -> None:
    found = SOUND["pcie-8gpu"]
    assert matrix(found, 8)[0] == "x PIX NODE NODE SYS SYS SYS SYS"
    assert found.seats["GPU-07"].numa == 1


def test_small_machines() -> None:
    assert matrix(SOUND["a6000-3gpu"], 3) == ["x NV4 NODE", "NV4 x NODE", "NODE NODE x"]
    assert matrix(SOUND["rtx5090-2gpu"], 2) == ["x PHB", "PHB x"]
    assert SOUND["t4-1gpu"] == Topology(links=(), seats={"GPU-00": Seat(numa=0, cpus=tuple(range(8)))})


@pytest.mark.parametrize("name", RECORDED)
def test_the_form_changes_nothing(name: str) -> None:
    text = RECORDED[name]
    first = next(line for line in text.splitlines() if "GPU0" in line)
    forms = {
        "underlined": text.replace(first, f"\x1b[4m{first}\x1b[0m"),
        "each word underlined": re.sub(
            r"^(\s*)(.*)$", lambda m: m[1] + re.sub(r"(\S+)", "\x1b[4m\\1\x1b[0m", m[2]), text
        ),
        "a copy without the first byte of escapes": text.replace(first, f"[4m{first}[0m"),
        "no leading tab": text.replace(first, first.lstrip()),
        "spaces": spaced(text),
        "one space": "\n".join(" ".join(line.split()) for line in spaced(text).splitlines()),
        "carriage returns": text.replace("\n", "\r\n"),
        "indented": "\n".join(f"    {line}" for line in spaced(text).splitlines()),
        "no legend": text.partition("Legend")[0],
        "after a warning": f"WARNING: infoROM is corrupted at gpu 0000:07:00.0\n\n{text}",
        "after a lost device": f"Unable to determine the device handle for GPU0: GPU is lost\n{text}",
        "wrapped at 80": wrapped(text, 80),
        "wrapped at 100": wrapped(text, 100),
    }
    for form, other in forms.items():
        assert parse(other, UUIDS) == SOUND[name], form


@pytest.mark.parametrize("name", RECORDED)
def test_without_the_columns_about_cpus_there_are_links_and_no_seats(name: str) -> None:
    text = re.sub(r"(?m)\s+CPU Affinity.*$", "", spaced(RECORDED[name]).partition("Legend")[0])
    bare = re.sub(r"(?m)(\s+[0-9][0-9,-]+\s+[0-9]+(\s+N/A)?)\s*$", "", text)
    assert "0-" not in bare
    assert parse(bare, UUIDS) == Topology(links=SOUND[name].links)


def test_older_words_and_cards_by_their_own_names() -> None:
    text = (
        "\tGPU0\tGPU1\tGPU2\tmlx5_0\tmlx5_2\tCPU Affinity\n"
        "GPU0\t X \tPSB\tSOC\tPHB\tSOC\t0-11,24-35\n"
        "GPU1\tPSB\t X \tSOC\tPHB\tSOC\t0-11,24-35\n"
        "GPU2\tSOC\tSOC\t X \tSOC\tPIX\t12-23,36-47\n"
        "mlx5_0\tPHB\tPHB\tSOC\t X \tSOC\t\n"
        "mlx5_2\tSOC\tSOC\tPIX\tSOC\t X \t\n"
    )
    found = parse(text, UUIDS)
    assert matrix(found, 3) == ["x PIX SYS", "PIX x SYS", "SYS SYS x"]
    assert found.seats["GPU-02"] == Seat(cpus=(*range(12, 24), *range(36, 48)))


def test_what_is_not_told_is_unknown() -> None:
    text = (
        "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
        "GPU0\t X \tN/A\tNV0\tN/A\tN/A\t\tN/A\n"
        "GPU1\tN/A\t X \tNV99\t\t1\t\tN/A\n"
        "GPU2\tNV0\tNV99\t X \t3\t0-1\t\tN/A\n"
    )
    found = parse(text, UUIDS)
    assert found.links == ()
    assert found.seats == {"GPU-01": Seat(numa=1), "GPU-02": Seat(cpus=(3,))}


def test_sixteen_devices_and_as_many_cards() -> None:
    names = [f"GPU{at}" for at in range(16)] + [f"mlx5_{at}" for at in range(10)]
    lines = ["        " + "".join(f"{name:8}" for name in [*names, "CPU Affinity"])]
    for row in names:
        cells = [" X" if row == name else "NV6" if row[0] == name[0] == "G" else "SYS" for name in names]
        lines.append(f"{row:8}" + "".join(f"{cell:8}" for cell in cells) + "0-23,48-71")
    found = parse("\n".join(lines) + "\n\nLegend:\n", UUIDS)
    assert matrix(found, 16) == [" ".join("x" if a == b else "NV6" for b in range(16)) for a in range(16)]
    assert found.seats["GPU-15"].cpus == (*range(24), *range(48, 72))


def test_a_machine_with_one_node_leaves_that_column_empty() -> None:
    text = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-127\t\tN/A\nGPU1\tSYS\t X \t0-127\t\tN/A\n"
    for form in (text, spaced(text)):
        found = parse(form, UUIDS)
        assert matrix(found, 2) == ["x SYS", "SYS x"]
        assert {seat.numa for seat in found.seats.values()} <= {None}
    assert parse(text, UUIDS).seats["GPU-01"].cpus == tuple(range(128))


def test_devices_that_are_not_ours_have_no_links() -> None:
    found = parse(RECORDED["dgx1-v100-8gpu"], ("", "b", "", "a"))
    assert found.links == (Link(a="a", b="b", kind="NV", count=1),)
    assert sorted(found.seats) == ["a", "b"]
    assert parse(RECORDED["dgx1-v100-8gpu"], ()) == Topology()
    assert parse(RECORDED["dgx1-v100-8gpu"], ("a", "a")).links == ()


def test_two_sides_that_tell_different_things_tell_nothing() -> None:
    assert parse("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV2 X\n", UUIDS).links == ()


def test_a_row_whose_cells_moved_tells_nothing() -> None:
    text = "GPU0 GPU1 GPU2\nGPU0 X NV4 NODE\nGPU1 X NODE\nGPU2 NODE SYS X\n"
    assert matrix(parse(text, UUIDS), 3) == ["x NV4 NODE", "NV4 x SYS", "NODE SYS x"]


def test_what_a_row_with_a_lost_cell_says_is_left_to_the_others() -> None:
    text = "GPU0 GPU1 GPU2 GPU3 CPU Affinity\n"
    text += "GPU0 X PHB PHB PHB 0-7\nGPU1 X PIX SYS 0-7\nGPU2 PHB PIX X NODE 0-7\nGPU3 PHB SYS NODE X 0-7\n"
    assert matrix(parse(text, UUIDS), 4)[1] == "PHB x PIX SYS"


def test_a_row_that_was_cut_is_mended_by_the_others() -> None:
    text = RECORDED["hgx-h100-8gpu"]
    row = next(line for line in text.splitlines() if line.startswith("GPU2"))
    assert parse(text.replace(row, row[:27]), UUIDS).links == SOUND["hgx-h100-8gpu"].links  # it ends with NV1


def test_a_header_that_was_cut_is_read_as_far_as_it_goes() -> None:
    cut = "\n".join(line[:42] for line in RECORDED["pcie-8gpu"].splitlines())
    assert matrix(parse(cut, UUIDS), 5) == [
        "x PIX NODE NODE ?",
        "PIX x NODE NODE ?",
        "NODE NODE x PIX ?",
        "NODE NODE PIX x ?",
        "? ? ? ? x",
    ]
    two = "GPU0 GPU1 GPU1\nGPU0 X NV1 NV\nGPU1 NV1 X NV\n"  # the last name was GPU10, say
    assert matrix(parse(two, UUIDS), 2) == ["x NV1", "NV1 x"]


def test_cores_that_may_be_others_are_unknown() -> None:
    names = "GPU0 GPU1 CPU Affinity NUMA Affinity GPU NUMA ID\n"
    assert parse(f"{names}GPU0 X SYS 0 N/A\nGPU1 SYS X 1 N/A\n", UUIDS).seats == {}  # one of two columns is empty
    broken = "a line that is longer than others is no line that was broken\n"
    broken += "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-31\t1\n2\n"
    assert parse(broken, UUIDS).seats == {}  # node 12
    assert parse("GPU0 CPU Affinity\nGPU0 X 0-99999\n", UUIDS).seats == {}


def test_a_link_that_was_cut_is_not_taken_for_a_slower_one() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV18\tNV18\nGPU1\tNV18\t X \tNV1"
    assert matrix(parse(text, UUIDS), 3) == ["x NV18 NV18", "NV18 x ?", "NV18 ? x"]


@pytest.mark.parametrize("name", RECORDED)
def test_half_of_an_answer_tells_nothing_that_the_whole_does_not(name: str) -> None:
    text = RECORDED[name]
    for form in (text, spaced(text)):
        for end in range(0, len(form), 1 + len(form) // 900):
            _within(parse(form[:end], UUIDS), SOUND[name])
    for width in range(20, 130, 7):
        _within(parse("\n".join(line[:width] for line in spaced(text).splitlines()), UUIDS), SOUND[name])


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("width", [20, 33, 40, 57, 64, 72, 96])
def test_a_narrow_terminal_invents_no_links(name: str, width: int) -> None:
    assert set(parse(wrapped(RECORDED[name], width), UUIDS).links) <= set(SOUND[name].links)


def _within(found: Topology, whole: Topology) -> None:
    assert set(found.links) <= set(whole.links)
    assert {uuid: seat.numa for uuid, seat in found.seats.items() if seat.numa is not None}.items() <= {
        uuid: seat.numa for uuid, seat in whole.seats.items()
    }.items()


@given(text=st.text(), uuids=st.lists(st.text(max_size=3), max_size=4))
def test_any_text_gives_links_or_nothing(text: str, uuids: list[str]) -> None:
    _sane(parse(text, uuids), uuids)


WORDS = (
    "GPU0",
    "GPU1",
    "GPU2",
    "GPU999999",
    "NIC0",
    "mlx5_0",
    "X",
    "NV4",
    "NV18",
    "NV",
    "NV999999",
    "PIX",
    "SYS",
    "SOC",
)
WORDS += ("N/A", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID", "0-19,40-59", "9-1", "0-99999999999", "0", "Legend:")
WORDS += ("\n", "\n", "\n", "\t", " ", "\x1b[4m", "\x1b[0m", "\r", "\u2028", "\u0663", "-", "")


@given(words=st.lists(st.sampled_from(WORDS), max_size=60), by=st.sampled_from(["\t", " ", "\t ", ""]))
def test_its_words_in_any_order_give_links_or_nothing(words: list[str], by: str) -> None:
    _sane(parse(by.join(words), UUIDS), list(UUIDS))


@given(data=st.data(), name=st.sampled_from(sorted(RECORDED)))
def test_recordings_with_damage_give_links_or_nothing(data: st.DataObject, name: str) -> None:
    text = RECORDED[name]
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 40)))
        text = text[:at] + data.draw(st.sampled_from([*WORDS, text[at:end] * 2])) + text[end:]
    _sane(parse(text, UUIDS), list(UUIDS))


def _sane(found: Topology, uuids: list[str]) -> None:
    pairs = [(link.a, link.b) for link in found.links]
    assert pairs == sorted(set(pairs))
    for link in found.links:
        assert link.a < link.b
        assert {link.a, link.b} <= set(uuids) - {""}
        assert link.kind in ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
        assert 1 <= link.count <= 64
    assert set(found.seats) <= set(uuids) - {""}
    assert all(seat.cpus == tuple(sorted(set(seat.cpus))) for seat in found.seats.values())
