"""The checks of what a worker tells of its devices: links, frameworks, memory, strangers, sickness.

Without a device they run over one that is made up: see `tests/support/fakenvml.py`.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.gpucheck.cells import HOLD, SICK, on
from benchmarks.gpucheck.deployment import Deployment, Failed, until
from gpulayer.client.client import Client
from gpulayer.client.job import Job
from gpulayer.protocol.types import Device, DeviceSample, Inventory, State
from tests.support import fakenvml

_GIB = 1 << 30
_PROBED = "is probed: a job on it ended with"  # in the agent's log
_SLACK = 0.25  # of what is held: contexts and the allocator's own


def fake(deployment: Deployment, **more: Any) -> None:
    """What the made-up card is from now on."""
    fakenvml.change(deployment.fake, fakenvml.t4(**more))


def inventory(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """What the worker sees of its machine, beside what `nvidia-smi` says where it is there."""
    found = deployment.start().inventory
    devices = [device for device in found.devices if device.kind == "cuda"]
    if not devices:
        raise Failed(f"no CUDA device in the inventory: {found}")
    for device in devices:
        if not device.driver or not device.capability or not device.uuid or device.sick:
            raise Failed(f"a device is not whole, or sick: {device}")
    listed = _smi("--query-gpu=uuid,name,memory.total", "--format=csv,noheader") if accelerator == "cuda" else ""
    whole = {device.parent or device.uuid for device in devices}
    if listed and not whole <= {line.split(",")[0].strip() for line in listed.splitlines()}:
        raise Failed(f"the inventory names {sorted(whole)}, nvidia-smi {listed!r}")
    return {
        "devices": [_told(device) for device in devices],
        "links": [f"{link.kind}{link.count if link.kind == 'NV' else ''}" for link in found.links],
        "nvidia_smi": listed.splitlines(),
        "topology": _smi("topo", "-m").splitlines()[: len(devices) + 1] if accelerator == "cuda" else [],
        "cuda": found.cuda,
        "problems": list(found.problems),
        "cores": found.cpu_cores,
        "ram_bytes": found.ram_bytes,
        "containment": deployment.containment,
    }


def _told(device: Device) -> dict[str, Any]:
    names = ("uuid", "name", "vram_bytes", "capability", "driver", "pci", "numa", "parent")
    return {name: getattr(device, name) for name in names}


def _smi(*arguments: str) -> str:
    """What nvidia-smi says; '' where it is not there."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def frameworks(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """The probes come through; on a CUDA machine torch works on every device."""
    found: Inventory = until(
        lambda: None if deployment.seen().inventory.probing else deployment.seen().inventory,
        "the probes of frameworks",
        patience_s=240.0,
    )
    told = {
        framework.name: {
            "version": framework.version,
            "built_for": framework.built_for,
            "works": list(framework.works),
            "devices": len(framework.devices),
            "problems": framework.problems,
        }
        for framework in found.frameworks
    }
    if accelerator == "cuda":
        torch = next((each for each in found.frameworks if each.name == "torch"), None)
        wanted = {device.uuid for device in found.devices if device.kind == "cuda"}
        if torch is None or not wanted <= set(torch.devices):
            raise Failed(f"torch does not work on all of {sorted(wanted)}: {torch}")
    return told


def peak(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """A command that holds a gigabyte of the device says so at its end; a sample shows it meanwhile as ours."""
    with Client() as client:  # by the data folder of this installation
        job = _on_device(client, on(HOLD, accelerator))
        pid = int(until(lambda: job.logs().partition("\n")[0], "the command's process id"))
        if accelerator == "cpu":
            fake(deployment, used=_GIB, processes=[[pid, _GIB]])
        sample = until(lambda: _holding(deployment, _GIB), "a sample that shows a gigabyte in use")
        outcome = job.result(timeout=120)
    fake(deployment)
    held = outcome.peak_device_bytes
    if held is None or not _GIB <= held <= _GIB * (1 + _SLACK) + _GIB:
        raise Failed(f"it held {_GIB} bytes, and its record says {held}")
    if any(process.pid == pid for process in sample.foreign):
        raise Failed(f"our own process counts as foreign: {sample.foreign}")
    return {"peak_bytes": held, "used_bytes": sample.used_bytes, "temperature_c": sample.temperature_c}


def foreign(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """Somebody else's process on the device is shown with its name and user."""
    until(lambda: _holding(deployment, _GIB) is None, "the memory of the last step to be free")
    with _somebody_elses(accelerator) as process:
        if accelerator == "cpu":
            fake(deployment, used=_GIB, processes=[[process.pid, _GIB]])
        sample = until(lambda: _holding(deployment, _GIB), "a sample that shows the foreign process's memory")
        seen = [each for each in sample.foreign if each.pid == process.pid]
    fake(deployment)
    if accelerator == "cpu" and not seen:
        raise Failed(f"process {process.pid} is foreign, and the sample names {sample.foreign}")
    # in a container NVML's process ids are of the machine, and nobody can tell whose they are
    return {"seen": bool(seen), "processes": [[each.pid, each.name, each.user, each.bytes] for each in sample.foreign]}


@contextlib.contextmanager
def _somebody_elses(accelerator: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", on(HOLD, accelerator, 600)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def sick(deployment: Deployment, accelerator: str) -> dict[str, Any]:
    """A job that ends as on a sick device has that device probed; it works, so the next job runs there.

    The made-up card falls sick by its own counters, takes no work, and is well again; then a job ends so on it, and no
    probe of it passes.
    """
    with Client() as client:
        if accelerator == "cpu":
            return _made_up_sick(deployment, client)
        first = _on_device(client, SICK).wait(timeout=120)
        until(lambda: _PROBED in _log(deployment), "the word that the device is probed")
        until(lambda: not _sick(deployment), "the device to be mended by its probe")
        return {"first": first.state.value, "after": _works(client)}


def _made_up_sick(deployment: Deployment, client: Client) -> dict[str, Any]:
    fake(deployment, ecc=1)
    counters = until(lambda: _sick(deployment), "the sick device")
    job = _on_device(client, "print('here')")
    status = job.status()
    if status.state not in (State.QUEUED, State.REJECTED):
        raise Failed(f"a job was placed on a sick device: {status}")
    job.cancel()
    fake(deployment)
    until(lambda: not _sick(deployment), "the card to be well again")
    after = _works(client)
    _on_device(client, SICK).wait(timeout=120)
    until(lambda: _PROBED in _log(deployment), "the word that the device is probed")
    probe = until(lambda: _sick(deployment), "the device whose probe fails")
    return {"counters": counters, "refused": status.state.value, "after": after, "probe": probe}


def _works(client: Client) -> str:
    """That a job on the device succeeds."""
    return _on_device(client, "print('here')").result(timeout=120).state.value


def _on_device(client: Client, program: str) -> Job:
    return client.submit([sys.executable, "-c", program], accelerator="cuda")


def _holding(deployment: Deployment, size: int) -> DeviceSample | None:
    sample = deployment.seen().sample
    devices = sample.devices if sample is not None else ()
    return next((device for device in devices if (device.used_bytes or 0) >= size), None)


def _sick(deployment: Deployment) -> dict[str, str]:
    return {device.uuid: device.sick for device in deployment.seen().inventory.devices if device.sick}


def _log(deployment: Deployment) -> str:
    path: Path = deployment.worker / "logs" / "agent.log"
    return path.read_text(errors="replace") if path.exists() else ""
