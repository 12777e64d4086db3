"""What was found on a machine, in plain text."""

from __future__ import annotations

from typing import Any

from gpulayer.detected import detected_lines
from gpulayer.protocol.types import Device, DeviceSample, Framework, Inventory, Link, Process, Sample

GPUS = tuple(
    Device(
        uuid=f"GPU-{n}",
        kind="cuda",
        index=n,
        name="NVIDIA A100",
        vram_bytes=40_000_000_000,
        capability="8.0",
        driver="535.104.05",
        numa=n // 2,
    )
    for n in range(3)
)


def inventory(**facts: Any) -> Inventory:
    given: dict[str, Any] = {
        "host": "box",
        "os": "linux",
        "arch": "x86_64",
        "cpu_cores": 2,
        "ram_bytes": 8_000_000_000,
        "python": "3.11.9",
    }
    return Inventory(**given | facts)


def section(lines: list[str], title: str) -> list[str]:
    below = lines[lines.index(title) + 1 :]
    return below[: below.index("")] if "" in below else below


def test_a_machine_without_devices() -> None:
    torch = Framework(name="torch", version="2.13.0+cpu", built_for="cpu", works=("cpu",))
    assert detected_lines(inventory(frameworks=(torch, Framework(name="jax")), probing=("mlx",)), Sample()) == [
        "box · linux x86_64 · Python 3.11.9 for jobs",
        "  2 cores · RAM 8 GB",
        "",
        "devices",
        "  none: jobs run on the CPU",
        "",
        "frameworks",
        "  torch  2.13.0+cpu  cpu ✓  (a build for the CPU alone)",
        "  mlx                being tried out",
        "  not installed: jax, cupy, tensorflow",
    ]


def test_devices_with_what_is_known_of_them() -> None:
    sample = Sample(
        devices=(
            DeviceSample(uuid="GPU-0", used_bytes=400_000_000, utilisation=0.5, temperature_c=38),
            DeviceSample(uuid="GPU-1", foreign=(Process(pid=4121, name="python", user="alice"),)),
        )
    )
    sick = Device(uuid="MIG-9", kind="cuda", index=0, parent="GPU-9", sick="Xid 79: fallen off the bus")
    lines = detected_lines(inventory(devices=(*GPUS[:2], sick), cuda="12.2"), sample)
    assert lines[0] == "box · linux x86_64 · Python 3.11.9 for jobs · driver 535.104.05 (CUDA 12.2 at most)"
    assert section(lines, "devices") == [
        "  cuda:0 A100  50%  0.4 of 40 GB  38 °C  capability 8.0 · NUMA 0  GPU-0",
        "  cuda:1 A100              40 GB         capability 8.0 · NUMA 0  GPU-1",
        "      ! held by python pid 4121 by alice",
        "  cuda:0                                 slice                    MIG-9",
        "      ! sick: Xid 79: fallen off the bus",
    ]


def test_links_are_a_matrix_with_a_legend() -> None:
    links = (Link(a="GPU-0", b="GPU-1", kind="NV", count=4), Link(a="GPU-1", b="GPU-2", kind="SYS"))
    assert section(detected_lines(inventory(devices=GPUS, links=links), Sample()), "links") == [
        "          cuda:0  cuda:1  cuda:2",
        "  cuda:0       –     NV4       ?",
        "  cuda:1     NV4       –     SYS",
        "  cuda:2       ?     SYS       –",
        "  NV: NVLink, as many as the number says; SYS: between NUMA nodes",
    ]


def test_no_matrix_of_one_device_or_of_unknown_links() -> None:
    link = (Link(a="GPU-0", b="GPU-1", kind="NV"),)
    assert "links" not in detected_lines(inventory(devices=GPUS[:1], links=link), Sample())
    assert "links" not in detected_lines(inventory(devices=GPUS), Sample())


def test_a_framework_that_works_in_part_says_why() -> None:
    why = "CUDA driver version is insufficient (driver 12.2, torch built for 13.0): a newer driver, or an older torch"
    torch = Framework(name="torch", version="2.13.0", built_for="13.0", works=("cpu",), problems={"cuda": why})
    broken = Framework(name="jax", version="0.5", problems={"": "no answer within 60 s"})
    lines = section(detected_lines(inventory(devices=GPUS, frameworks=(torch, broken)), Sample(), 200), "frameworks")
    assert lines == [
        "  torch  2.13.0  cpu ✓  cuda ✗  (built for CUDA 13.0)",
        f"      ! cuda: {why}",
        "  jax    0.5     cuda ✗",
        "      ! no answer within 60 s",
        "  not installed: cupy, mlx, tensorflow",
    ]


def test_problems_are_told_and_nobody_says_no_gpu() -> None:
    problem = "NVIDIA devices present, NVML failed: Driver/library version mismatch; reboot"
    lines = detected_lines(inventory(problems=(problem,)), Sample())
    assert section(lines, "devices") == ["  none that jobs could use"]
    assert section(lines, "problems") == [f"  ! {problem}"]
