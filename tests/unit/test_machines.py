"""Machines as they fare, in plain text."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.machines import foreign, frameworks_line, holder_words, host_line, machine_lines
from gpulayer.protocol.types import (
    Device,
    DeviceSample,
    Framework,
    Holder,
    Inventory,
    Process,
    Sample,
    WorkerView,
)
from gpulayer.tables import letters

NOW = 10_000.0
GPUS = tuple(
    Device(uuid=f"u{n}", kind="cuda", index=n, name="NVIDIA GeForce RTX 4090", vram_bytes=24_000_000_000)
    for n in range(2)
)
SAMPLE = Sample(
    cpu=0.12,
    ram_used_bytes=31_200_000_000,
    disk_free_bytes=812_000_000_000,
    received_bps=1_200_000,
    sent_bps=40_000,
    devices=(
        DeviceSample(uuid="u0", used_bytes=18_200_000_000, utilisation=0.97, temperature_c=71),
        DeviceSample(uuid="u1", used_bytes=400_000_000, utilisation=0.0, temperature_c=38),
    ),
)
TRAIN = Holder(job="k3f9", name="train.py", owner="ana", devices=("u0",), since=NOW - 720)


def inventory(**facts: Any) -> Inventory:
    given: dict[str, Any] = {
        "host": "h",
        "os": "linux",
        "arch": "x86_64",
        "cpu_cores": 16,
        "ram_bytes": 64_000_000_000,
        "python": "3.11",
    }
    return Inventory(**given | facts)


def machine(*, has: Inventory | None = None, **facts: Any) -> WorkerView:
    given: dict[str, Any] = {"connected": True, "slots": 4, "slots_free": 3, "name": "box", "id": "w"}
    return WorkerView(**given | facts, inventory=has or inventory())


def test_a_machine_with_devices_and_who_holds_them() -> None:
    torch = Framework(name="torch", version="2.13.0+cu130", works=("cpu", "cuda"))
    has = inventory(devices=GPUS, frameworks=(torch,), region="eu-west", labels={"team": "vision"})
    view = machine(has=has, sample=SAMPLE, devices_free=("u1",), holders=(TRAIN,), sessions=1)
    assert machine_lines([view], NOW) == [
        "● box · 3 of 4 slots free · 1 session · eu-west · team=vision",
        "    cuda:0 RTX 4090  97%  18.2 of 24 GB  71 °C  train.py by ana, 12 min",
        "    cuda:1 RTX 4090   0%   0.4 of 24 GB  38 °C  free",
        "    torch 2.13.0 cuda ✓",
        "    CPU 12% of 16 cores · RAM 31.2 of 64 GB · disk 812 GB free · net ↓ 1.2 MB/s ↑ 40 kB/s",
    ]


def test_without_a_sample_it_says_what_is_there() -> None:
    view = machine(has=inventory(devices=GPUS[:1]), devices_free=("u0",), local=True, slots=1, slots_free=1)
    assert machine_lines([view], NOW) == [
        "● box (this machine) · 1 of 1 slot free",
        "    cuda:0 RTX 4090    24 GB    free",
        "    16 cores · RAM 64 GB",
    ]


def test_a_device_that_is_sick_or_held_by_others() -> None:
    sick = Device(uuid="u2", kind="cuda", index=2, name="T4", sick="Xid 79: fallen off the bus")
    taken = DeviceSample(uuid="u1", foreign=(Process(pid=4121, name="python", user="alice", bytes=6_200_000_000),))
    has = inventory(devices=(*GPUS, sick))
    lines = machine_lines([machine(has=has, sample=Sample(devices=(taken,)))], NOW)
    assert lines[1].endswith("in use")
    assert lines[2].endswith("python pid 4121 by alice, 6.2 GB")
    assert lines[3].endswith("  sick")
    assert lines[4] == "        ! cuda:2 T4 takes no work: Xid 79: fallen off the bus"


def test_those_who_share_a_device_stand_below_each_other() -> None:
    holders = [
        Holder(job=f"j{n}", name=f"part-{n}", owner="ana", devices=("u0",), vram_bytes=6_000_000_000, since=NOW - 60)
        for n in range(2)
    ]
    has = inventory(devices=GPUS[:1])
    lines = machine_lines([machine(has=has, sample=SAMPLE, holders=tuple(holders))], NOW, 80)
    assert lines[1] == "    cuda:0 RTX 4090  97%  18.2 of 24 GB  71 °C  part-0 by ana, 6 GB of it, 1 min"
    assert lines[2] == "                                                part-1 by ana, 6 GB of it, 1 min"


def test_unified_memory_is_the_machines() -> None:
    mps = Device(uuid="m", kind="mps", index=0, name="Apple M2 Max", unified=True)
    sample = Sample(devices=(DeviceSample(uuid="m", used_bytes=8_000_000_000),))
    lines = machine_lines([machine(has=inventory(devices=(mps,)), sample=sample, devices_free=("m",))], NOW)
    assert lines[1].split() == ["mps:0", "Apple", "M2", "Max", "8.0", "of", "64", "GB", "unified", "free"]


def test_one_out_of_reach_and_one_that_is_full() -> None:
    away = machine(connected=False, last_seen_at=NOW - 400, has=inventory(devices=GPUS[:1]))
    full = machine(full="disk below its reserve: 1 GB free", notes=("hot",), has=inventory(problems=("NVML failed",)))
    lines = machine_lines([away, full], NOW)
    assert lines[0] == "◌ box · out of reach, last heard of 6 min ago; jobs may go on there"
    assert lines[1].split() == ["cuda:0", "RTX", "4090", "24", "GB"]
    assert "● box · disk below its reserve: 1 GB free" in lines
    assert lines[-2:] == ["    ! NVML failed", "    ! hot"]


@pytest.mark.parametrize(
    ("holder", "words"),
    [
        (TRAIN, "train.py by ana, 12 min"),
        (Holder(session="train", owner="ana", vram_bytes=8_000_000_000), "session train by ana, 8 GB of it"),
        (Holder(job="k3f9"), "k3f9"),
    ],
)
def test_holders(holder: Holder, words: str) -> None:
    assert holder_words(holder, NOW) == words


def test_of_a_foreign_process_what_is_known() -> None:
    assert foreign(DeviceSample(uuid="u", foreign=(Process(pid=7),))) == ["process pid 7"]


@pytest.mark.parametrize(
    ("devices", "frameworks", "probing", "line"),
    [
        ((), (), (), ""),
        ((), (Framework(name="torch", version="2.9", works=("cpu",)),), (), "torch 2.9 cpu ✓"),
        (GPUS, (Framework(name="jax", version="0.5", works=("cpu",)),), (), "jax 0.5 – CPU only"),
        (GPUS, (Framework(name="jax", version="0.5"),), (), "jax 0.5 ✗"),
        (GPUS, (Framework(name="mlx"), Framework(name="cupy")), (), "mlx, cupy – not installed"),
        (GPUS, (), ("torch", "jax"), "torch, jax … being tried out"),
    ],
)
def test_frameworks(
    devices: tuple[Device, ...], frameworks: tuple[Framework, ...], probing: tuple[str, ...], line: str
) -> None:
    assert frameworks_line(inventory(devices=devices, frameworks=frameworks, probing=probing)) == line


def test_why_a_framework_can_not_use_what_is_there_is_said() -> None:
    why = "CUDA driver version is insufficient (driver 12.2, torch built for 13.0)"
    torch = Framework(name="torch", version="2.13.0", works=("cpu",), problems={"cuda": why, "mps": "no Mac"})
    gone = Framework(name="jax", problems={"": "not installed"})
    lines = machine_lines([machine(has=inventory(devices=GPUS, frameworks=(torch, gone)))], NOW)
    assert [line for line in lines if "!" in line] == [f"    ! torch on cuda: {why}"]


def test_what_jobs_declared() -> None:
    line = host_line(inventory(), SAMPLE, ram_declared=16_000_000_000, cpu_declared=4)
    assert line.startswith("CPU 12% of 16 cores (4 declared) · RAM 31.2 of 64 GB (16 GB declared)")


def test_lines_end_between_facts_and_command_no_terminal() -> None:
    labels = {f"a-long-name-of-a-label-{n}": "value" for n in range(6)} | {"x": "\x1b[2J"}
    lines = machine_lines([machine(has=inventory(labels=labels, problems=("word " * 40,)))], NOW, 60)
    assert max(map(letters, lines)) <= 60
    assert sum(line.count("=value") for line in lines) == 6
    assert "\x1b" not in "".join(lines)
    assert "\u00a0" not in "".join(lines)
