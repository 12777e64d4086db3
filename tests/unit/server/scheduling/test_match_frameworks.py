"""Frameworks have to be installed, of the right version, and to work on what the job uses: importable is not usable."""

from __future__ import annotations

from typing import Any

import pytest

from gpulayer.protocol.types import Device, Framework, Reason, Requirements
from gpulayer_server.scheduling.match import busy, fits, has_room, unmet
from tests.support.boxes import Box, box, card, torch

CPU_BUILD = torch("2.13.0+cpu", works=("cpu",), built_for="cpu", problems={"cuda": "torch is a CPU build (2.13.0+cpu)"})
MPS = Device(uuid="mps", kind="mps", index=0, name="Apple M3 Max", unified=True)


def asks(*frameworks: str, accelerator: str | None = "cuda", **asked: Any) -> Requirements:
    return Requirements(accelerator=accelerator, frameworks=frameworks, **asked)


def only(requirements: Requirements, worker: Box) -> Reason:
    """The one reason."""
    assert not fits(requirements, worker)
    [reason] = unmet(requirements, worker)
    return reason


# ---------------------------------------------------------------- there at all


def test_one_that_is_not_installed():
    reason = only(asks("jax"), box(card(), frameworks=(torch(),)))
    assert (reason.code, reason.text) == ("framework", "framework 'jax' not installed")
    assert (reason.wanted, reason.found) == ("jax", None)
    assert only(asks("jax"), box(card(), frameworks=(Framework(name="jax"),))).text == "framework 'jax' not installed"


def test_one_that_could_not_be_looked_for_says_why():
    broken = Framework(name="jax", problems={"": "the interpreter for jobs does not start"})
    assert only(asks("jax"), box(card(), frameworks=(broken,))).text == (
        "framework 'jax' not installed: the interpreter for jobs does not start"
    )


@pytest.mark.parametrize(
    ("framework", "accelerator", "changed", "remedy"),
    [
        ("torch", "cuda", {"cuda": "12.2"}, "install torch with CUDA 12.x on gpu-box-1"),
        ("torch>=2.4", "cuda", {"cuda": "13.0"}, "install torch>=2.4 with CUDA 13.x on gpu-box-1"),
        ("torch", "cuda", {"cuda": ""}, "install torch with CUDA 12.x on gpu-box-1"),  # its driver is 535
        ("jax", "cuda", {"cuda": "13.0"}, "install jax[cuda13] on gpu-box-1"),
        ("jax>=0.5", "cuda", {"cuda": "12.8"}, "install jax[cuda12]>=0.5 on gpu-box-1"),
        ("cupy", "cuda", {"cuda": "12.2"}, "install cupy-cuda12x on gpu-box-1"),
        ("tensorflow", "cuda", {"cuda": "12.2"}, "install tensorflow[and-cuda] on gpu-box-1"),
        ("torch", None, {}, "install torch on gpu-box-1"),
        ("mlx", None, {}, "install mlx[cpu] on gpu-box-1"),
        ("mlx", None, {"os": "darwin"}, "install mlx on gpu-box-1"),
        ("cupy", None, {}, "ask for an accelerator that cupy works on, cuda or rocm, instead of cpu"),
    ],
)
def test_the_remedy_names_the_build_that_the_driver_can_run(
    framework: str, accelerator: str | None, changed: dict[str, Any], remedy: str
):
    assert only(asks(framework, accelerator=accelerator), box(card(), **changed)).remedy == remedy


@pytest.mark.parametrize(
    ("kind", "framework", "remedy"),
    [
        ("rocm", "torch", "install torch for ROCm on gpu-box-1"),
        ("mps", "torch", "install torch on gpu-box-1"),
        ("mps", "jax", "install jax and jax-metal on gpu-box-1"),
        ("mps", "mlx", "install mlx on gpu-box-1"),
    ],
)
def test_the_remedy_on_other_devices(kind: str, framework: str, remedy: str):
    worker = box(Device(uuid="x", kind=kind, index=0), os="darwin" if kind == "mps" else "linux")
    assert only(asks(framework, accelerator=kind), worker).remedy == remedy


def test_the_remedy_without_any_knowledge_of_the_driver():
    worker = box(card(driver=""), cuda="")
    assert only(asks("torch"), worker).remedy == "install torch with CUDA on gpu-box-1"
    assert only(asks("cupy"), worker).remedy == "install cupy with CUDA on gpu-box-1"


# ---------------------------------------------------------------- versions


def test_another_version_gives_both():
    reason = only(asks("torch>=3"), box(card(), frameworks=(torch("2.13.0"),)))
    assert (reason.code, reason.text) == ("framework_version", "needs torch>=3, torch 2.13.0 is installed")
    assert (reason.wanted, reason.found) == ("torch>=3", "2.13.0")
    assert reason.remedy == "install torch>=3 with CUDA 12.x on gpu-box-1"


@pytest.mark.parametrize(
    ("installed", "asked", "meets"),
    [
        ("2.13.0+cu130", "torch==2.13.0", True),
        ("2.13.0+cu130", "torch<=2.13", True),
        ("2.13.0+cu130", "torch>2.13", False),
        ("2.13.0+cu130", "torch==2.13.0+cu126", False),
        ("2.14.0.dev20261101+cu130", "torch>=2.4", True),
        ("2.14.0.dev20261101+cu130", "torch>=2.14", False),
        ("2.14.0a0+git1234", "torch>=2.13,<2.15", True),
        ("2.4", "torch ~= 2.4", True),
        ("3.0.0rc1", "torch<3", False),
        ("2.13.0", "TORCH>=2", True),
        ("2.13.0-nv25-custom-build", "torch>=2.4", True),  # no version by PEP 440, but one that can be read
        ("unknown", "torch>=2.4", False),
        ("unknown", "torch", True),
    ],
)
def test_versions_of_all_kinds(installed: str, asked: str, meets: bool):
    worker = box(card(), frameworks=(torch(installed),))
    assert fits(asks(asked), worker) == meets
    assert (unmet(asks(asked), worker) == []) == meets


def test_version_and_device_are_both_told():
    reasons = unmet(asks("torch>=3", "jax"), box(card(), frameworks=(CPU_BUILD,)))
    assert [reason.text for reason in reasons] == [
        "needs torch>=3, torch 2.13.0+cpu is installed",
        "torch on this worker is a CPU build (2.13.0+cpu)",
        "framework 'jax' not installed",
    ]


# ---------------------------------------------------------------- works where it has to


def test_a_cpu_build_on_a_machine_with_cuda():
    reason = only(asks("torch"), box(card(), frameworks=(CPU_BUILD,)))
    assert (reason.code, reason.text) == ("framework_device", "torch on this worker is a CPU build (2.13.0+cpu)")
    assert (reason.wanted, reason.found) == ("cuda", "cpu")
    assert reason.remedy == "install torch with CUDA 12.x on gpu-box-1"
    assert fits(asks("torch", accelerator=None), box(card(), frameworks=(CPU_BUILD,)))


@pytest.mark.parametrize(
    "problem",
    [
        "CUDA driver version is insufficient (driver 12.2, torch built for 13.0)",
        "CUDA driver version is insufficient",
    ],
)
def test_a_build_for_a_newer_cuda_than_the_driver(problem: str):
    newer = torch("2.13.0+cu130", works=("cpu",), built_for="13.0", problems={"cuda": problem})
    reason = only(asks("torch"), box(card(), name="laptop", frameworks=(newer,)))
    assert reason.text == (
        "torch on this worker cannot use CUDA: CUDA driver version is insufficient (driver 12.2, torch built for 13.0)"
    )
    assert reason.remedy == (
        "install a driver for CUDA 13.0 or newer on laptop, or: install torch with CUDA 12.x on laptop"
    )


def test_one_that_works_on_nothing_says_why():
    broken = torch(works=(), problems={"": "OSError: libcudart.so.12: cannot open shared object file"})
    assert only(asks("torch"), box(card(), frameworks=(broken,))).text == (
        "torch on this worker cannot use CUDA: OSError: libcudart.so.12: cannot open shared object file"
    )
    assert only(asks("torch", accelerator="cpu"), box(frameworks=(broken,))).text == (
        "torch on this worker cannot use the CPU: OSError: libcudart.so.12: cannot open shared object file"
    )


def test_where_no_reason_is_known_it_says_where_it_works():
    assert only(asks("mlx", accelerator="mps"), box(MPS, frameworks=(torch(name="mlx", works=("cpu",)),))).text == (
        "mlx on this worker cannot use MPS: it works on cpu only"
    )


def test_mlx_computes_on_mps_where_no_accelerator_is_asked_for():
    assert fits(asks("mlx", accelerator=None), box(MPS, frameworks=(torch(name="mlx", works=("mps",)),)))
    assert not fits(asks("torch", accelerator=None), box(MPS, frameworks=(torch(works=("mps",)),)))


def test_on_a_machine_without_such_a_device_only_that_is_told():
    assert [reason.code for reason in unmet(asks("torch"), box(frameworks=(CPU_BUILD,)))] == ["device_kind"]


# ---------------------------------------------------------------- not yet known


def test_a_framework_that_is_still_probed_is_waited_for():
    worker = box(card(), probing=("torch", "jax"))
    assert fits(asks("torch>=2"), worker)
    assert unmet(asks("torch>=2"), worker) == []
    assert not has_room(asks("torch>=2"), worker)
    [reason] = busy(asks("torch>=2"), worker)
    assert (reason.code, reason.text, reason.temporary) == ("probing", "torch is still being tried out there", True)
    assert has_room(asks(), worker)


def test_while_it_is_probed_anew_what_was_known_does_not_count():
    worker = box(card(), frameworks=(CPU_BUILD,), probing=("torch",))
    assert unmet(asks("torch"), worker) == []
    assert not has_room(asks("torch"), worker)
