"""What of the agent's environment a job sees."""

from __future__ import annotations

import pytest

from gpulayer.protocol.types import Device
from gpulayer_worker.environ import allowed, for_devices

GPUS = tuple(Device(uuid=f"GPU-{n}", kind="cuda", index=n) for n in range(3))


@pytest.mark.parametrize(
    "name",
    ["GPULAYER_TOKEN", "GPULAYER_DATA", "AWS_SECRET_ACCESS_KEY", "GITHUB_TOKEN", "PYTHONPATH", "LD_PRELOAD"],
)
def test_what_is_not_on_the_list_is_left_out(name: str) -> None:
    assert allowed({name: "secret", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize(
    "name", ["PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "CUDA_HOME", "NCCL_DEBUG", "HF_HOME", "https_proxy"]
)
def test_what_programs_need_comes_through(name: str) -> None:
    assert allowed({name: "value"}) == {name: "value"}


def test_by_default_the_process_own_environment_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_GPULAYER_TEST", "1")
    monkeypatch.setenv("GPULAYER_TOKEN", "secret")
    assert allowed()["LC_GPULAYER_TEST"] == "1"
    assert "secret" not in allowed().values()


def test_a_job_sees_its_own_devices_by_uuid() -> None:
    seen = for_devices((GPUS[2], GPUS[0]), GPUS)
    assert seen == {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_a_job_without_devices_sees_none_of_the_machines() -> None:
    assert for_devices((), GPUS)["CUDA_VISIBLE_DEVICES"] == ""


def test_without_cuda_nothing_is_set() -> None:
    mps = Device(uuid="mps", kind="mps", index=0)
    assert for_devices((mps,), (mps,)) == {}
