"""Cores and memory within the limits of affinity and cgroups."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulayer_worker.inventory.limits import Limits, allowed_cores, node_cores, parse_cores, usable_cores

MANY = len(allowed_cores())
GB = 1 << 30


def tree(root: Path, files: dict[str, str]) -> Limits:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Limits(root)


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    limits = tree(tmp_path, {"proc/self/cgroup": "0::/user.slice\n", "sys/fs/cgroup/cgroup.controllers": ""})
    assert limits.cores() == MANY
    assert limits.ram_bytes() == psutil.virtual_memory().total
    assert limits.cpu_used_s() is None
    memory = limits.memory()
    assert memory.total_bytes == memory.used_bytes + memory.free_bytes


def test_a_machine_without_any_of_it_is_no_error(tmp_path: Path) -> None:
    assert Limits(tmp_path).cores() == MANY


def test_the_second_version_limits_by_the_group_and_those_above_it(tmp_path: Path) -> None:
    limits = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/pod/cpu.max": "50000 100000\n",
            "sys/fs/cgroup/pod/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
            "sys/fs/cgroup/pod/box/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/memory.max": "max\n",
            "sys/fs/cgroup/pod/box/memory.max": f"{GB}\n",
            "sys/fs/cgroup/pod/box/memory.current": f"{GB // 2}\n",
            "sys/fs/cgroup/pod/box/memory.stat": f"anon 5\ninactive_file {GB // 4}\n",
        },
    )
    assert limits.cores() == 0.5
    assert limits.cpu_limited()
    assert limits.cpu_used_s() == 2.5
    assert limits.ram_bytes() == GB
    assert limits.memory().used_bytes == GB // 4  # its files' pages can go at once


def test_in_a_container_the_mounted_root_is_its_own_group(tmp_path: Path) -> None:
    limits = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/../../docker/abc\n",
            "sys/fs/cgroup/cgroup.controllers": "cpu memory",
            "sys/fs/cgroup/cpu.max": "100000 100000\n",
            "sys/fs/cgroup/memory.max": f"{GB}\n",
        },
    )
    assert limits.cores() == 1
    assert limits.ram_bytes() == GB


def test_the_first_version_has_other_names(tmp_path: Path) -> None:
    unlimited = str(0x7FFFFFFFFFFFF000)
    limits = tree(
        tmp_path,
        {
            "proc/self/cgroup": "4:memory:/box\n3:cpu,cpuacct:/box\n",
            "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "50000",
            "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            "sys/fs/cgroup/cpuacct/box/cpuacct.usage": "1500000000",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": unlimited,
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": str(GB),
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": str(GB // 2),
            "sys/fs/cgroup/memory/box/memory.stat": f"total_inactive_file {GB // 4}\n",
        },
    )
    assert limits.cores() == 0.5
    assert limits.cpu_used_s() == 1.5
    assert limits.memory().total_bytes == GB
    assert limits.memory().free_bytes == GB * 3 // 4


def test_there_is_always_a_core() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_only_cores_that_we_may_use_count() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(
    ("text", "cores"),
    [("0-3,8\n", {0, 1, 2, 3, 8}), ("5", {5}), ("", set()), ("3-1", set()), ("a-b,2,-,4-", {2}), ("9" * 5000, set())],
)
def test_lists_of_cores_are_read(text: str, cores: set[int], tmp_path: Path) -> None:
    assert parse_cores(text) == cores
    tree(tmp_path, {"sys/devices/system/node/node1/cpulist": text})
    assert node_cores(1, tmp_path) == cores
    assert node_cores(0, tmp_path) == set()


@given(st.text())
def test_any_text_gives_cores(text: str) -> None:
    assert all(core >= 0 for core in parse_cores(text))
