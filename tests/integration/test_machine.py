"""A worker on a machine that is made up: what people see of it, while it is well and while it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpulayer.protocol.types import State, WorkerView
from tests.support import fakenvml
from tests.support.deployment import Deployment
from tests.support.fakenvml import GB, card, change, fake_pynvml
from tests.support.processes import until

FIRST, SECOND = card(0)["uuid"], card(1)["uuid"]


@pytest.fixture
def deployment() -> Iterator[Deployment]:
    with Deployment() as deployment:
        deployment.plane.start()
        yield deployment


def seen(deployment: Deployment) -> WorkerView:
    [worker] = deployment.api.workers()
    return worker


def joined(deployment: Deployment, of: fakenvml.Machine, *arguments: str) -> Path:
    """A worker whose NVML is made up, and has told of its devices; the folder of its machine."""
    folder = deployment.folder / "fake"
    deployment.worker("alpha", *arguments, warm=0, env=fake_pynvml(folder, of))
    until(lambda: seen(deployment).inventory.devices or seen(deployment).inventory.problems, "its devices")
    return folder


def test_devices_links_and_where_the_machine_is_are_told(deployment: Deployment) -> None:
    joined(deployment, fakenvml.dgx1(), "--region", "eu", "--zone=eu-a", "--label", "team=vision")
    inventory = seen(deployment).inventory
    assert [device.index for device in inventory.devices] == list(range(8))
    assert {link.kind for link in inventory.links} == {"NV", "SYS"}
    assert len(inventory.links) == 28
    assert (inventory.region, inventory.zone, inventory.labels) == ("eu", "eu-a", {"team": "vision"})


def test_samples_show_the_host_and_foreign_processes(deployment: Deployment) -> None:
    folder = joined(deployment, fakenvml.t4(used=GB))
    until(lambda: seen(deployment).sample, "a sample")
    pid = deployment.plane.pid  # a process of nobody's job
    change(folder, fakenvml.t4(used=9 * GB, processes=[[pid, 8 * GB]]))

    def foreign() -> bool:
        sample = seen(deployment).sample
        return bool(sample and sample.devices and sample.devices[0].foreign)

    until(foreign, "the foreign process")
    sample = seen(deployment).sample
    assert sample is not None
    assert sample.ram_free_bytes
    [device] = sample.devices
    [process] = device.foreign
    assert (process.pid, process.bytes, device.used_bytes) == (pid, 8 * GB, 9 * GB)
    assert process.name
    assert process.user


def test_a_driver_that_fails_is_told_as_that_and_the_worker_works(deployment: Deployment) -> None:
    joined(deployment, fakenvml.broken())
    assert seen(deployment).inventory.problems == (
        "NVIDIA devices present, NVML failed: Driver/library version mismatch",
    )
    assert deployment.notebook().run("%%gpulayer\nprint(1)").text() == "1\n"


def test_a_driver_that_hangs_does_not_keep_the_worker_away(deployment: Deployment) -> None:
    joined(deployment, fakenvml.hanging())
    assert seen(deployment).inventory.problems == ("NVIDIA devices present, NVML has not answered yet",)


def test_a_card_that_falls_sick_is_shown_and_the_other_one_stays(deployment: Deployment) -> None:
    folder = joined(deployment, fakenvml.machine(card(0), card(1)))
    change(folder, fakenvml.machine(card(0), card(1, ecc=3)))

    def sick() -> dict[str, str]:
        return {device.uuid: device.sick for device in seen(deployment).inventory.devices if device.sick}

    until(sick, "the sick card")
    assert list(sick()) == [SECOND]
    assert sick()[SECOND].startswith("3 uncorrected ECC errors since the driver was loaded")


def test_a_job_sees_its_own_device_by_uuid_and_one_without_sees_none(deployment: Deployment) -> None:
    joined(deployment, fakenvml.machine(card(0), card(1)))
    notebook = deployment.notebook()
    shown = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], os.environ['CUDA_DEVICE_ORDER'])"
    assert notebook.run(f"%%gpulayer --accelerator cuda\n{shown}").text() in (
        f"{FIRST} PCI_BUS_ID\n",
        f"{SECOND} PCI_BUS_ID\n",
    )
    assert notebook.run(f"%%gpulayer\n{shown}").text() == " PCI_BUS_ID\n"


def test_a_cell_tells_how_much_of_its_device_it_held(deployment: Deployment) -> None:
    folder = joined(deployment, fakenvml.t4())
    note, enough = folder / "asked", folder / "enough"
    notebook = deployment.notebook()
    code = f"import os, time\nwhile not os.path.exists({str(enough)!r}): time.sleep(0.05)"
    notebook.run(f"%%gpulayer --detach --accelerator cuda\n{code}")
    until(lambda: deployment.api.jobs(limit=1)[0].state is State.RUNNING, "the cell to run")
    kernels = [pid for pid, argv in deployment.processes().items() if "--connection-file" in argv and "kernel" in argv]
    held = card(0, used=3 * GB, processes=[[pid, 2 * GB] for pid in kernels])
    change(folder, fakenvml.machine(held, note=str(note)))

    def asked_again() -> bool:
        """A sample asks for Xids too: what is more was asked for the cell, the last but one time with an answer."""
        calls = note.read_text().split() if note.exists() else []
        return calls.count("nvmlDeviceGetGraphicsRunningProcesses") >= calls.count("nvmlEventSetWait_v2") + 4

    until(asked_again, "the cell's devices to be measured")
    enough.touch()
    outcome = until(lambda: deployment.api.jobs(limit=1)[0].outcome, "its end")
    assert outcome.state is State.SUCCEEDED
    assert outcome.peak_device_bytes == 2 * GB
