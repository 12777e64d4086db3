"""NVIDIA's devices, links and masks, from what an NVML that is made up says."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import msgspec
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer.protocol.types import Device, Link
from gpulayer_worker.inventory import nvml as nvml_module
from gpulayer_worker.inventory.nvidia import Found, Nvidia, found, masked
from gpulayer_worker.inventory.nvml import Nvml, devices_present, pci_id
from tests.support import fakenvml
from tests.support.fakenvml import DGX1, GB, Fake, card

GPUS = [Device(uuid=f"GPU-{letter}{n}", kind="cuda", index=n) for n, letter in enumerate("abb")]


def look(machine: fakenvml.Machine, environ: dict[str, str] | None = None, root: Path = Path("/nowhere")) -> Found:
    """Through JSON, as between the child and the agent."""
    said = json.loads(json.dumps(Nvml(Fake(machine)).machine()))
    return found(msgspec.convert(said, Nvidia), environ or {}, root)


def links(here: Found) -> dict[tuple[int, int], tuple[str, int]]:
    """Kind and count by the indices of the pair."""
    index = {device.uuid: device.index for device in here.devices}
    return {(index[link.a], index[link.b]): (link.kind, link.count) for link in here.links}


# ---------------------------------------------------------------- what there is


def test_a_card_is_described(tmp_path: Path) -> None:
    node = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    node.mkdir(parents=True)
    (node / "numa_node").write_text("1\n")
    here = look(fakenvml.t4(), root=tmp_path)
    assert here.devices == (
        Device(
            uuid="GPU-00000000-1111-2222-3333-444444444444",
            kind="cuda",
            index=0,
            name="Tesla T4",
            vram_bytes=16 * GB,
            capability="7.5",
            driver="535.104.05",
            pci="0000:01:00.0",
            numa=1,
        ),
    )
    assert (here.cuda, here.problems, here.links) == ("12.2", (), ())


def test_memory_that_is_the_machines_is_unified() -> None:
    [device] = look(fakenvml.t4(total=None)).devices
    assert (device.vram_bytes, device.unified) == (None, True)


def test_a_card_that_is_lost_does_not_hide_the_others() -> None:
    here = look(fakenvml.machine(card(0), card(1, lost=True), card(2)))
    assert [device.index for device in here.devices] == [0, 2]
    assert here.problems == ("NVIDIA device 1 can't be used: GPU is lost",)


def test_slices_count_and_their_card_does_not() -> None:
    here = look(fakenvml.mig())
    assert [(device.uuid[:3], device.index, device.vram_bytes) for device in here.devices] == [
        ("MIG", 0, 20 * GB),
        ("MIG", 0, 20 * GB),
        ("GPU", 1, 40 * GB),
    ]
    parents = {device.parent for device in here.devices}
    assert parents == {"GPU-00000000-1111-2222-3333-444444444444", ""}
    assert here.devices[0].name.endswith("MIG 3g.20gb")


def test_a_card_in_mig_mode_without_slices_is_told_of() -> None:
    here = look(fakenvml.machine(card(0, mig=True)))
    assert here.devices == ()
    assert here.problems == (
        "Tesla T4 0 is in MIG mode and has no slices: make some (nvidia-smi mig -cgi PROFILE -C), or turn MIG off",
    )


# ---------------------------------------------------------------- links


def test_a_dgx_has_its_cube_mesh() -> None:
    seen = links(look(fakenvml.dgx1()))
    assert len(seen) == 28
    assert {pair: count for pair, (kind, count) in seen.items() if kind == "NV"} == DGX1
    assert seen[0, 5] == ("SYS", 1)


def test_cards_on_switches_have_all_their_links_to_each_other() -> None:
    assert set(links(look(fakenvml.h100s(3))).values()) == {("NV", 18)}


def test_slices_of_one_card_are_on_one_board_and_nvlinks_end_there() -> None:
    seen = [(link.kind, link.count) for link in look(fakenvml.mig()).links]
    assert seen == [("PXB", 1), ("PXB", 1), ("PIX", 1)]


def test_links_that_nvml_does_not_tell_are_left_out() -> None:
    assert look(fakenvml.machine(card(0), card(1), card(2), levels={"0-2": 30})).links == (
        Link(a=card(0)["uuid"], b=card(2)["uuid"], kind="PHB"),
    )


# ---------------------------------------------------------------- sick


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ({"ecc": 0, "remapped": [0, 0, 0, 0], "retired": 0}, ""),
        ({"ecc": 2}, "2 uncorrected ECC errors since the driver was loaded: reset it (nvidia-smi --gpu-reset -i 0)"),
        ({"remapped": [0, 1, 1, 0]}, "rows of its memory wait to be remapped: reset it"),
        ({"remapped": [0, 1, 0, 1]}, "a row of its memory could not be remapped: the card has to be replaced"),
        ({"retired": 1}, "pages of its memory wait to be retired: reset it"),
    ],
)
def test_a_card_says_itself_that_it_is_sick(trouble: dict[str, object], words: str) -> None:
    [device] = look(fakenvml.t4(**trouble)).devices
    assert device.sick.startswith(words)
    assert bool(device.sick) == bool(words)


def test_a_card_that_falls_off_the_bus_later_is_sick() -> None:
    machine = fakenvml.t4()
    nvml = Nvml(Fake(machine))
    nvml.machine()
    machine["cards"][0]["lost"] = True
    [words] = nvml.sample(health=True)["sick"].values()
    assert words.startswith("GPU is lost: reset it (nvidia-smi --gpu-reset -i 0)")


def test_xids_are_told_once_those_of_programs_never_and_those_of_a_slice_for_it_alone() -> None:
    nvml = Nvml(Fake(fakenvml.mig() | {"xids": [[1, 79], [1, 31], [1, 43], [0, 94, 2], [0, 95]]}))
    said = nvml.machine()
    second_slice = said["cards"][0]["slices"][1]["uuid"]
    assert nvml.sample(health=False)["xids"] == [
        [card(1)["uuid"], "Xid 79: fallen off the bus"],
        [second_slice, "Xid 94: contained ECC error"],
        [card(0)["uuid"], "Xid 95: uncontained ECC error"],
    ]
    assert nvml.sample(health=False)["xids"] == []


# ---------------------------------------------------------------- samples


def test_a_sample_tells_memory_processes_and_health() -> None:
    nvml = Nvml(Fake(fakenvml.machine(card(0, used=3 * GB, busy=50, processes=[[7, 2 * GB], [8, None]], ecc=1))))
    nvml.machine()
    sample = nvml.sample(health=True)
    [device] = sample["devices"]
    assert device["used_bytes"] == 3 * GB
    assert device["free_bytes"] == 13 * GB
    assert (device["utilisation"], device["temperature_c"], device["power_w"]) == (0.5, 40, 70)
    assert device["processes"] == [[7, 2 * GB], [8, None]]
    assert sample["sick"][device["uuid"]].startswith("1 uncorrected ECC error since")
    assert "sick" not in nvml.sample(health=False)


def test_slices_are_sampled_by_themselves() -> None:
    machine = fakenvml.mig()
    machine["cards"][0]["slices"][1] |= {"used": GB, "processes": [[9, GB]]}
    nvml = Nvml(Fake(machine))
    nvml.machine()
    by_uuid = {each["uuid"]: each for each in nvml.sample(health=False)["devices"]}
    part = by_uuid[machine["cards"][0]["slices"][1]["uuid"]]
    assert (part["used_bytes"], part["processes"], part["utilisation"]) == (GB, [[9, GB]], None)
    assert part["temperature_c"] == 40  # its card's


def test_the_bindings_know_every_name_that_is_asked_for() -> None:
    names = set(re.findall(r"\b(?:nvml[A-Z]|NVML_)\w+", inspect.getsource(nvml_module)))
    assert len(names) > 25
    assert {name for name in names if not hasattr(pynvml, name)} <= {"NVML_NVLINK_DEVICE_TYPE_SWITCH"}


def test_what_older_bindings_lack_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = Fake(fakenvml.dgx1())
    for name in (
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetRemappedRows",
        "nvmlSystemGetCudaDriverVersion_v2",
    ):
        monkeypatch.delattr(Fake, name)
    said = Nvml(fake).machine()
    assert said["cuda"] == ""
    assert len(said["cards"][0]["nvlinks"]) == 6


# ---------------------------------------------------------------- masks


@pytest.mark.parametrize(
    ("mask", "indices"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("0", [0]),
        ("2,0", [2, 0]),
        (" 1 , 2 ", [1, 2]),
        ("GPU-a", [0]),
        ("GPU-b1,GPU-b2", [1, 2]),
        ("GPU-b", []),  # names two
        ("0,7,1", [0]),  # up to the first that names nothing, as CUDA does
        ("-1", []),
        ("NoDevFiles", []),
        ("0,0", [0]),
        ("9" * 5000, []),
    ],
)
def test_a_mask_shows_what_cuda_would_show(mask: str | None, indices: list[int]) -> None:
    assert [device.index for device in masked(GPUS, mask)] == indices


def test_a_mask_takes_slices_by_their_uuid_and_all_of_a_card_by_its() -> None:
    devices = look(fakenvml.mig()).devices
    first, second, whole = devices
    assert masked(devices, second.uuid) == (second,)
    assert masked(devices, "0") == (first, second)
    assert masked(devices, first.parent[:12]) == (first, second)
    assert masked(devices, f"1,{first.uuid}") == (whole, first)


@given(st.text(max_size=60))
def test_no_mask_raises_and_none_shows_a_device_twice(mask: str) -> None:
    chosen = masked([*GPUS, *look(fakenvml.mig()).devices], mask)
    assert len(set(chosen)) == len(chosen)


def test_indices_of_unlike_cards_count_in_an_order_that_is_named() -> None:
    unlike = fakenvml.machine(card(0), card(1, "NVIDIA A100"))
    here = look(unlike, {"CUDA_VISIBLE_DEVICES": "1"})
    assert [device.index for device in here.devices] == [1]
    [problem] = here.problems
    assert problem.startswith("CUDA_VISIBLE_DEVICES=1 counts unlike cards, and not in bus order: set CUDA_DEVICE_ORDER")
    assert look(unlike, {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}).problems == ()
    assert look(unlike, {"CUDA_VISIBLE_DEVICES": card(1)["uuid"]}).problems == ()


def test_a_mask_that_leaves_nothing_is_told_of() -> None:
    here = look(fakenvml.t4(), {"CUDA_VISIBLE_DEVICES": ""})
    assert here.devices == ()
    assert here.problems == ("CUDA_VISIBLE_DEVICES='' of the worker leaves none of 1 NVIDIA devices",)


@pytest.mark.parametrize("mask", ["0,GPU-nope,1", "0,0", "0,,1"])
def test_a_mask_that_ends_too_soon_is_told_of(mask: str) -> None:
    here = look(fakenvml.machine(card(0), card(1)), {"CUDA_VISIBLE_DEVICES": mask})
    assert [device.index for device in here.devices] == [0]
    [problem] = here.problems
    assert problem.startswith(f"CUDA_VISIBLE_DEVICES={mask} of the worker ends at {mask.split(',')[1]!r}")
    assert problem.endswith("1 of 2 are left")


@pytest.mark.parametrize("mask", ["0,1", "0,1,", "0,-1", None])
def test_a_mask_that_says_what_it_means_is_no_problem(mask: str | None) -> None:
    environ = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert look(fakenvml.machine(card(0), card(1)), environ).problems == ()


@pytest.mark.parametrize("mask", ["", "0", "GPU-nope"])
def test_where_there_are_no_devices_nothing_is_said_of_a_mask(mask: str) -> None:
    assert look(fakenvml.machine(), {"CUDA_VISIBLE_DEVICES": mask}).problems == ()


# ---------------------------------------------------------------- presence


def test_devices_are_present_by_their_files_and_by_the_bus(tmp_path: Path) -> None:
    assert not devices_present(tmp_path)
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert not devices_present(tmp_path)
    (tmp_path / "dev/nvidia0").touch()
    assert devices_present(tmp_path)
    bus = tmp_path / "other/sys/bus/pci/devices/0000:01:00.0"
    bus.mkdir(parents=True)
    (bus / "vendor").write_text("0x10de\n")
    (bus / "class").write_text("0x040300\n")  # its sound
    assert not devices_present(tmp_path / "other")
    (bus / "class").write_text("0x030000\n")
    assert devices_present(tmp_path / "other")


@given(st.text(max_size=30))
def test_any_bus_id_gives_some_text(bus_id: str) -> None:
    assert isinstance(pci_id(bus_id), str)
    assert pci_id("00000000:3B:00.0\0") == "0000:3b:00.0"
