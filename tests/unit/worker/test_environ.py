"""What of the agent's environment a job sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpulayer.protocol.messages import Assign
from gpulayer.protocol.types import CommandSpec, Device, JobSpec, Requirements
from gpulayer_worker.environ import allowed, bound_cpus, for_devices, for_nodes
from gpulayer_worker.inventory.limits import allowed_cores

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


def test_a_slice_is_shown_by_its_own_uuid() -> None:
    part = Device(uuid="MIG-1", kind="cuda", index=0, parent="GPU-0")
    assert for_devices((part,), (part, GPUS[1]))["CUDA_VISIBLE_DEVICES"] == "MIG-1"


def test_amds_devices_are_shown_by_uuid_and_counted_among_those() -> None:
    cards = tuple(Device(uuid=f"GPU-{n}", kind="rocm", index=n) for n in range(3))
    assert for_devices(cards[1:], cards) == {"ROCR_VISIBLE_DEVICES": "GPU-1,GPU-2", "HIP_VISIBLE_DEVICES": "0,1"}
    assert for_devices((), cards) == {"ROCR_VISIBLE_DEVICES": "-1", "HIP_VISIBLE_DEVICES": "-1"}


def assigned(requirements: Requirements, *devices: Device, nodes: tuple[str, ...] = (), index: int = 0) -> Assign:
    spec = JobSpec(command=CommandSpec(argv=("true",)), requirements=requirements)
    return Assign(attempt="a", job="j", spec=spec, devices=devices, nodes=nodes, index=index)


def test_a_task_on_many_machines_is_told_of_them() -> None:
    assert for_nodes(assigned(Requirements(nodes=2), nodes=("box-a", "box-b"), index=1)) == {
        "GPULAYER_NODE_RANK": "1",
        "GPULAYER_NODES": "2",
        "GPULAYER_NODE_NAMES": "box-a,box-b",
    }
    assert for_nodes(assigned(Requirements())) == {}


def test_a_job_that_asks_for_it_runs_on_the_cores_next_to_its_devices(tmp_path: Path) -> None:
    own = min(allowed_cores())
    for node, cores in ((0, f"{own},40000"), (1, "40001")):
        folder = tmp_path / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cores)
    near, far = (Device(uuid=f"GPU-{node}", kind="cuda", index=node, numa=node) for node in (0, 1))
    bound = Requirements(bind_cpus=True)
    assert bound_cpus(assigned(bound, near), tmp_path) == (own,)
    assert bound_cpus(assigned(bound, near, far), tmp_path) == (own,)
    assert bound_cpus(assigned(bound, far), tmp_path) == ()  # none of those is ours
    assert bound_cpus(assigned(bound, GPUS[0]), tmp_path) == ()  # nobody knows
    assert bound_cpus(assigned(Requirements(), near), tmp_path) == ()
