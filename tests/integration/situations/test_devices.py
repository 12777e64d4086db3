"""Situations 1 to 9: no machine has what a job needs, or it is taken. NVML and torch are made up, all else is real."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.types import State
from tests.support.deployment import Deployment
from tests.support.fakenvml import GB, Machine, broken, card, change, fake_pynvml, machine
from tests.support.frameworks import TORCH, interpreter
from tests.support.notebook import Notebook
from tests.support.processes import until
from tests.support.terminal import Cli

REJECTED = 69
LOADER = (
    "NVIDIA devices present, NVML failed: NVML Shared Library Not Found (libnvidia-ml.so.1: cannot open shared object "
    "file: No such file or directory)"
)
TOO_OLD = """
def hook(name):
    if name != "cpu":
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12020).")
"""
KIND = ("--accelerator", "cuda")


def rtx(number: int = 0, **more: object) -> dict[str, object]:
    """A card of 24 GB."""
    return card(number, "NVIDIA GeForce RTX 4090", 24, capability=[8, 9], **more)


def torch(version: str, cuda: str | None, more: str = "") -> dict[str, tuple[str, str]]:
    """A torch that was built for this version of CUDA, or for none."""
    source = TORCH.replace('"2.13.0+cu130"', repr(version)).replace('cuda = "13.0"', f"cuda = {cuda!r}")
    return {"torch": (version, source + more)}


class Fleet:
    """boxa has two cards and a CPU build of torch, boxb one card and too new a torch; boxc's NVML fails."""

    def __init__(self, deployment: Deployment):
        self.deployment = deployment
        self.nvml = deployment.folder / "nvml-boxb"
        self.free: Machine = machine(rtx())
        self._joins("boxa", machine(rtx(0), rtx(1)), torch("2.13.0+cpu", None))
        self._joins("boxb", self.free, torch("2.13.0+cu130", "13.0", TOO_OLD))
        self._joins("boxc", broken("NVML Shared Library Not Found"), {})
        until(self._is_known, lambda: f"all to be known: {deployment.api.workers()}")

    def _joins(self, name: str, has: Machine, packages: dict[str, tuple[str, str]]) -> None:
        folder = self.deployment.folder
        python = interpreter(folder / f"python-{name}", packages)
        self.deployment.worker(name, warm=0, python=python, env=fake_pynvml(folder / f"nvml-{name}", has))

    def _is_known(self) -> bool:
        workers = self.deployment.api.workers()
        return all(not worker.inventory.probing and worker.sample is not None for worker in workers)


@pytest.fixture(scope="module")
def staged() -> Iterator[Fleet]:
    """The fleet, for all of this file."""
    with Deployment(env={"GPULAYER_EMBEDDED": "0"}) as deployment:
        deployment.plane.start()
        yield Fleet(deployment)


@pytest.fixture
def fleet(staged: Fleet) -> Iterator[Fleet]:
    """The same; afterwards nothing runs or waits."""
    yield staged
    api = staged.deployment.api
    for job in api.jobs(limit=10):
        if not job.terminal:
            api.cancel(job.id)
    until(lambda: all(worker.slots_free == worker.slots for worker in api.workers()), "the slots to be free")


def explained(cli: Cli, *words: str, code: int = 0) -> str:
    """What `gpulayer explain` prints, in one line."""
    return " ".join(cli.run("explain", *words, code=code).stdout.split())


def rejected(cli: Cli, *words: str) -> str:
    """What `gpulayer submit` prints of a job that nobody could run; `explain` gives the same reasons."""
    said = " ".join(cli.run("submit", *words, "--", "true", code=REJECTED).stderr.split())
    head, _, why = said.partition(" · job ")
    assert head == "✗ no eligible worker"
    told = explained(cli, *words, code=REJECTED)
    assert told.startswith("scheduling: no eligible worker ")
    return f"{why} | {told}"


def both(said: str, text: str) -> bool:
    """Whether `submit` and `explain` say this."""
    return said.count(text) >= 2


@pytest.fixture
def of_fleet(fleet: Fleet, tmp_path: Path) -> Cli:
    """`gpulayer` beside the fleet."""
    return Cli(tmp_path, fleet.deployment.env)


def test_01_no_machine_has_a_cuda_device(cli: Cli, notebook: Notebook) -> None:
    said = rejected(cli, *KIND)
    for name in ("alpha", "beta"):
        assert re.search(rf"{name} +needs 1 usable cuda device, worker has 0 \(CPU only\)", said), said
    remedy = "nearest: no worker has a cuda device; add a machine with a cuda device: "
    assert both(said, remedy), said
    assert both(said, "`gpulayer up`"), said
    cell = " ".join(notebook.run("%%gpulayer --accelerator cuda\n1").traceback.split())
    assert cell.startswith("gpulayer: no eligible worker alpha needs 1 usable cuda device, worker has 0 (CPU only) ")
    assert remedy in cell


def test_02_nvml_fails_to_load(of_fleet: Cli) -> None:
    said = rejected(of_fleet, *KIND, "--worker", "boxc")
    assert both(said, f"boxc needs 1 usable cuda device, worker has 0 ({LOADER})"), said
    assert both(said, "nearest: mend the driver on boxc"), said
    assert "no GPU" not in said
    assert f"! {LOADER}" in " ".join(of_fleet.run("resources", "list").stdout.split())


def test_03_torch_is_a_cpu_build(of_fleet: Cli) -> None:
    said = rejected(of_fleet, *KIND, "--framework", "torch", "--worker", "boxa")
    assert both(said, "boxa torch on this worker is a CPU build (2.13.0+cpu)"), said
    assert both(said, "nearest: install torch with CUDA 12.x on boxa"), said


def test_04_torch_is_built_for_a_newer_cuda_than_the_driver(of_fleet: Cli) -> None:
    said = rejected(of_fleet, *KIND, "--framework", "torch", "--worker", "boxb")
    why = "CUDA driver version is insufficient (driver 12.2, torch built for 13.0)"
    assert both(said, f"boxb torch on this worker cannot use CUDA: {why}"), said
    remedy = "install a driver for CUDA 13.0 or newer on boxb, or: install torch with CUDA 12.x on boxb"
    assert both(said, f"nearest: {remedy}"), said


def test_05_one_of_two_devices_is_busy(fleet: Fleet, of_fleet: Cli) -> None:
    api = fleet.deployment.api
    words = ("submit", "--detach", *KIND, "--name", "train.py", "--worker", "boxa", "--", "sleep", "600")
    holder = of_fleet.run(*words).stdout.strip()
    until(lambda: api.job(holder).state is State.RUNNING, "the holder to run")
    owner = api.job(holder).owner
    why = f"needs 2 free cuda devices, 1 free now (cuda:0: train.py by {owner}, just begun)"
    said = explained(of_fleet, *KIND, "--devices", "2")
    assert said.startswith(f"scheduling: it would wait, the eligible worker is busy boxa {why} ")
    waits = of_fleet.run("submit", "--detach", *KIND, "--devices", "2", "--", "true").stdout.strip()
    assert api.job(waits).state is State.QUEUED
    assert f"boxa: {why}" in " ".join(of_fleet.run("job", "list").stdout.split())
    api.cancel(holder)
    until(lambda: api.job(waits).state is State.SUCCEEDED, "the one that waited")
    assert api.job(waits).worker == "boxa"


def test_06_the_largest_device_is_too_small(of_fleet: Cli) -> None:
    said = rejected(of_fleet, *KIND, "--min-vram", "40GB")
    for name in ("boxa", "boxb"):
        assert both(said, f"{name} needs 40 GB, the largest has 24 GB (RTX 4090)"), said


def test_07_somebody_elses_process_fills_the_card(fleet: Fleet, of_fleet: Cli) -> None:
    api = fleet.deployment.api
    words = (*KIND, "--min-vram", "10GB", "--worker", "boxb")
    with subprocess.Popen(["sleep", "600"]) as stranger:
        change(fleet.nvml, machine(rtx(used=22 * GB, processes=[[stranger.pid, 22 * GB]])))
        until(lambda: _foreign(fleet), "it to be measured")
        user = Path(f"/proc/{stranger.pid}").owner()
        who = f"sleep pid {stranger.pid} by {user} holds"
        why = rf"\d\.\d GB of 24 GB free on cuda:0: {who} [\d.]+ GB"
        said = explained(of_fleet, *words)
        assert said.startswith("scheduling: it would wait, the eligible worker is busy ")
        assert re.search(rf"boxb {why}", said), said
        assert re.search(rf"nearest: free [\d.]+ GB on boxb: {who} it", said), said
        waits = of_fleet.run("submit", "--detach", *words, "--", "true").stdout.strip()
        until(lambda: api.job(waits).reasons, "its reasons")
        assert re.search(rf"boxb: {why}", " ".join(of_fleet.run("job", "list").stdout.split()))
        change(fleet.nvml, fleet.free)
        stranger.kill()
    until(lambda: api.job(waits).state is State.SUCCEEDED, "the one that waited")


def _foreign(fleet: Fleet) -> bool:
    samples = [worker.sample for worker in fleet.deployment.api.workers() if worker.name == "boxb"]
    return any(device.foreign for sample in samples if sample is not None for device in sample.devices)


def test_08_no_such_version_of_torch(of_fleet: Cli) -> None:
    said = rejected(of_fleet, "--framework", "torch>=3")
    assert both(said, "boxa needs torch>=3, torch 2.13.0+cpu is installed"), said
    assert both(said, "boxb needs torch>=3, torch 2.13.0+cu130 is installed"), said
    assert both(said, "boxc framework 'torch' not installed"), said
    assert re.search(r"nearest: install torch>=3 on box\w", said), said


def test_09_a_typing_slip_in_a_workers_name(of_fleet: Cli) -> None:
    said = rejected(of_fleet, "--worker", "boxx")
    found = re.search(r"no worker is named 'boxx'; did you mean ([^?]*)\?", said)
    assert found is not None, said
    assert set(found[1].split(" or ")) == {"boxa", "boxb", "boxc"}
    assert both(said, "nearest: ask for worker "), said
    one = rejected(of_fleet, "--worker", "bxob")
    assert both(one, "no worker is named 'bxob'; did you mean boxb"), one
